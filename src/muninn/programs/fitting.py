"""Fit a table to this network and this sampler: least squares on the states it reaches itself.

Row by row: the calls are carried to an anchor by the rows fitted so far, the network is evaluated
there, and the next row is corrected so that its state comes close to the one that full compute has
at that step. What is fitted is a correction of a base table, with a ridge towards zero; calls that
leave for another route would own a sum of squares, so the worst are dropped and the row is
fitted again. How strong the ridge is, whether channels get weights of their own, and whether a row
is corrected at all is decided on calls that are not fitted on. No gradient of the network is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.programs.own_noise import propagated, sum_dtype
from muninn.programs.spacing import State
from muninn.programs.table import Table, steps_of

View = Callable[[Tensor], Tensor]
"""What a metric looks at: an affine function of trajectories (batch, ...)."""

RIDGES = (1e-1, 1e-2, 1e-3, 1e-5, 1e-7)
"""Tried for every row, in shares of the features' mean square."""

TRIMMED = 0.05
ROUNDS = 3
MOST_CHANNELS, MOST_FEATURES = 16, 24
"""Beyond which channels get no weights of their own."""

WORTH = 0.9
"""Weights per channel must lower the squared error of held-out calls at least to this share: small
gains in the middle were paid for in the tail."""

REMEMBERED = 96
"""Anchors whose calls are kept, each with two states a call."""

FEWEST = 8
"""Finite calls below which nothing is fitted."""

ROUNDING = 16.0
"""Units in the last place below which an error is rounding: nothing is fitted to it."""


def overwritten(planner: Planner, context: Context) -> Tensor | None:
    """Entries (*shape) that the planner's condition sets, whatever the state; None if it changes
    others, as a projection does: then the states of a table would not be the loop's."""
    mask = torch.zeros(planner.shape, dtype=torch.bool, device=planner.device)
    if planner.condition is None:
        return mask
    generator = torch.Generator(planner.device).manual_seed(0)
    one = select(context, torch.zeros(1, dtype=torch.long, device="cpu"))
    before = [
        torch.randn(1, *planner.shape, generator=generator, device=planner.device).to(planner.dtype)
        for _ in (0, 1)
    ]
    after = [planner.condition(state.clone(), one) for state in before]
    kept = (after[0] == before[0]) & (after[1] == before[1])
    set_ = after[0] == after[1]
    return None if not bool((kept | set_).all()) else (set_ & ~kept)[0]


class _Reached(NamedTuple):
    """Calls that were carried to an anchor, before it is evaluated."""

    x: Tensor  # states there
    values: tuple[Tensor, ...]  # clean samples so far, then raw noises
    noises: tuple[Tensor, ...]
    rows: tuple[FloatArray, ...]  # fitted, (channels, features so far)
    noise_weights: tuple[float, ...]


