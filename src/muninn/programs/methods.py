"""Published solvers as tables, and every method that fits a sampler.

Each function reads as the algorithm that its first line names; it computes with the vectors of
weights of :mod:`muninn.programs.unit_vectors`. Caches are in :mod:`muninn.programs.caches`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.caches import forecast, taylor
from muninn.programs.forecast import interpolation_weights
from muninn.programs.spacing import State
from muninn.programs.table import Table, steps_of
from muninn.programs.unit_vectors import UnitVectors


def few_steps(sampler: Sampler, states: Sequence[State]) -> Table:
    """DDIM (Song et al. 2021), Euler of a flow, or ancestral sampling, with fewer steps."""
    made = UnitVectors(sampler, states)
    x = made.units[0]
    for at, after in enumerate(made.levels[1:]):
        clean, noise = made.evaluate(x)
        if sampler.stochastic:
            x = _held(made, x, at, clean)
        else:
            x = after.signal * clean + after.noise * noise
    return made.table("fewer steps", x)


def _held(made: UnitVectors, x: FloatArray, at: int, clean: FloatArray) -> FloatArray:
    """The sampler's own steps to the next anchor, on a clean sample that does not change."""
    steps = [*steps_of(made.sampler, tuple(made.states)), len(made.sampler)]
    first, until = steps[at], steps[at + 1]
    if first is None or until is None:
        raise InputError("a stochastic sampler is shortened at its own steps only")
    for index in range(first, until):
        carry, effect = made.sampler.unclipped(index, "sample")
        x = carry * x + effect * clean
    return x


def dpm_solver(sampler: Sampler, states: Sequence[State], order: int = 2) -> Table:
    """DPM-Solver++ (Lu et al. 2022), multistep, midpoint, first order at the end; its SDE version
    of second order where the sampler is stochastic."""
    made = UnitVectors(sampler, states)
    count, final = len(made.states), 1 if len(made.states) < 15 else 0
    x = made.units[0]
    for at, after in enumerate(made.levels[1:]):
        clean, _ = made.evaluate(x)
        usable = min(order, at + 1, 1 if at == count - 1 else 2 if final and at == count - 2 else 3)
        if sampler.stochastic:
            usable = min(usable, 2)
        before = [made.values[at - back][0] for back in range(usable)]
        levels = [_log_snr(made.levels[at - back]) for back in range(usable)]
        now = made.states[at]
        if usable == 1:
            slopes = [np.zeros_like(x)] * 2
            h = math.inf
        else:
            h = _log_snr(after) - levels[0]
            ratios = [(levels[i] - levels[i + 1]) / h for i in range(usable - 1)]
            first = [(before[i] - before[i + 1]) / ratios[i] for i in range(usable - 1)]
            slopes = [first[0], np.zeros_like(x)]
            if usable == 3:
                bend = (first[0] - first[1]) / (ratios[0] + ratios[1])
                slopes = [first[0] + ratios[0] * bend, bend]
        if sampler.stochastic:
            x = _held(made, x, at, clean + 0.5 * slopes[0])
            continue
        decay = after.noise * now.signal / (now.noise * after.signal) - 1.0  # exp(-h) - 1
        x = after.noise / now.noise * x - after.signal * decay * clean
        if usable == 2:
            x = x - 0.5 * after.signal * decay * slopes[0]
        elif usable == 3:
            x = x + after.signal * (decay / h + 1.0) * slopes[0]
            x = x - after.signal * ((decay + h) / h**2 - 0.5) * slopes[1]
    return made.table(f"DPM-Solver++ {order}M", x)


def uni_pc(sampler: Sampler, states: Sequence[State], order: int = 2) -> Table:
    """UniPC (Zhao et al. 2023), B(h) = exp(h) - 1, data prediction: every evaluation corrects the
    state that it was made at, and the next step starts from the corrected one."""
    made = UnitVectors(sampler, states)
    count, x, carried, used = len(made.states), made.units[0], made.units[0], 0
    for at, after in enumerate(made.levels[1:]):
        made.evaluate(x)
        if at:
            carried = _uni_step(made, carried, at - 1, made.levels[at], used, made.values[at][0])
        used = min(order, count - at, at + 1)
        x = _uni_step(made, carried, at, after, used, None)
    return made.table(f"UniPC {order}", x)


def _uni_step(
    made: UnitVectors, x: FloatArray, at: int, after: State, order: int, arrived: FloatArray | None
) -> FloatArray:
    """UniP from anchor ``at`` to a level, or UniC where the clean sample there is known."""
    now, clean = made.states[at], made.values[at][0]
    decay = after.noise * now.signal / (now.noise * after.signal) - 1.0
    base = after.noise / now.noise * x - after.signal * decay * clean
    h = _log_snr(after) - _log_snr(now)
    past = range(1, order)
    ratios = [(_log_snr(made.states[at - back]) - _log_snr(now)) / h for back in past]
    slopes = [
        (made.values[at - back][0] - clean) / ratio
        for back, ratio in zip(past, ratios, strict=True)
    ]
    if arrived is not None:
        slopes, ratios = [*slopes, arrived - clean], [*ratios, 1.0]
    if not slopes:
        return base
    if len(slopes) == 1:  # both have the simplified weight of the authors' code
        return base - after.signal * decay * 0.5 * slopes[0]
    matrix = np.vander(ratios, increasing=True).T
    phi, factor, right = decay / -h - 1.0, 1.0, []
    for power in range(1, len(slopes) + 1):
        right.append(phi * factor / decay)
        factor *= power + 1
        phi = phi / -h - 1.0 / factor
    weights = np.linalg.solve(matrix, np.array(right))
    slope: FloatArray = weights @ np.array(slopes)
    return base - after.signal * decay * slope


