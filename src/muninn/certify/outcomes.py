"""Outcomes: whole episodes that a program drives, each with a score that a user cares about."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from muninn.certify.lockstep import run_together
from muninn.certify.paired import Runtimes, call_seed
from muninn.certify.units import (
    PlanFunction,
    require_arithmetic,
    require_form,
    require_one_row,
)
from muninn.context import Context, concatenate, form, select
from muninn.errors import InputError
from muninn.identity.arithmetic import arithmetic
from muninn.identity.digest import digest
from muninn.model.planner import Noise, Planner
from muninn.programs.plan import AnyProgram

Promise = Literal["harm", "mean"]
Stream = Literal["tune", "certify", "test", "other noise"]
STREAMS: dict[Stream, int] = {"tune": 4, "certify": 5, "test": 6, "other noise": 7}
"""What episodes are for; no world and no noise serves two purposes."""


@dataclass(frozen=True)
class Outcomes:
    """Episodes whose outcome is promised, for :func:`muninn.calibrate`.

    Attributes:
        run: ``run(plan, seed) -> score`` drives one episode from a seed, calls ``plan(context)``
            (one row in, one row out) whenever the robot plans, and returns its score, or whether
            it succeeded.
        count: episodes to certify with, driven by full compute and by each program in turn.
        promise: ``harm``: the score falls by more than ``margin`` in at most a share ``risk`` of
            episodes. ``mean``: the mean score falls by at most ``margin``.
        margin: in units of the score.
        low, high: range of the score.
        together: episodes that run in lockstep, each in a thread of its own, so that their plans
            share batches.
        tune: episodes besides, to tune with.
        time_limit: seconds after which an episode, or those of one lockstep, is an error.
    """

    run: Callable[[PlanFunction, int], Any]
    count: int
    promise: Promise = "harm"
    margin: float = 0.0
    low: float = 0.0
    high: float = 1.0
    together: int = 1
    tune: int = 64
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.run):
            raise InputError("run is a function (plan, seed) -> score")
        if self.promise not in ("harm", "mean"):
            raise InputError(f"promise is 'harm' or 'mean', got {self.promise!r}")
        for name, fewest in (("count", 1), ("together", 1), ("tune", 8)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < fewest:
                raise InputError(f"{name} is a whole number from {fewest} on")
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(f"scores lie between low < high, got {self.low} and {self.high}")
        if not 0.0 <= self.margin < self.high - self.low or (
            self.promise == "mean" and self.margin == 0.0
        ):
            least = "above 0 (no number of episodes proves 0)" if self.promise == "mean" else "0"
            raise InputError(
                f"margin must be {least} or more, and below the range of scores "
                f"({self.high - self.low:g}); got {self.margin}"
            )
        if self.time_limit is not None and not self.time_limit > 0.0:
            raise InputError(f"time_limit is a number of seconds above 0, got {self.time_limit}")

    def checked(self, score: Any, seed: int) -> float:
        """A score as a number, or an InputError that names its episode."""
        try:
            value = float(score)
        except (TypeError, ValueError) as error:
            raise InputError(f"run() returned {score!r:.60} for seed {seed}, no number") from error
        if not self.low <= value <= self.high:  # NaN, too
            raise InputError(
                f"run() returned {value} for seed {seed}, outside of {self.low:g} to "
                f"{self.high:g}; give the true range as low= and high=, or clip the score"
            )
        return value


@dataclass(frozen=True)
class Scored:
    """One episode under one program."""

    score: float
    evaluations: list[int]  # of the denoiser, one number a call
    estimate: list[float]  # accumulated error estimate of each call


@dataclass(eq=False)
class OutcomeUnits:
    """Numbered episodes that any program can drive; the same world and noise for all of them."""

    planner: Planner
    outcomes: Outcomes
    seed: int
    form: dict[str, Any] | None = None  # of every context, known after the examples
    batches: bool = True  # whether rows may be planned together
    met: list[Context] | None = None  # where contexts are kept, if they are wanted
    loop: ClassVar[str] = "closed"
    known: dict[int, Tensor] = field(default_factory=dict)  # stays empty: there are no plans

    def __post_init__(self) -> None:
        self._arithmetic = arithmetic(self.planner.device)
        self._runtimes = Runtimes(self.planner)

    @property
    def chunk(self) -> int:
        """Episodes that are run together."""
        return self.outcomes.together

    def measure(self, program: AnyProgram, stream: Stream, episodes: Sequence[int]) -> list[Scored]:
        """Some episodes of a stream, driven by a program.

        Those of ``other noise`` are the worlds of ``tune`` again.
        """
        worlds = STREAMS["tune" if stream == "other noise" else stream]
        seeds = [call_seed(self.seed, worlds, episode) for episode in episodes]
        spent: list[list[int]] = [[] for _ in episodes]
        estimates: list[list[float]] = [[] for _ in episodes]

        def answer(places: list[int], contexts: list[Context]) -> Sequence[Tensor]:
            noises = [
                call_seed(self.seed, STREAMS[stream], episodes[place], 1, len(spent[place]))
                for place in places
            ]
            plans, evaluations, estimate = self._planned(program, contexts, noises)
            for place, own, error in zip(places, evaluations, estimate, strict=True):
                spent[place].append(own)
                estimates[place].append(error)
            return plans

        scores = run_together(self._drive, seeds, answer, time_limit=self.outcomes.time_limit)
        for seed, own in zip(seeds, spent, strict=True):
            if not own:
                raise InputError(f"the episode of seed {seed} ended without planning; check run()")
        checked = map(self.outcomes.checked, scores, seeds)
        return [Scored(*each) for each in zip(checked, spent, estimates, strict=True)]

    def _drive(self, ask: PlanFunction, seed: int) -> Any:
        """One episode; contexts are copied, since simulators reuse their buffers."""

        def plan(context: Context) -> Tensor:
            require_one_row(context)
            return ask(select(context, torch.arange(1, device="cpu")))

        return self.outcomes.run(plan, seed)

    def _planned(
        self, program: AnyProgram, contexts: list[Context], seeds: list[int]
    ) -> tuple[list[Tensor], list[int], list[float]]:
        """Plans of some calls, a row each, their evaluations and error estimates."""
        require_arithmetic(self._arithmetic, self.planner)
        for context in contexts:
            require_form(self.form, context)
        if self.met is not None:
            self.met += contexts
        together = self.batches or len(contexts) == 1
        parts = [contexts] if together else [[context] for context in contexts]
        plans, evaluations, estimate, at = list[Tensor](), list[int](), list[float](), 0
        for part in parts:
            noise = self.planner.draw_noise(seeds=seeds[at : at + len(part)])
            at += len(part)
            made, record = self._runtimes[program](concatenate(part), noise=noise)
            plans += [row[None] for row in made]
            evaluations += record.evaluations.tolist()
            estimate += record.estimate.tolist()
        return plans, evaluations, estimate

    def identity(self) -> dict[str, Any]:
        """The episodes, with all that their driver reads, JSON-ready, for the journal.

        More episodes prove a mean as well: their number is part of a promise of harm only.
        """
        own = self.outcomes
        fixed = own.count if own.promise == "harm" else None
        return {"run": digest(own.run, "run"), "count": fixed, "together": own.together}

    def examples(self, count: int) -> tuple[Context, Noise]:
        """Contexts of one more episode, driven by full compute; repeated where they are few."""
        met: list[Context] = []

        def answer(_: list[int], contexts: list[Context]) -> Sequence[Tensor]:
            met.extend(contexts)
            noise = self.planner.draw_noise(seeds=[call_seed(self.seed, 3, len(met))])
            return [self.planner.sample(contexts[0], noise=noise)]

        world = call_seed(self.seed, 3, 0, 0)
        run_together(self._drive, [world], answer, time_limit=self.outcomes.time_limit)
        if not met:
            raise InputError("an episode ended without planning once; check run()")
        self.form = form(met[0])
        chosen = [met[place % len(met)] for place in range(count)]
        seeds = [call_seed(self.seed, 3, 1, place) for place in range(count)]
        return concatenate(chosen), self.planner.draw_noise(seeds=seeds)