@dataclass
class Fitter:
    """Fits tables on calls of one planner; ``fit`` of them are fitted on, the others judge.

    Anchors that are shared with an earlier fit are not evaluated again.
    """

    planner: Planner
    context: Context
    noise: Noise
    chain: Tensor  # full compute before every step and at the end, (steps + 1, calls, ...)
    fit: int
    view: View | None = None
    batch: int = 256
    _known: dict[tuple[object, ...], _Reached] = field(default_factory=dict)

    def __post_init__(self) -> None:
        free = overwritten(self.planner, self.context)
        if free is None:
            raise InputError("the planner's condition changes entries that it does not overwrite")
        self.free = ~free
        finite = torch.isfinite(self.chain).flatten(2).all(dim=2).all(dim=0)
        self.usable = finite.cpu().numpy()
        if self.usable[: self.fit].sum() < FEWEST:
            raise InputError(
                f"{int(self.usable[: self.fit].sum())} finite calls are too few to fit a table; "
                f"give at least {FEWEST}"
            )

    @cached_property
    def _own_noise(self) -> list[Tensor]:
        return propagated(self.planner.sampler, self.noise)

    def __call__(self, base: Table) -> tuple[Table, Tensor]:
        """The fitted table, and the trajectories (calls, ...) that it gives."""
        sampler, count = self.planner.sampler, len(base.states)
        steps = [*steps_of(sampler, base.states), len(sampler)]
        weights = base.array
        raw = weights.shape[2] > 1 + count
        reached = _Reached(self.planner.start(self.noise, self.context), (), (), (), ())
        key: tuple[object, ...] = (base.noise,)
        for at in range(count):
            row = weights[:, at, : 2 + at]
            if raw:
                row = np.concatenate([row, weights[:, at, 1 + count : 2 + count + at]], axis=1)
            key = (*key, base.states[at], steps[at + 1], row.tobytes())
            if key not in self._known:
                step = steps[at + 1]
                noise = self._own_noise[step - 1] if sampler.stochastic and step else None
                self._known[key] = self._next(reached, base, at, row, noise, step, raw)
                if len(self._known) > REMEMBERED:
                    del self._known[next(iter(self._known))]
            reached = self._known[key]
        channels = max(len(row) for row in reached.rows)
        fitted = np.zeros((channels, count, weights.shape[2]))
        for at, row in enumerate(reached.rows):
            fitted[:, at, : 2 + at] = row[:, : 2 + at]
            if raw:
                fitted[:, at, 1 + count : 2 + count + at] = row[:, 2 + at :]
        table = Table(
            f"fitted, from {base.method}",
            base.states,
            fitted.tolist(),  # type: ignore[arg-type]
            reached.noise_weights,
        )
        return table, reached.x

    def _next(
        self,
        reached: _Reached,
        base: Table,
        at: int,
        row: FloatArray,
        noise: Tensor | None,
        step: int | None,
        raw: bool,
    ) -> _Reached:
        """Evaluate at an anchor and carry the calls to the next, on a corrected row."""
        clean, epsilon = self.evaluate(reached.x, base.states[at], self.context)
        values = (*reached.values, clean)
        noises = (*reached.noises, epsilon) if raw else ()
        features = [self.noise.initial.to(clean.dtype), *values, *noises]
        weight = base.noise[at]
        if noise is not None:
            features.append(noise)
            row = np.concatenate([row, np.full((len(row), 1), weight)], axis=1)
        state = combine(row, features)
        if step is not None:
            last = at == len(base.states) - 1
            row = row + self._correction(features, state, self.chain[step], last)
            state = combine(row, features)
        if noise is not None:
            weight, row = float(row[:, -1].mean()), row[:, :-1]
        state = state.to(self.planner.dtype)
        if self.planner.condition is not None:
            state = self.planner.condition(state.clone(), self.context)
        rows = (*reached.rows, row)
        return _Reached(state, values, noises, rows, (*reached.noise_weights, weight))

    @torch.no_grad()
    def evaluate(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, Tensor]:
        """Clean sample and raw noise of calls at an anchor."""
        planner = self.planner
        kind = torch.float32 if planner.sampler.flow else torch.long
        found = []
        for first in range(0, len(x), self.batch):
            rows = torch.arange(first, min(first + self.batch, len(x)), device="cpu")
            part = x[rows.to(x.device)].clone()
            times = torch.full((len(part),), state.timestep, dtype=kind, device=planner.device)
            found.append(planner.denoiser(part, times, select(context, rows)))
        exact = sum_dtype(planner.dtype)
        prediction, before = torch.cat(found).to(exact), x.to(exact)
        (sample_x, sample_p), (noise_x, noise_p) = planner.sampler.estimates(state)
        clean = (
            sample_p * prediction if sample_x == 0.0 else sample_x * before + sample_p * prediction
        )
        if planner.sampler.clip is not None:
            clean = clean.clamp(-planner.sampler.clip, planner.sampler.clip)
        return clean, noise_x * before + noise_p * prediction

    def _correction(
        self, features: list[Tensor], state: Tensor, target: Tensor, last: bool
    ) -> FloatArray:
        """What is added to a row, (1 or channels, features): the best on held-out calls."""
        error = target.to(state.dtype) - state
        parts = [part * self.free for part in (*features, error)]
        if last and self.view is not None:
            origin = self.view(torch.zeros_like(error))
            parts = [self.view(part) - origin for part in parts]
            if not _keeps_channels(self.view, error):
                parts = [part[..., None] for part in parts]
        columns = [part[:, None].flatten(1, -2).transpose(1, 2) for part in parts]
        stacked = torch.stack(columns, dim=2).double()  # (calls, channels, features + 1, ...)
        gram = (stacked @ stacked.transpose(2, 3)).cpu().numpy()
        finite = self.usable & np.isfinite(gram).all(axis=(1, 2, 3))
        gram = np.where(finite[:, None, None, None], gram, 0.0)
        fitted, judges = finite.copy(), finite.copy()
        fitted[self.fit :], judges[: self.fit] = False, False
        if not judges.any():
            judges = fitted
        size = gram.shape[-1] - 1
        if fitted.sum() < FEWEST:
            return np.zeros((1, size))
        whole = gram.sum(axis=1, keepdims=True)
        best, least = np.zeros((1, size)), trimmed(_errors(whole, np.zeros((1, size)))[judges])
        scale = np.einsum("cdff->c", whole[:, :, :size, :size])[judges].mean() / size
        floor = (ROUNDING * torch.finfo(self.planner.dtype).eps) ** 2 * scale
        if least <= floor:
            return best
        at = 0
        for place, ridge in enumerate(RIDGES):
            delta = solve(whole, fitted, ridge)
            error_left = trimmed(_errors(whole, delta)[judges])
            if error_left < least:
                best, least, at = delta, error_left, place
        apart = 1 < gram.shape[1] <= MOST_CHANNELS and size <= MOST_FEATURES
        if apart and least > floor and not self.planner.sampler.stochastic:
            for ridge in RIDGES[at : at + 2]:  # more weights need no weaker ridge
                delta = solve(gram, fitted, ridge)
                error_left = trimmed(_errors(gram, delta)[judges])
                if error_left < WORTH * least:
                    best, least = delta, error_left
        return best


