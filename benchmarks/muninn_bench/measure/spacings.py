"""Where a sampler with few evaluations may put them: states of the model, and ways to space them.

A spacing is judged by what it does on tuning calls (``alternatives.py``), so here is a list of
sensible ones. Each visits both ends: the noisiest state, and the least noisy one before the
clean trajectory (timestep 0 of a sampler that visits it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray

POWERS = (0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0)
"""Exponents of ``t ~ u^p``: above 1 states are dense at the clean end, below 1 at the noisy one."""


class State(NamedTuple):
    """A noise level at which the network can be asked: ``x = signal * x0 + noise * epsilon``."""

    timestep: float
    signal: float
    noise: float


def sampler_states(sampler: Sampler) -> list[State]:
    """The states at which the sampler itself asks, noisiest first."""
    return [State(step.timestep, step.signal, step.noise) for step in sampler.steps]


def trained_states(sampler: Sampler, alpha_bar: FloatArray | None) -> list[State]:
    """Every trained state between the sampler's first and its last, noisiest first.

    A sampler with 16 of 100 trained timesteps leaves out states that an alternative may visit.

    Args:
        sampler: says which state is the first and which the last.
        alpha_bar: the model's training table, (training steps,); None for the sampler's own states
            alone, which for a sampler that visits every timestep are all there are.

    Raises:
        InputError: the table is not the sampler's.
    """
    own = sampler_states(sampler)
    if alpha_bar is None:
        return own
    first, last = int(own[0].timestep), int(own[-1].timestep)
    if sampler.flow or not 0 <= last < first < len(alpha_bar):
        raise InputError(
            f"a table of {len(alpha_bar)} alpha_bar does not belong to a sampler that goes from "
            f"timestep {own[0].timestep:g} to {own[-1].timestep:g}; leave alpha_bar out"
        )
    found = [
        State(timestep, float(alpha_bar[timestep]) ** 0.5, float(1.0 - alpha_bar[timestep]) ** 0.5)
        for timestep in range(first, last - 1, -1)
    ]
    ends = ((found[0], own[0]), (found[-1], own[-1]))
    if not all(abs(one.signal - other.signal) < 1e-4 for one, other in ends):
        raise InputError("alpha_bar is not the table that the sampler was made from")
    return found


def spacings(states: Sequence[State], count: int) -> dict[str, tuple[int, ...]]:
    """Names of spacings, and the places in ``states`` that each visits, (count,) increasing.

    Powers of the timestep, and steps of equal length in the angle ``atan2(noise, signal)`` and in
    the logarithm of the signal-to-noise ratio. Spacings that round to the same places come once.

    Raises:
        InputError: there are not as many states, or fewer than two are asked for.
    """
    most = len(states)
    if not 2 <= count <= most:
        raise InputError(f"choose between 2 and {most} evaluations, got {count}")
    even = np.linspace(0.0, 1.0, count)
    wanted = {f"t ~ u^{power:g}": (most - 1) * (1.0 - (1.0 - even) ** power) for power in POWERS}
    noise = np.array([state.noise for state in states])
    signal = np.array([state.signal for state in states])
    variables = {"even angle": np.arctan2(noise, signal)}
    if (signal > 0.0).all():
        variables["even log-SNR"] = np.log(noise / signal)
    for name, variable in variables.items():
        levels = np.linspace(variable[0], variable[-1], count)
        wanted[name] = np.interp(-levels, -variable, np.arange(most))
    found: dict[tuple[int, ...], str] = {}
    for name, places in wanted.items():
        found.setdefault(distinct(places, most), name)
    return {name: places for places, name in found.items()}


def distinct(places: FloatArray, most: int) -> tuple[int, ...]:
    """Rounded places below ``most``, moved apart where two would coincide; the ends stay.

    >>> distinct(np.array([0.0, 0.2, 0.4, 9.0]), 10)
    (0, 1, 2, 9)
    """
    count = len(places)
    order = np.arange(count)
    rounded = np.maximum.accumulate(np.round(places).astype(int) - order) + order
    rounded = np.minimum(rounded, most - count + order)
    return tuple(int(place) for place in rounded)
