"""Maze2D from problems to a run folder: compare with the alternatives, keep the raw data.

A run folder holds ``result.json`` (schema: docs/architecture.md), ``calls.safetensors`` (every
array behind it) and, after calibration, the certificate. ``muninn-bench report`` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import resolve
from muninn.certify.paired import PairedCalls, call_seed
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.programs.plan import Family
from muninn.progress import Task, bars
from muninn_bench.measure.alternatives import (
    Alternative,
    AlternativeSearch,
    deviations,
    every_order,
)
from muninn_bench.measure.matched import allowed_share
from muninn_bench.measure.protocol import Outcomes, Success, compare, summarise
from muninn_bench.models import model_file
from muninn_bench.networks.teacher import Teacher
from muninn_bench.tasks.maze2d.maze import MazeProblem, sample_problems
from muninn_bench.tasks.maze2d.planner import maze_contexts, maze_planner

TUNE, CALIBRATE, TEST = 1, 2, 3
"""Streams of problems: split by purpose, so that no call serves two."""

TUNING_CALLS = 96
"""Calls on which the alternatives are tuned."""

SHARE = 0.03
"""Of tuning calls that may exceed a tolerance; the default of :func:`muninn.certify.tune.tune`."""


@dataclass(frozen=True)
class MazeStudy:
    """A teacher, its planner, and reproducible streams of problems.

    Attributes:
        teacher: the network and its coordinates.
        planner: what is cached.
        seed: of every problem and noise.
    """

    teacher: Teacher
    planner: Planner
    seed: int

    @classmethod
    def of(cls, teacher: Teacher, seed: int) -> MazeStudy:
        """The study of a teacher with its standard planner."""
        return cls(teacher, maze_planner(teacher), seed)

    def problems(self, stream: int, count: int) -> list[MazeProblem]:
        """Fresh problems of one purpose."""
        return sample_problems(count, seed=call_seed(self.seed, stream) % 2**31)

    def contexts(self, stream: int, count: int) -> torch.Tensor:
        """Their contexts, (count, 2, 4)."""
        return maze_contexts(self.teacher, self.problems(stream, count))

    def evaluate(
        self,
        certificate: Certificate,
        out: Path,
        *,
        calls: int,
        timed: int,
        drive: bool,
        command: str,
        progress: bool = True,
    ) -> dict[str, Any]:
        """Compare the certified planner with the alternatives on held-out calls; write a folder."""
        if certificate.tolerance is None:
            raise InputError("this study reports one tolerance; certify a number, not a function")
        problems = self.problems(TEST, calls)
        paired = self._paired(TEST, calls, certificate.metric)
        tuning = min(TUNING_CALLS, calls)
        fast = cache(self.planner, certificate)
        with bars(progress) as task:
            outcomes = compare(
                fast,
                paired,
                timed=timed,
                task=task,
                alternatives=lambda count: self._alternatives(count, certificate, tuning, task),
                success=self._success(problems) if drive else None,
            )
        result = summarise(
            fast,
            outcomes,
            certificate.tolerance,
            planner_name="Diffuser on Maze2D-large",
            command=command,
        )
        self._write(out, result, outcomes, problems)
        return result

    def few_step_table(
        self,
        counts: Sequence[int],
        calls: int,
        tolerance: float,
        names: Sequence[str] | None = None,
        progress: bool = True,
    ) -> list[dict[str, Any]]:
        """What the tuned alternatives give on the test calls, one row a method and number of steps.

        With as many evaluations as the sampler has steps there is nothing to tune, and the order
        closest to the sampler would hide what the others show, its step-size error: all are listed.

        Args:
            counts: evaluations of a call.
            calls: to test on; at most :data:`TUNING_CALLS` others are tuned on.
            tolerance: that they are tuned for, at Muninn's share of calls beyond it.
            names: of the alternatives; all by default.
            progress: show progress bars.
        """
        steps = len(self.planner.sampler)
        test = self._paired(TEST, calls, "rms_step")
        tuning = self._paired(TUNE, min(TUNING_CALLS, calls), "rms_step")
        rows: list[dict[str, Any]] = []
        with bars(progress) as task:
            advance = task("tuned alternatives", len(counts))
            for count in counts:
                if count == steps:
                    found = every_order(self.planner, names)
                else:
                    search = AlternativeSearch(tuning, tolerance, SHARE)
                    found = list(search.best(count, names).values())
                rows += [self._few_step_row(one, test, tolerance) for one in found]
                advance(1)
        return rows

    def _few_step_row(
        self, alternative: Alternative, test: PairedCalls, tolerance: float
    ) -> dict[str, Any]:
        deviation = deviations(alternative.run(self.planner), test, test.count)
        return {
            "method": alternative.name,
            "order": alternative.order,
            "spacing": alternative.spacing,
            "evaluations": alternative.evaluations,
            "calls": test.count,
            "deviation_p50": float(np.median(deviation)),
            "deviation_p95": float(np.quantile(deviation, 0.95)),
            "deviation_max": float(deviation.max()),
            f"share_beyond_{tolerance:g}": float((deviation > tolerance).mean()),
        }

    def _paired(self, stream: int, calls: int, metric: str) -> PairedCalls:
        seed = call_seed(self.seed, stream, 1)
        return PairedCalls(
            self.planner, self.contexts(stream, calls), calls, resolve(metric)[1], seed
        )

    def _alternatives(
        self, count: int, certificate: Certificate, calls: int, task: Task
    ) -> dict[str, Alternative]:
        """The alternatives at ``count`` evaluations, tuned for what the certificate promises."""
        assert certificate.tolerance is not None
        advance = task("tune the alternatives", 1)
        search = AlternativeSearch(
            self._paired(TUNE, calls, certificate.metric),
            certificate.tolerance,
            allowed_share(certificate),
        )
        found = search.best(count)
        advance(1)
        return found

    def _success(self, problems: list[MazeProblem]) -> Success:
        from muninn_bench.tasks.maze2d.rollout import follow

        def success(call: int, trajectory: FloatArray) -> bool:
            plan = self.teacher.unnormalise(torch.tensor(trajectory, dtype=torch.float32))
            return bool(follow(problems[call], plan.double().numpy(), seed=call))

        return success

    def _write(
        self,
        out: Path,
        result: dict[str, Any],
        outcomes: list[Outcomes],
        problems: list[MazeProblem],
    ) -> None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
        arrays: dict[str, Any] = {
            "start": np.array([problem.start for problem in problems]),
            "goal": np.array([problem.goal for problem in problems]),
        }
        for outcome in outcomes:
            world = self.teacher.unnormalise(torch.tensor(outcome.trajectories)).numpy()
            arrays[f"{outcome.name}.positions"] = world[..., :2].astype(np.float32)
            arrays[f"{outcome.name}.deviation"] = outcome.deviation
            arrays[f"{outcome.name}.evaluations"] = outcome.evaluations
            arrays[f"{outcome.name}.seconds"] = outcome.seconds
            for name in ("success", "bound", "estimate", "evaluated"):
                values = getattr(outcome, name)
                if values is not None:
                    arrays[f"{outcome.name}.{name}"] = values
        arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        safetensors.numpy.save_file(arrays, out / "calls.safetensors")


def save_family(path: Path, family: Family, seed: int, command: str) -> None:
    """Write a newly tuned family with the seed of the calls it was tuned on."""
    document = {"command": command, "seed": seed, "family": family.to_json()}
    path.write_text(json.dumps(document, indent=1) + "\n")


def load_family(path: Path, seed: int) -> Family:
    """A frozen family, for certification with problems of ``seed``.

    Raises:
        InputError: no such file, or the family was tuned on problems of the same seed: a family
            must be certified on calls that had no part in choosing it.
    """
    if not path.is_file():
        raise InputError(
            f"{path} was not found; make one with `muninn-bench calibrate --save-family`"
        )
    document = json.loads(path.read_text())
    if document["seed"] == seed:
        raise InputError(
            f"{path} was tuned on problems of seed {seed}; certify it with another seed, so that "
            "no call serves both"
        )
    return Family.from_json(document["family"])


def bundled_family(seed: int) -> Family:
    """The committed plan family of the bundled teacher."""
    return load_family(model_file("maze2d/family.json"), seed)
