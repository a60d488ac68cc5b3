"""What a user would do instead of caching: fewer sampler steps, or reuse at a fixed stride.

Fewer steps visit states of the model. A spacing of them is judged by what it does on tuning calls
(``alternatives.py``), so here is a list of sensible ones. Each visits both ends: the noisiest
state, and the least noisy one before the clean trajectory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Kind, Sampler, Step
from muninn.model.schedule import FloatArray
from muninn.programs.anchors import spread_steps
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static

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
    ``alpha_bar`` is the model's training table, (training steps,); without it, as for a sampler
    that visits every timestep, the sampler's own states are all there are.

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


def few_steps(planner: Planner, count: int) -> Planner:
    """The same model sampled with ``count`` deterministic DDIM (or Euler) steps, evenly spread."""
    states = sampler_states(planner.sampler)
    return visiting(planner, [states[i] for i in spread_steps(len(states), count)])


def visiting(planner: Planner, states: Sequence[State]) -> Planner:
    """The same model sampled with deterministic DDIM (or Euler) steps from state to state.

    Each step goes exactly to the state at which the next one starts, the last to where the
    planner's own sampler ends.

    Raises:
        InputError: the planner's sampler is stochastic: its noise would have to be added up.
    """
    sampler = planner.sampler
    if sampler.stochastic:
        raise InputError(
            "fewer steps are taken of a deterministic sampler (DDIM with eta = 0, or Euler); for "
            f"{sampler.name!r} build the planner with the same model and a deterministic sampler"
        )
    last = sampler.steps[-1]
    ends = [(state.signal, state.noise) for state in states[1:]]
    ends.append((last.next_signal, last.next_noise))
    table = [
        Step(*state, *end, from_state=0.0, from_sample=end[0], from_epsilon=end[1])
        for state, end in zip(states, ends, strict=True)
    ]
    fewer = Sampler(
        f"{sampler.name}-{len(table)}",
        sampler.kind,
        table,
        flow=sampler.flow,
        clip=sampler.clip,
        keep_epsilon=sampler.keep_epsilon,
        velocity_sign=sampler.velocity_sign,
        details={"of": sampler.describe()},
    )
    return replace(planner, sampler=fewer)


def fixed_skip(planner: Planner, count: int) -> Program:
    """Evaluations at a fixed stride; in between the noise estimate is reused, as in the paper.

    With deterministic DDIM this is :func:`few_steps` up to clipping: a step with its prediction
    held, epsilon or x0, composes exactly with the next.
    """
    sampler = planner.sampler
    held: Kind = "velocity" if sampler.flow else "epsilon"
    return Program(Forecast(held, 0, look_back=False), Static(spread_steps(len(sampler), count)))
