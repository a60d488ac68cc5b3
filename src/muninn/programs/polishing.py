"""Polish a fitted table: move all of its weights together, so that the result comes closer.

A row is fitted to the state that full compute has at the next anchor; what counts is the result.
Each weight is moved a little and the rest of the program run, which tells how the result follows
it: no gradient of the network is taken. One damped Gauss-Newton step is made, without the worst
calls, and kept where it lowers the error of calls that it was not made from. Its damping is chosen
on those calls, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context, select
from muninn.model.planner import Noise
from muninn.model.schedule import FloatArray
from muninn.programs.fitting import FEWEST, Fitter, combine, solve, trimmed
from muninn.programs.own_noise import propagated, sum_dtype
from muninn.programs.table import Table, steps_of

MOVED = 3e-3
"""By how much a weight is moved: far above single precision's rounding, far below a weight."""

DAMPINGS = (1e-2, 1e-3, 1e-4, 1e-5)
"""In shares of the mean square of what the weights move."""

MOST_NUMBERS = 5e7
"""Numbers of a response that are held at once: calls, weights and entries of a plan."""


class _Calls(NamedTuple):
    """Some calls, and full compute's result."""

    context: Context
    noise: Noise
    own: list[Tensor]  # of the sampler, in its states
    truth: Tensor


class _Ready(NamedTuple):
    """Calls before an anchor is evaluated."""

    x: Tensor
    values: tuple[Tensor, ...] = ()
    noises: tuple[Tensor, ...] = ()


