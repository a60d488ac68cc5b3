"""A table under construction: trajectories as vectors of weights.

A method computes with *vectors of weights* instead of trajectories: x_T, every clean sample and
every raw noise is a unit vector, and a step of the method adds such vectors up. What comes out are
the rows of a :class:`muninn.programs.table.Table`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.spacing import State
from muninn.programs.table import Table


def keeps_raw_noise(sampler: Sampler) -> bool:
    """Whether the raw noise of an evaluation enters a table besides the clipped clean sample.

    With noise of its own a sampler's epsilon follows from the clipped x0 in a table, whether or not
    the sampler keeps the raw one: that noise is propagated with x0 held.
    """
    return sampler.clip is not None and sampler.keep_epsilon and not sampler.stochastic


class UnitVectors:
    """The unit vectors of a table under construction, and the rows that are finished."""

    def __init__(self, sampler: Sampler, states: Sequence[State]) -> None:
        self.sampler, self.states = sampler, list(states)
        last = sampler.steps[-1]
        self.levels = [*self.states, State(0.0, last.next_signal, last.next_noise)]
        self.raw = keeps_raw_noise(sampler)
        self.units = np.eye(1 + 2 * len(self.states))
        self.rows: list[FloatArray] = []
        self.values: list[tuple[FloatArray, FloatArray]] = []

    def evaluate(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Clean sample and noise from an evaluation at ``x``, the state of the next anchor."""
        at = len(self.values)
        if at:
            self.rows.append(x)
        state, clean = self.states[at], self.units[1 + at]
        noise = self.units[1 + len(self.states) + at]
        if not self.raw:
            noise = (x - state.signal * clean) / state.noise
        self.values.append((clean, noise))
        return clean, noise

    def value(self, at: int, quantity: Kind) -> FloatArray:
        """What evaluation ``at`` says of a quantity."""
        (clean, noise), state, sign = self.values[at], self.states[at], self.sampler.velocity_sign
        if quantity == "v":
            return state.signal * noise - state.noise * clean
        if quantity == "velocity":
            return sign * (noise - clean)
        return clean if quantity == "sample" else noise

    def table(self, method: str, result: FloatArray) -> Table:
        """The finished table."""
        weights = np.array([*self.rows, result])
        count = len(self.states)
        if not weights[:, 1 + count :].any():
            weights = weights[:, : 1 + count]
        own = [1.0 if self.sampler.stochastic else 0.0] * count
        return Table(method, tuple(self.states), (tuple(map(tuple, weights.tolist())),), tuple(own))