def _keeps_channels(view: View, like: Tensor) -> bool:
    """Whether each channel of what is seen depends on the same channel of the plan alone."""
    generator = torch.Generator(like.device).manual_seed(0)
    plan = torch.randn(1, *like.shape[1:], generator=generator, device=like.device).to(like.dtype)
    origin = view(torch.zeros_like(plan))
    if plan.shape[-1] > MOST_CHANNELS or origin.ndim < 2 or origin.shape[-1] != plan.shape[-1]:
        return False
    for channel in range(plan.shape[-1]):
        alone = torch.zeros_like(plan)
        alone[..., channel] = plan[..., channel]
        seen = view(alone) - origin
        seen[..., channel] = 0.0
        if bool(seen.any()):
            return False
    return True


def combine(row: FloatArray, features: list[Tensor]) -> Tensor:
    """``sum_f row[f] * feature[f]``, with weights per channel where there are several."""
    weights = torch.tensor(row, dtype=features[0].dtype, device=features[0].device)
    total = features[0] * weights[:, 0]
    for place, feature in enumerate(features[1:], start=1):
        total.addcmul_(feature, weights[:, place].expand(feature.shape[-1]))
    return total


def _errors(gram: FloatArray, delta: FloatArray) -> FloatArray:
    """Squared error of each call, (calls,), after a correction (channels, features)."""
    full = np.concatenate([delta, np.full((len(delta), 1), -1.0)], axis=1)
    pairs = full[:, :, None] * full[:, None, :]
    return np.asarray((gram.reshape(len(gram), -1) @ pairs.ravel()).clip(0.0))


def trimmed(errors: FloatArray) -> float:
    """Mean of the errors without the worst."""
    kept = np.sort(errors)[: max(1, round((1.0 - TRIMMED) * len(errors)))]
    return float(kept.mean()) if len(kept) else np.inf


def solve(gram: FloatArray, calls: npt.NDArray[np.bool_], ridge: float) -> FloatArray:
    """Ridge regression of the last feature on the others, per channel, without the worst calls."""
    size, flat = gram.shape[-1] - 1, gram.reshape(len(gram), -1)
    kept = calls
    for _ in range(ROUNDS):
        total = (kept.astype(float) @ flat).reshape(gram.shape[1:])
        inner, cross = total[:, :size, :size], total[:, :size, size]
        level = ridge * np.einsum("dff->d", inner)[:, None, None] / size + 1e-300
        delta = np.linalg.solve(inner + level * np.eye(size), cross[..., None])[..., 0]
        errors = _errors(gram, delta)
        kept = calls & (errors <= np.quantile(errors[calls], 1.0 - TRIMMED))
    return np.asarray(delta)