class _Polish:
    """One table on the calls of a fitter."""

    def __init__(self, fitter: Fitter, table: Table) -> None:
        self.fitter, self.table = fitter, table
        self.planner, self.count = fitter.planner, len(table.states)
        self.raw = table.array.shape[2] > 1 + self.count
        end = len(self.planner.sampler)
        self.steps = [*steps_of(self.planner.sampler, table.states)[1:], end]

    def rows(self) -> list[FloatArray]:
        """The weights of each state, (channels, features), that of the sampler's noise last."""
        weights, found = self.table.array, []
        for at, own in enumerate(self.table.noise):
            parts = [weights[:, at, : 2 + at]]
            if self.raw:
                parts.append(weights[:, at, 1 + self.count : 2 + self.count + at])
            if self.planner.sampler.stochastic:
                parts.append(np.full((len(weights), 1), own))
            found.append(np.concatenate(parts, axis=1))
        return found

    def made(self, rows: list[FloatArray]) -> Table:
        """The table of such rows."""
        weights, noise = np.zeros_like(self.table.array), list(self.table.noise)
        for at, row in enumerate(rows):
            weights[:, at, : 2 + at] = row[:, : 2 + at]
            if self.raw:
                weights[:, at, 1 + self.count : 2 + self.count + at] = row[:, 2 + at : 3 + 2 * at]
            if self.planner.sampler.stochastic:
                noise[at] = float(row[:, -1].mean())
        return Table(
            f"{self.table.method}, polished",
            self.table.states,
            weights.tolist(),
            tuple(noise),
        )

    def parts(self, weights: int) -> list[_Calls]:
        """The calls, as many together as there is room for what so many weights move."""
        fitter = self.fitter
        truth = fitter.chain[-1]
        room = int(MOST_NUMBERS / (weights * truth[0].numel()))
        found = []
        for rows in torch.arange(len(truth), device="cpu").split(max(1, min(room, fitter.batch))):  # type: ignore[no-untyped-call]
            noise = fitter.noise.select(rows)
            own = propagated(self.planner.sampler, noise)
            here = truth[rows.to(truth.device)]
            found.append(_Calls(select(fitter.context, rows), noise, own, here))
        return found

    def features(self, calls: _Calls, ready: _Ready, at: int) -> tuple[list[Tensor], _Ready]:
        """What a state is a sum of, after an evaluation at an anchor."""
        clean, epsilon = self.fitter.evaluate(ready.x, self.table.states[at], calls.context)
        values = (*ready.values, clean)
        noises = (*ready.noises, epsilon) if self.raw else ()
        found = [calls.noise.initial.to(clean.dtype), *values, *noises]
        if self.planner.sampler.stochastic:
            step = self.steps[at]
            found.append(calls.own[step - 1] if step else torch.zeros_like(clean))
        return found, _Ready(ready.x, values, noises)

    def settled(self, calls: _Calls, state: Tensor) -> Tensor:
        """A state as the planner keeps it."""
        state = state.to(self.planner.dtype)
        if self.planner.condition is not None:
            state = self.planner.condition(state.clone(), calls.context)
        return state

    def result(
        self, calls: _Calls, rows: list[FloatArray], ready: _Ready, first: int = 0
    ) -> tuple[Tensor, list[tuple[list[Tensor], _Ready]]]:
        """The result from an anchor on, and what stood before each later state."""
        passed = []
        for at in range(first, self.count):
            features, ready = self.features(calls, ready, at)
            x = self.settled(calls, combine(rows[at], features))
            ready = ready._replace(x=x)
            passed.append((features, ready))
        return ready.x, passed

    def seen(self, calls: _Calls, result: Tensor) -> Tensor:
        """What the metric sees of the distance to full compute, (calls, entries)."""
        exact = sum_dtype(self.planner.dtype)
        apart = (calls.truth.to(exact) - result.to(exact)) * self.fitter.free
        if self.fitter.view is not None:
            apart = self.fitter.view(apart) - self.fitter.view(torch.zeros_like(apart))
        return apart.flatten(1).double()

    def start(self, calls: _Calls) -> _Ready:
        return _Ready(self.planner.start(calls.noise, calls.context))

    def run(self, rows: list[FloatArray]) -> tuple[Tensor, FloatArray]:
        """Results of all calls, and their squared errors."""
        results, errors = [], []
        for calls in self.parts(1):
            result, _ = self.result(calls, rows, self.start(calls))
            results.append(result)
            errors.append(self.seen(calls, result).square().sum(dim=1))
        return torch.cat(results), np.nan_to_num(torch.cat(errors).cpu().numpy(), nan=np.inf)

    def gram(self, rows: list[FloatArray]) -> FloatArray:
        """Products of how the result follows each weight, and of its error, for every call."""
        found = []
        for calls in self.parts(1 + sum(row.shape[1] for row in rows)):
            result, passed = self.result(calls, rows, self.start(calls))
            error = self.seen(calls, result)
            moves = []
            for at, (features, ready) in enumerate(passed):
                for feature in features:
                    x = ready.x + MOVED * feature.to(ready.x.dtype)
                    x = self.settled(calls, x)
                    moved, _ = self.result(calls, rows, ready._replace(x=x), at + 1)
                    moves.append((error - self.seen(calls, moved)) / MOVED)
            stacked = torch.stack([*moves, error], dim=1)
            found.append((stacked @ stacked.transpose(1, 2)).cpu().numpy())
        return np.concatenate(found)[:, None]


@torch.no_grad()
def polished(fitter: Fitter, table: Table) -> tuple[Table, Tensor]:
    """The table with all its weights moved, and the trajectories (calls, ...) that it gives; the
    table itself where that brings calls that are not fitted on no closer."""
    polish = _Polish(fitter, table)
    rows = polish.rows()
    best, errors = polish.run(rows)
    fitted, judges = fitter.usable.copy(), fitter.usable.copy()
    fitted[fitter.fit :], judges[: fitter.fit] = False, False
    found, least = table, trimmed(errors[judges])
    # Half precision rounds the result by more than a weight's small move changes it.
    coarse = torch.finfo(fitter.planner.dtype).eps > MOVED / 100
    if coarse or not judges.any():
        return found, best
    gram = polish.gram(rows)
    fitted &= np.isfinite(gram.reshape(len(gram), -1)).all(axis=1)
    if fitted.sum() < FEWEST:
        return found, best
    gram = np.where(fitted[:, None, None, None], gram, 0.0)
    ends = np.cumsum([row.shape[1] for row in rows])
    for damping in DAMPINGS:
        delta = solve(gram, fitted, damping)
        moved = [
            row + delta[:, end - row.shape[1] : end] for row, end in zip(rows, ends, strict=True)
        ]
        results, errors = polish.run(moved)
        if trimmed(errors[judges]) < least:
            found, best, least = polish.made(moved), results, trimmed(errors[judges])
    return found, best
