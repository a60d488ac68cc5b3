"""Deviation metrics: how far a cached trajectory is from the full one, in units a user chose."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.schedule import FloatArray

Metric = Callable[..., Tensor]
"""``metric(full, fast) -> (batch,)``, or ``metric(full, fast, context)``: at least 0."""

Judge = Callable[[Tensor, Context], Tensor]
"""``judge(plan, context) -> (batch,)``: whether plans pass a check, or how good they are."""

Tolerance = float | Callable[[Context], Tensor]


def rms_step(full: Tensor, cached: Tensor) -> Tensor:
    """Root-mean-square distance per time step, ``||full - cached||_F / sqrt(horizon)``, (batch,).

    The metric of the paper: all channels count, in the coordinates of the model.

    >>> rms_step(torch.zeros(1, 4, 2), torch.ones(1, 4, 2))
    tensor([1.4142])
    """
    distance: Tensor = torch.linalg.vector_norm((full - cached).flatten(1), dim=1)
    return distance / math.sqrt(full.shape[1])


def max_step(full: Tensor, cached: Tensor) -> Tensor:
    """Largest Euclidean distance at any time step, (batch,)."""
    gap = (full - cached).flatten(2) if full.ndim > 2 else (full - cached)[..., None]
    distance: Tensor = torch.linalg.vector_norm(gap, dim=2)
    return distance.amax(dim=1)


def executed(steps: int, metric: Metric = max_step) -> Metric:
    """A metric that sees only the first ``steps`` time steps, the ones a robot executes."""
    if steps < 1:
        raise InputError(f"an executed prefix needs at least one step, got {steps}")
    chosen = functools.partial(_prefix, steps, metric)
    chosen.__qualname__ = f"executed:{steps}:{metric_name(metric)}"  # type: ignore[attr-defined]
    chosen.view = functools.partial(_first, steps)  # type: ignore[attr-defined]
    return chosen


def _prefix(steps: int, metric: Metric, full: Tensor, cached: Tensor) -> Tensor:
    if full.shape[1] < steps:
        raise InputError(f"the plan has {full.shape[1]} steps, fewer than the prefix {steps}")
    return metric(full[:, :steps], cached[:, :steps])


def _first(steps: int, plans: Tensor) -> Tensor:
    return plans[:, :steps]


def harm(check: Judge) -> Metric:
    """1 where the full plan passes ``check(plan, context)`` and the fast one does not, else 0.

    Free of collisions, within joint limits, reaches the goal: harm is what the fast plan breaks,
    not what full compute breaks as well. Its tolerance is 0.5.

    >>> lifted = harm(lambda plan, context: plan[:, -1, 0] > 0.0)
    >>> full, fast = (
    ...     torch.tensor([[[1.0]], [[1.0]], [[-1.0]]]),
    ...     torch.tensor([[[2.0]], [[-2.0]], [[-2.0]]]),
    ... )
    >>> lifted(full, fast, None)
    tensor([0., 1., 0.])
    """
    return _loss(_harm, "harm", check, 0.5)


def drop(score: Judge) -> Metric:
    """How much ``score(plan, context)`` of the fast plan falls below that of the full one."""
    return _loss(_drop, "drop", score, None)


def _loss(loss: Callable[..., Tensor], name: str, judge: Judge, tolerance: float | None) -> Metric:
    chosen = functools.partial(loss, judge)
    chosen.__qualname__ = f"{name}:{metric_name(judge)}"  # type: ignore[attr-defined]
    chosen.tolerance = tolerance  # type: ignore[attr-defined]
    chosen.tuning = functools.partial(_and_distance, chosen)  # type: ignore[attr-defined]
    return chosen


def _harm(check: Judge, full: Tensor, cached: Tensor, context: Context) -> Tensor:
    passed, still = (check(plan, context).to(torch.bool) for plan in (full, cached))
    return (passed & ~still).to(full.dtype)


def _drop(score: Judge, full: Tensor, cached: Tensor, context: Context) -> Tensor:
    return (score(full, context) - score(cached, context)).clamp_min(0.0)


def _and_distance(loss: Metric, full: Tensor, cached: Tensor, context: Context) -> Tensor:
    """A loss for tuning: of programs that lose nothing the one with closer plans is the better."""
    return loss(full, cached, context) + 1e-6 * torch.tanh(rms_step(full, cached))


def takes_context(metric: Metric) -> bool:
    """Whether a metric wants the context as a third argument."""
    try:
        asked = inspect.signature(metric).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in places and p.default is p.empty for p in asked) > 2


def view_of(metric: Metric) -> Callable[[Tensor], Tensor] | None:
    """What a metric looks at, an affine function of plans: its attribute ``view``; None for all."""
    view = getattr(metric, "view", None)
    return view if callable(view) else None


def tuning_metric(metric: Metric) -> Metric:
    """The metric by which tuning tells programs apart: its attribute ``tuning``, or itself."""
    found: Metric = getattr(metric, "tuning", metric)
    return found


METRICS: dict[str, Metric] = {"rms_step": rms_step, "max_step": max_step}


def metric_name(metric: Callable[..., Tensor]) -> str:
    """The name a certificate records."""
    return getattr(metric, "__qualname__", type(metric).__qualname__)


def in_words(name: str) -> str:
    """The name of a metric, for a person.

    >>> in_words("executed:8:max_step"), in_words("largest_distance_m")
    ('distance at the worst step, of the first 8', 'largest distance, m')
    """
    known = {"rms_step": "root mean square a step", "max_step": "distance at the worst step"}
    if prefix := re.fullmatch(r"executed:(\d+):(\w+)", name):
        return f"{in_words(prefix[2])}, of the first {prefix[1]}"
    if actions := re.fullmatch(r"executed_actions:(\d+)-(\d+)(:within:.*)?", name):
        how = "as a share of their limits" if actions[3] else "in their own units"
        return f"actions {actions[1]} to {actions[2]}, which are executed, {how}"
    words = re.sub("_m$", ", m", name.rpartition(".")[2])  # a unit in a name
    return known.get(name, words.replace("_", " "))


def resolve(metric: str | Metric) -> tuple[str, Metric]:
    """Name and function of ``rms_step``, ``max_step``, ``executed:N`` or anything callable."""
    if callable(metric):
        return metric_name(metric), metric
    if not isinstance(metric, str):
        raise InputError(
            "metric is a name or a callable (full, fast) -> (batch,), with the context as a third "
            f"argument if it wants one; got {metric!r:.60}"
        )
    if metric in METRICS:
        return metric, METRICS[metric]
    prefix = re.fullmatch(r"executed:(\d+)(?::(\w+))?", metric)
    if prefix is not None and (prefix[2] or "max_step") in METRICS:
        chosen = executed(int(prefix[1]), METRICS[prefix[2] or "max_step"])
        return metric_name(chosen), chosen
    raise InputError(
        f"unknown metric {metric!r}; choose from {', '.join(METRICS)}, executed:N, or pass a "
        "callable (full, cached) -> (batch,)"
    )


def measure(metric: Metric, full: Tensor, cached: Tensor, context: Context = None) -> FloatArray:
    """Deviations as float64 (batch,), checked; the context is that of the plans.

    Raises:
        InputError: if the metric returns another shape, NaN, infinity or a negative value.
    """
    given = (full, cached, context) if takes_context(metric) else (full, cached)
    value = one_each("metric", metric(*given), len(full))
    bad = ~np.isfinite(value) | (value < 0.0)
    if bad.any():
        raise InputError(
            f"the metric returned {value[bad][0]} for a call; it must be finite and at least 0"
        )
    return value


def tolerances(tolerance: Tolerance, context: Context, rows: int) -> FloatArray:
    """The tolerance of each call, (rows,), checked to be positive and finite."""
    if not callable(tolerance):
        return np.full(rows, require_tolerance(tolerance))
    value = one_each("tolerance function", tolerance(context), rows)
    if not np.isfinite(value).all() or (value <= 0.0).any():
        raise InputError(
            f"the tolerance function returned {value.min():g}; every tolerance must be finite and "
            "above 0"
        )
    return value


def one_each(what: str, returned: object, rows: int) -> FloatArray:
    """What a user's function returned for some calls, (rows,), or an InputError."""
    # A default device would take a tensor along, so that only other values are converted there.
    found = returned if isinstance(returned, Tensor) else torch.as_tensor(returned, device="cpu")
    value = found.detach().to("cpu", torch.float64).numpy()
    if value.shape != (rows,):
        raise InputError(
            f"the {what} returned shape {value.shape} for {rows} calls; it must return one number "
            "per call, shape (batch,)"
        )
    return np.asarray(value, dtype=np.float64)


def require_tolerance(tolerance: float) -> float:
    """The number, if it is a usable tolerance."""
    if not (np.isfinite(tolerance) and tolerance > 0.0):
        raise InputError(
            f"tolerance must be a finite number above 0 in the units of the metric, got {tolerance}"
        )
    return float(tolerance)