def _log_snr(state: State) -> float:
    return math.log(state.signal / state.noise) if state.noise > 0.0 else math.inf


def _ratio(sampler: Sampler, level: State) -> tuple[float, float]:
    """Variable in which the sampler's equation has the noise (of a flow: the velocity) as its
    slope, and what the state is divided by there."""
    if sampler.flow:
        return level.noise, 1.0
    return level.noise / level.signal, level.signal


def _slope(made: UnitVectors, at: int) -> FloatArray:
    clean, noise = made.values[at]
    return noise - clean if made.sampler.flow else noise


def adams(sampler: Sampler, states: Sequence[State], order: int = 2) -> Table:
    """Adams-Bashforth with variable steps: the polynomial through the last slopes, integrated."""
    made = UnitVectors(sampler, states)
    x = made.units[0]
    for at in range(len(made.states)):
        made.evaluate(x)
        (here, scale), (there, rescale) = (_ratio(sampler, made.levels[at + i]) for i in (0, 1))
        used = range(max(0, at + 1 - order), at + 1)
        nodes = np.array([_ratio(sampler, made.states[place])[0] for place in used])
        points, shares = np.polynomial.legendre.leggauss(order)
        at_points = here + (points + 1.0) / 2.0 * (there - here)
        weights = shares / 2.0 * (there - here) @ interpolation_weights(nodes, at_points)
        moved = sum(w * _slope(made, place) for w, place in zip(weights, used, strict=True))
        x = rescale * (x / scale + moved)
    return made.table(f"Adams-Bashforth {order}", x)


def heun(sampler: Sampler, states: Sequence[State]) -> Table:
    """Heun's method as in Karras et al. (2022): two evaluations a step, one in the last. The states
    come once each; all but the first are evaluated twice."""
    doubled = [states[0], *(state for state in states[1:] for _ in (0, 1))]
    made = UnitVectors(sampler, doubled)
    x = made.units[0]
    for place in range(len(states)):
        at = 2 * place
        made.evaluate(x)
        last = place == len(states) - 1
        level = made.levels[-1] if last else states[place + 1]
        (here, scale), (there, rescale) = (_ratio(sampler, each) for each in (states[place], level))
        guess = rescale * (x / scale + (there - here) * _slope(made, at))
        if last:
            x = guess
            continue
        made.evaluate(guess)
        mean = 0.5 * (_slope(made, at) + _slope(made, at + 1))
        x = rescale * (x / scale + (there - here) * mean)
    return made.table("Heun", x)


class Method(NamedTuple):
    """A way to fill a table, as the search tries it."""

    group: str  # what a user would call it: fewsteps, dpmsolver, unipc, ..., forecast
    build: Callable[[Sampler, Sequence[State]], Table]
    on_grid: bool  # evaluates at the sampler's own steps only
    twice: bool = False  # evaluates every state but the first two times


def methods(sampler: Sampler) -> dict[str, Method]:
    """Every method that fits a sampler, by a short name."""
    found = {"fewsteps": Method("fewsteps", few_steps, sampler.stochastic)}
    if not sampler.flow:
        for order in (2,) if sampler.stochastic else (2, 3):
            build = partial(dpm_solver, order=order)
            found[f"dpmsolver-{order}"] = Method("dpmsolver", build, sampler.stochastic)
    if not (sampler.flow or sampler.stochastic):
        for order in (1, 2, 3):
            found[f"unipc-{order}"] = Method("unipc", partial(uni_pc, order=order), False)
    visible = min(step.signal for step in sampler.steps) > 0.0
    if not sampler.stochastic:
        if sampler.flow or visible:
            for order in (2, 3):
                found[f"adams-{order}"] = Method("adams", partial(adams, order=order), False)
            found["heun"] = Method("heun", heun, False, twice=True)
        for order in (1, 2):
            if sampler.kind != "epsilon" or visible:
                found[f"taylor-{order}"] = Method("taylor", partial(taylor, order=order), True)
    for quantity in ("sample",) if sampler.stochastic else sampler.kinds:
        if quantity == "epsilon" and not visible:
            continue
        for order in (0, 1, 2, 3):
            for look_back in (False, True):
                if look_back and sampler.clip is not None and quantity != "sample":
                    continue  # looking back on a clipped noise is not linear
                build = partial(forecast, quantity=quantity, order=order, look_back=look_back)
                name = f"{quantity}-{order}{'-back' if look_back else ''}"
                found[name] = Method("forecast", build, True)
    return found
