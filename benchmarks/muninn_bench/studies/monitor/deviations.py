"""Deviations of the bundled planner in each scenario, measured once and kept in a journal."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.engines.choose import runtime_for
from muninn.model.schedule import FloatArray
from muninn.programs.plan import Family
from muninn.progress import Task
from muninn_bench.networks.teacher import Teacher
from muninn_bench.studies.monitor.episodes import audited_contexts
from muninn_bench.studies.monitor.scenarios import STATIONARY, Scenario
from muninn_bench.tasks.maze2d.planner import maze_planner

CHUNK = 40
DRIVER = 4
"""Member that drives to the second call of an episode: the one the demo certifies."""


@dataclass(frozen=True)
class Pool:
    """Calls of one scenario under some members of the family.

    Attributes:
        members: which.
        deviation: from full compute, (calls, members).
        estimate: accumulated error estimates, (calls, members).
    """

    members: tuple[int, ...]
    deviation: FloatArray
    estimate: FloatArray


class Bench:
    """Measures scenarios on one teacher and family; whatever the journal holds is not run again."""

    def __init__(self, teacher: Teacher, family: Family, seed: int, journal: Journal) -> None:
        self._teacher = teacher
        self._family = family
        self._seed = seed
        self._journal = journal
        self._planner = maze_planner(teacher)
        self._driver = runtime_for(self._planner, family.member(DRIVER))

    def measure(self, scenario: Scenario, members: tuple[int, ...], calls: int, task: Task) -> Pool:
        """The pool of a scenario."""
        advance = task(scenario.name, calls)
        parts = []
        for first in range(0, calls, CHUNK):
            count = min(CHUNK, calls - first)
            key = f"{scenario.name}/{first}-{count}/{members}"
            if (stored := self._journal.get(key)) is None:
                stored = self._chunk(scenario, members, first, count)
                self._journal.put(key, stored)
            parts.append(stored)
            advance(count)
        deviation, estimate = (
            np.concatenate([np.array(part[name]) for part in parts])
            for name in ("deviation", "estimate")
        )
        return Pool(members, deviation, estimate)

    def _chunk(
        self, scenario: Scenario, members: tuple[int, ...], first: int, count: int
    ) -> dict[str, list[list[float]]]:
        stream = call_seed(self._seed, int(scenario == STATIONARY)) % 2**31
        rounding = torch.autocast("cpu", torch.bfloat16) if scenario.half else nullcontext()
        with rounding:
            contexts = audited_contexts(scenario, self._teacher, self._driver, stream, first, count)
            paired = PairedCalls(self._planner, contexts, count, rms_step, call_seed(stream, first))
            everything = list(range(count))
            found = [paired.measure(self._family.member(member), everything) for member in members]
        return {
            "deviation": np.stack([one.deviation for one in found], axis=1).tolist(),
            "estimate": np.stack([one.estimate for one in found], axis=1).tolist(),
        }
