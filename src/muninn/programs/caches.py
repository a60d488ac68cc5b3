"""Published caches as tables: the sampler's own steps, evaluated at some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.forecast import interpolation_weights, smooth_variable
from muninn.programs.spacing import State
from muninn.programs.table import Table, steps_of
from muninn.programs.unit_vectors import UnitVectors


def taylor(sampler: Sampler, states: Sequence[State], order: int = 1) -> Table:
    """TaylorSeer-like caching (Liu et al. 2025): between evaluations the network's own output goes
    on as a Taylor series in the step index, its derivatives finite differences."""

    def series(nodes: Sequence[int], targets: FloatArray, closed: bool) -> FloatArray:
        derivatives = np.zeros((order + 1, len(nodes)))
        for place in range(max(0, len(nodes) - order - 1), len(nodes)):  # no other node counts
            before, derivatives = derivatives, np.zeros_like(derivatives)
            derivatives[0, place] = 1.0
            for k in range(min(order, place)):
                apart = nodes[place] - nodes[place - 1]
                derivatives[k + 1] = (derivatives[k] - before[k]) / apart
        powers = [(targets - nodes[-1]) ** k / math.factorial(k) for k in range(order + 1)]
        weights: FloatArray = np.array(powers).T @ derivatives
        return weights

    return _cached(f"Taylor series {order}", sampler, states, sampler.kind, False, series)


def forecast(
    sampler: Sampler,
    states: Sequence[State],
    quantity: Kind = "sample",
    order: int = 1,
    look_back: bool = True,
) -> Table:
    """The sampler's own steps on polynomial forecasts: see :mod:`muninn.programs.forecast`."""
    variable = smooth_variable(sampler)

    def polynomial(nodes: Sequence[int], targets: FloatArray, closed: bool) -> FloatArray:
        used = nodes[-(order + 1 + closed) :]
        weights = np.zeros((len(targets), len(nodes)))
        places = targets.astype(int)
        weights[:, len(nodes) - len(used) :] = interpolation_weights(
            variable[list(used)], variable[places]
        )
        return weights

    name = f"forecast of {quantity}, order {order}{', look-back' if look_back else ''}"
    return _cached(name, sampler, states, quantity, look_back, polynomial)


def _cached(
    name: str,
    sampler: Sampler,
    states: Sequence[State],
    quantity: Kind,
    look_back: bool,
    weigh: Callable[[Sequence[int], FloatArray, bool], FloatArray],
) -> Table:
    """The sampler's own steps: evaluated ones, and between them sums of the evaluated values.

    ``weigh(nodes, targets, closed)`` gives the weights (targets, nodes) of the values at evaluated
    steps; ``closed`` where the last of them ends the gap that the targets lie in.
    """
    steps = [step for step in steps_of(sampler, tuple(states)) if step is not None]
    if len(steps) != len(states) or steps[0] != 0 or any(np.diff(steps) <= 0):
        raise InputError(f"{name} needs increasing steps of the sampler from its first on")
    if sampler.stochastic and quantity != "sample":
        raise InputError("with a stochastic sampler only the clean sample can be forecast")
    made = UnitVectors(sampler, states)
    after = x = made.units[0]

    def gap(x: FloatArray, nodes: list[int], first: int, until: int, closed: bool) -> FloatArray:
        weights = weigh(nodes, np.arange(first, until, dtype=float), closed)
        values = np.array([made.value(place, quantity) for place in range(len(nodes))])
        for index, row in zip(range(first, until), weights, strict=True):
            carry, effect = sampler.unclipped(index, quantity)
            x = carry * x + effect * (row @ values)
        return x

    for at, (step, until) in enumerate(zip(steps, [*steps[1:], len(sampler)], strict=True)):
        clean, noise = made.evaluate(x)
        if look_back and at and step > steps[at - 1] + 1:
            x = gap(after, steps[: at + 1], steps[at - 1] + 1, step, True)
            carry, effect = sampler.unclipped(step, quantity)
            after = carry * x + effect * made.value(at, quantity)
        else:
            own = sampler.steps[step]
            carry, effect = sampler.unclipped(step, "sample")
            after = carry * x + effect * clean
            if made.raw:
                after = own.from_state * x + own.from_sample * clean + own.from_epsilon * noise
        x = gap(after, steps[: at + 1], step + 1, until, False)
    return made.table(name, x)
