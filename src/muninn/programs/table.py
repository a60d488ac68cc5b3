"""A static program as a table of numbers: each state is a weighted sum of what is known by then.

With K evaluations, clean samples ``x0_j`` (clipped as the sampler clips) and raw noise ``eps_j``
that they contribute, and the sampler's own noise ``N``::

    state_k = a_k x_T + sum_{j<k} (b_kj x0_j + e_kj eps_j) + c_k N_k,      k = 1 ... K

The last state is the result. Fewer DDIM steps, multistep solvers, Taylor series and polynomial
forecasts, with and without look-back, are ways to fill the weights
(:mod:`muninn.programs.methods`); :mod:`muninn.programs.fitting` corrects them on tuning calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.plan import AnyProgram
from muninn.programs.spacing import State

Weights = tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True)
class Table(AnyProgram, kind="table"):
    """Evaluations at fixed states, and the weights of every state that follows from them."""

    method: str  # how the weights were found, for people
    states: tuple[State, ...]  # evaluated, in order; the first is the sampler's first
    # (channels, K, 1 + K) or (channels, K, 1 + 2 K), channels 1 or the plan's last dimension:
    # of x_T, of the clean samples and, where they are used, of the raw noises, in states 1 ... K
    weights: Weights
    noise: tuple[float, ...]  # of the sampler's own noise in states 1 ... K; 0 if it draws none

    def __post_init__(self) -> None:
        try:
            states = tuple(State(*map(float, state)) for state in self.states)
            weights = np.array(self.weights, dtype=np.float64)
            noise = tuple(float(weight) for weight in self.noise)
        except (TypeError, ValueError) as error:
            raise InputError(f"a table holds states and numbers; {error}") from error
        count = len(states)
        if count < 2 or weights.ndim != 3 or weights.shape[1] != count or len(noise) != count:
            raise InputError(
                f"a table of {count} evaluations needs at least 2 of them, weights (channels, "
                f"{count}, features) and {count} weights of noise, got {weights.shape}, "
                f"{len(noise)}"
            )
        if weights.shape[2] not in (1 + count, 1 + 2 * count) or not weights.shape[0]:
            raise InputError(f"{weights.shape[2]} features do not belong to {count} evaluations")
        if not np.isfinite(weights).all() or not np.isfinite(noise).all():
            raise InputError("a table needs finite weights")
        if not np.isfinite(states).all() or min(state.noise for state in states) <= 0.0:
            raise InputError("a table evaluates at finite states with noise above 0")
        for part in range(1, weights.shape[2], count):
            if np.triu(weights[:, :, part : part + count], 1).any():
                raise InputError("a state of a table depends on an evaluation that comes later")
        for name, value in (
            ("states", states),
            ("weights", _tuples(weights.tolist())),
            ("noise", noise),
        ):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return f"{len(self.states)} evaluations, {self.method}"

    @property
    def fixed(self) -> bool:
        """Always."""
        return True

    @property
    def array(self) -> FloatArray:
        """The weights, (channels, K, features)."""
        return np.array(self.weights)

    def most_evaluations(self, steps: int) -> int:
        return len(self.states)


def _tuples(weights: list[list[list[float]]]) -> Weights:
    return tuple(tuple(map(tuple, channel)) for channel in weights)


def steps_of(sampler: Sampler, states: tuple[State, ...]) -> list[int | None]:
    """The sampler's step at each state, or None between two of them."""
    at = {step.timestep: index for index, step in enumerate(sampler.steps)}
    return [at.get(state.timestep) for state in states]


def nearest_steps(sampler: Sampler, states: tuple[State, ...]) -> list[int]:
    """The sampler's step nearest to each state."""
    times = np.array([step.timestep for step in sampler.steps])
    return [int(np.abs(times - state.timestep).argmin()) for state in states]


def embedded_differences(states: tuple[State, ...]) -> FloatArray:
    """Weights (K - 1, K) of the clean samples whose size estimates the error of each gap.

    A gap is judged by how far the evaluation that ends it lies from the line through the two
    before it, in the angle ``atan2(noise, signal)``, weighed by the share of the noise that the
    gap removes. Of states that are evaluated twice (Heun) the line goes through the later value.
    It depends on the call's own predictions alone, so it costs no evaluation.
    """
    angle = np.array([np.arctan2(state.noise, state.signal) for state in states])
    ratio = np.tan(np.minimum(angle, np.pi / 2 - 1e-9))
    rows = np.zeros((len(states) - 1, len(states)))
    for gap in range(1, len(states)):
        share = 1.0 - ratio[gap] / max(ratio[gap - 1], 1e-12)
        rows[gap - 1, gap] = 1.0
        rows[gap - 1, gap - 1] = -1.0
        others = np.flatnonzero(angle[:gap] != angle[gap - 1])
        if others.size:
            slope = (angle[gap] - angle[gap - 1]) / (angle[gap - 1] - angle[others[-1]])
            rows[gap - 1, gap - 1] -= slope
            rows[gap - 1, others[-1]] = slope
        rows[gap - 1] *= max(share, 0.0)
    return rows
