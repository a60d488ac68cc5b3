"""Published samplers and caches as tables.

A method computes with *vectors of weights* instead of trajectories: x_T, every clean sample and
every raw noise is a unit vector, and a step of the method adds such vectors up. What comes out are
the rows of a :class:`muninn.programs.table.Table`. So each function here reads as the algorithm
that its first line names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.forecast import interpolation_weights, smooth_variable
from muninn.programs.spacing import State
from muninn.programs.table import Table, steps_of


class Weights:
    """The unit vectors of a table under construction, and the rows that are finished."""

    def __init__(self, sampler: Sampler, states: Sequence[State]) -> None:
        self.sampler, self.states = sampler, list(states)
        last = sampler.steps[-1]
        self.levels = [*self.states, State(0.0, last.next_signal, last.next_noise)]
        # With noise of its own a sampler's epsilon follows from the clipped x0 in a table, whether
        # or not the sampler keeps the raw one: that noise is propagated with x0 held.
        self.raw = sampler.clip is not None and sampler.keep_epsilon and not sampler.stochastic
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


def few_steps(sampler: Sampler, states: Sequence[State]) -> Table:
    """DDIM (Song et al. 2021), Euler of a flow, or ancestral sampling, with fewer steps."""
    made = Weights(sampler, states)
    x = made.units[0]
    for at, after in enumerate(made.levels[1:]):
        clean, noise = made.evaluate(x)
        if sampler.stochastic:
            x = _held(made, x, at, clean)
        else:
            x = after.signal * clean + after.noise * noise
    return made.table("fewer steps", x)


def _held(made: Weights, x: FloatArray, at: int, clean: FloatArray) -> FloatArray:
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
    made = Weights(sampler, states)
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
    made = Weights(sampler, states)
    count, x, carried, used = len(made.states), made.units[0], made.units[0], 0
    for at, after in enumerate(made.levels[1:]):
        made.evaluate(x)
        if at:
            carried = _uni_step(made, carried, at - 1, made.levels[at], used, made.values[at][0])
        used = min(order, count - at, at + 1)
        x = _uni_step(made, carried, at, after, used, None)
    return made.table(f"UniPC {order}", x)


def _uni_step(
    made: Weights, x: FloatArray, at: int, after: State, order: int, arrived: FloatArray | None
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


def _slope(made: Weights, at: int) -> FloatArray:
    clean, noise = made.values[at]
    return noise - clean if made.sampler.flow else noise


def adams(sampler: Sampler, states: Sequence[State], order: int = 2) -> Table:
    """Adams-Bashforth with variable steps: the polynomial through the last slopes, integrated."""
    made = Weights(sampler, states)
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
    made = Weights(sampler, doubled)
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


def taylor(sampler: Sampler, states: Sequence[State], order: int = 1) -> Table:
    """TaylorSeer-like caching (Liu et al. 2025): between evaluations the network's own output goes
    on as a Taylor series in the step index, its derivatives finite differences."""

    def series(nodes: Sequence[int], targets: FloatArray, closed: bool) -> FloatArray:
        derivatives = np.zeros((order + 1, len(nodes)))
        for place in range(len(nodes)):
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
    made = Weights(sampler, states)
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
