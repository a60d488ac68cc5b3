"""Where a static program evaluates: noise levels that the model knows, and ways to space them.

A spacing has two parameters, a variable of the noise level and a power::

    v(u) = (v_first^(1/p) + u * (v_last^(1/p) - v_first^(1/p)))^p,    u = 0 ... 1

In the timestep, p = 1 is even and p = 2 quadratic; in ``noise / signal``, p = 7 is the spacing of
Karras et al. (2022) and a large power is even in the log-SNR.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray

FINER = 10
"""Levels that are offered between two steps of a flow: its network knows every time."""

POWERS = {
    "t": (0.5, 0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0),
    "sigma": (3.0, 7.0, 50.0),
    "angle": (1.0,),
}


class State(NamedTuple):
    """A noise level at which the network can be asked: ``x = signal * x0 + noise * epsilon``."""

    timestep: float
    signal: float
    noise: float


def sampler_states(sampler: Sampler) -> list[State]:
    """The states at which the sampler itself asks, noisiest first."""
    return [State(step.timestep, step.signal, step.noise) for step in sampler.steps]


def trained_states(sampler: Sampler) -> list[State]:
    """Every state that the network knows between the sampler's first and last, noisiest first.

    A sampler with 16 of 100 trained timesteps leaves out states that a program may visit.
    """
    own = sampler_states(sampler)
    if sampler.flow:
        places = np.linspace(0.0, len(own) - 1.0, FINER * (len(own) - 1) + 1)
        columns = [
            np.interp(places, np.arange(len(own)), values) for values in zip(*own, strict=True)
        ]
        return [State(*map(float, row)) for row in zip(*columns, strict=True)]
    if sampler.schedule is None:
        return own
    power = sampler.schedule.alpha_bar
    trained = range(int(own[0].timestep), int(own[-1].timestep) - 1, -1)
    # math.sqrt, as in the sampler's steps: a power of 0.5 may round differently.
    return [State(t, math.sqrt(power[t]), math.sqrt(1.0 - power[t])) for t in trained]


def spread_steps(steps: int, count: int) -> tuple[int, ...]:
    """``count`` steps from the first to the last, as evenly as integers allow."""
    if not 2 <= count <= steps:
        raise InputError(f"choose between 2 and {steps} evaluations, got {count}")
    return tuple(int(step) for step in np.round(np.linspace(0, steps - 1, count)))


def spacings(states: Sequence[State], count: int) -> dict[str, tuple[int, ...]]:
    """Names of spacings, and the places in ``states`` that each visits, (count,) increasing.

    Both ends are visited; with few evaluations several spacings round to the same places.

    Raises:
        InputError: there are not as many states, or fewer than two are asked for.
    """
    most = len(states)
    if not 2 <= count <= most:
        raise InputError(f"choose between 2 and {most} evaluations, got {count}")
    noise = np.array([state.noise for state in states])
    signal = np.array([state.signal for state in states])
    variables = {"t": np.arange(most - 1.0, -1.0, -1.0), "angle": np.arctan2(noise, signal)}
    if signal.min() > 0.0:
        variables["sigma"] = noise / signal
    found: dict[str, tuple[int, ...]] = {}
    for name, variable in variables.items():
        for power in POWERS[name]:
            first, last = variable[[0, -1]] ** (1.0 / power)
            levels = np.linspace(first, last, count) ** power
            places = np.interp(-levels, -variable, np.arange(most))
            found[f"{name}^{power:g}"] = distinct(places, most)
    return found


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
