"""Episodes driven by a method, many in lock-step, so that the network sees them as one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric, measure
from muninn.certify.paired import call_seed
from muninn_bench.measure.protocol import Run
from muninn_bench.task import Result, Stream, Task, Together

LANES = 50
"""Episodes that run side by side."""


@dataclass
class Drive:
    """One episode that a method drove; lists hold one entry per planning call.

    A context is one row; deviations are from full compute at the same context and noise.
    """

    result: Result = field(default_factory=Result)
    contexts: list[Tensor] = field(default_factory=list)
    evaluations: list[int] = field(default_factory=list)
    deviation: list[float] = field(default_factory=list)

    def random_call(self, seed: int, number: int) -> int:
        """A call drawn uniformly; calls inside an episode depend on each other."""
        draw = np.random.default_rng(call_seed(seed, number, 1, 1)).random()
        return int(draw * len(self.contexts))


def roll_out(
    task: Task,
    variant: str,
    run: Run,
    stream: Stream,
    count: int,
    *,
    seed: int,
    world: int = 0,
    shadow: tuple[Run, Metric] | None = None,
    lanes: int = LANES,
    advance: Callable[[int], None] = lambda episodes: None,
) -> list[Drive]:
    """Episodes 0 to ``count`` of a stream, driven by a method.

    The noise of a call is a function of seed, episode and call alone: methods are paired. The
    problems are those of the seed ``world``. With a
    ``shadow``, full compute and a metric, every call's deviation is measured; the shadow's plans
    are not executed.
    """
    planner, drives = task.planner(variant), [Drive() for _ in range(count)]
    for first in range(0, count, lanes):
        numbers = range(first, min(first + lanes, count))
        episodes = {number: task.begin(variant, stream, number, world) for number in numbers}
        call, running = 0, list(numbers)
        while running:
            contexts = torch.cat([episodes[number].context() for number in running])
            noise = planner.draw_noise(seeds=[call_seed(seed, n, call) for n in running])
            plans, record = run(contexts, noise)
            apart = None
            if shadow is not None:
                apart = measure(shadow[1], shadow[0](contexts, noise)[0], plans, contexts)
            for row, number in enumerate(running):
                drive = drives[number]
                drive.contexts.append(contexts[row : row + 1])
                drive.evaluations.append(int(record.evaluations[row]))
                if apart is not None:
                    drive.deviation.append(float(apart[row]))
            if isinstance(task, Together):
                task.follow_all([episodes[number] for number in running], plans)
            else:
                for number, plan in zip(running, plans.cpu(), strict=True):
                    episodes[number].follow(plan)
            running = [number for number in running if not episodes[number].done]
            call += 1
        for number, episode in episodes.items():
            drives[number].result = episode.result()
        advance(len(numbers))
    return drives


def random_contexts(drives: Sequence[Drive], seed: int) -> Tensor:
    """The context of one random call of each episode, (episodes, ...)."""
    return torch.cat(
        [drive.contexts[drive.random_call(seed, number)] for number, drive in enumerate(drives)]
    )
