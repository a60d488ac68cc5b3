"""What stands in for an evaluation: forecasts of the prediction, and look-back.

A forecast is a weighted sum of the evaluated predictions, and its weights depend on step numbers
alone. :class:`Forecast` is the polynomial through the last k + 1 of them, in a variable in which
predictions are smooth: the angle ``atan2(noise, signal)`` of a diffusion, the time of a flow.

Look-back: once an evaluation after a gap arrives, the gap is replayed from the last evaluated
state with *interpolated* predictions, and sampling goes on from the corrected state.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.kinds import Part

ORDERS = (0, 1, 2, 3)

GapWeights = tuple[tuple[float, ...], ...]
"""One row per step of a gap, one weight per node, aligned with the newest nodes."""


class Forecaster(Protocol):
    """What an engine needs of a forecast that is bound to a sampler. Holds no state of any run.

    ``nodes`` are the evaluated steps of one trajectory, oldest first, at most ``memory`` of them.
    """

    memory: int

    def extrapolate(self, nodes: tuple[int, ...], until: int) -> GapWeights:
        """Weights of the forecast of each step after the last node, before ``until``."""

    def interpolate(self, nodes: tuple[int, ...], new: int) -> GapWeights:
        """The same weights once the prediction at step ``new`` is known too."""

    def difference(self, nodes: tuple[int, ...]) -> tuple[float, ...] | None:
        """Weights of the sum whose size scales the error estimate; None with too few nodes."""

    def growth(self, nodes: tuple[int, ...]) -> FloatArray:
        """Estimated error per unit of that size, cumulated over steps, (steps,)."""


class AnyForecast(Part):
    """A forecast of any kind: what an engine needs of it."""

    part, unnamed, kinds = "forecast", "polynomial", {}
    quantity: Kind  # parameterisation in which the forecast lives
    look_back: bool  # whether gaps are replayed with interpolated predictions

    def bind(self, sampler: Sampler, emphasis: float = 0.0) -> Forecaster:
        """The weights for a sampler, or InputError if it does not know the quantity.

        A plan's ``emphasis`` enters the error estimate.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Forecast(AnyForecast, kind="polynomial"):
    """The polynomial through the last evaluated predictions."""

    quantity: Kind
    order: int = 2  # 0 holds the last value (the paper's reuse), 1 is linear, ..., 3 cubic
    look_back: bool = True

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InputError(f"forecast order must be one of {ORDERS}, got {self.order}")

    def __str__(self) -> str:
        return f"{self.quantity}, order {self.order}, look-back {'on' if self.look_back else 'off'}"

    def bind(self, sampler: Sampler, emphasis: float = 0.0) -> Forecaster:
        return _Polynomials(self, sampler, emphasis)


def smooth_variable(sampler: Sampler) -> FloatArray:
    """The variable of the polynomials at each step, (steps,)."""
    if sampler.flow:
        return np.array([step.noise for step in sampler.steps])
    return np.array([math.atan2(step.noise, step.signal) for step in sampler.steps])


def error_weights(sampler: Sampler, quantity: Kind, emphasis: float = 0.0) -> FloatArray:
    """Effect on the final trajectory of a unit error in the prediction of each step, (steps,).

    To first order: with ``ratio = noise / signal``, an epsilon error moves the trajectory by
    ``|ratio - next ratio|``, other quantities by what that means for them; a gate needs no bound.
    ``emphasis`` weighs the first step by ``exp(emphasis)``, the last by 1.
    """
    weights = []
    for step in sampler.steps:
        ratio = step.noise / step.signal if step.signal > 0.0 else math.inf
        after = step.next_noise / step.next_signal if step.next_signal > 0.0 else math.inf
        if quantity == "velocity":
            weights.append(abs(step.noise - step.next_noise))
        elif quantity == "sample":
            weights.append(1.0 - (step.next_noise * step.signal) / (step.next_signal * step.noise))
        elif quantity == "v":
            weights.append(step.signal * abs(ratio - after))
        else:
            weights.append(abs(ratio - after))
    early = 1.0 - np.arange(len(sampler)) / max(len(sampler) - 1, 1)
    return np.array(weights) * np.exp(emphasis * early)


def interpolation_weights(nodes: FloatArray, targets: FloatArray) -> FloatArray:
    """Lagrange weights, (targets, nodes): values at ``targets`` of the polynomial in ``nodes``.

    >>> nodes, targets = np.array([0.0, 1.0, 3.0]), np.array([2.0, 5.0])
    >>> interpolation_weights(nodes, targets) @ (nodes**2 - nodes)
    array([ 2., 20.])
    """
    weights = np.ones((targets.size, nodes.size))
    for i in range(nodes.size):
        for j in range(nodes.size):
            if i != j:
                weights[:, i] *= (targets - nodes[j]) / (nodes[i] - nodes[j])
    return weights


def weighted_sum(weights: tuple[float, ...], values: list[Tensor]) -> Tensor:
    """``sum_j weights[j] * values[j]`` over the newest values, without a matrix product.

    Trajectories are small: a product would wake a thread pool for a few microseconds of work.
    """
    newest = values[len(values) - len(weights) :]
    total = newest[0] * weights[0]
    for weight, value in zip(weights[1:], newest[1:], strict=True):
        total.add_(value, alpha=weight)
    return total


class _Polynomials:
    """The forecaster of :class:`Forecast`: every table of weights is computed once."""

    def __init__(self, forecast: Forecast, sampler: Sampler, emphasis: float) -> None:
        if forecast.quantity not in sampler.kinds:
            raise InputError(
                f"{sampler.name} cannot forecast {forecast.quantity!r}; choose from {sampler.kinds}"
            )
        self.memory = max(forecast.order + 1, 2)
        self._used = forecast.order + 1
        self._variable = smooth_variable(sampler)
        self._error_weights = error_weights(sampler, forecast.quantity, emphasis)
        for method in (self.extrapolate, self.interpolate, self.difference, self.growth):
            setattr(self, method.__name__, functools.lru_cache(maxsize=4096)(method))

    def extrapolate(self, nodes: tuple[int, ...], until: int) -> GapWeights:
        return self._polynomial(nodes[-self._used :], nodes[-1], until)

    def interpolate(self, nodes: tuple[int, ...], new: int) -> GapWeights:
        return self._polynomial((*nodes[-self._used :], new), nodes[-1], new)

    def _polynomial(self, used: tuple[int, ...], after: int, until: int) -> GapWeights:
        gap = np.arange(after + 1, until)
        weights = interpolation_weights(self._variable[list(used)], self._variable[gap])
        return tuple(tuple(row) for row in weights.tolist())

    def difference(self, nodes: tuple[int, ...]) -> tuple[float, ...] | None:
        """Weights of the highest divided difference.

        The forecast of order k has it and that of order k - 1 has not (for order 0: linear
        against hold), up to the polynomial factor in :meth:`growth`.
        """
        at = self._variable[list(nodes[-self.memory :])].tolist()
        if len(at) < 2:
            return None
        return tuple(1.0 / math.prod(here - other for other in at if other != here) for here in at)

    def growth(self, nodes: tuple[int, ...]) -> FloatArray:
        """The embedded error estimate: entry m is the weighted sum of
        ``|forecast_k - forecast_{k-1}|`` over the steps after the last node, up to m.
        """
        degree = min(self.memory, len(nodes)) - 1
        factor = np.ones_like(self._variable)
        for node in nodes[len(nodes) - degree :]:
            factor *= np.abs(self._variable - self._variable[node])
        factor *= self._error_weights
        factor[: nodes[-1] + 1] = 0.0
        return np.cumsum(factor)
