"""Episodes driven by a method, many in lock-step, so that the network sees them as one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric, measure
from muninn.certify.paired import call_seed
from muninn.context import Context
from muninn.model.planner import Noise
from muninn.record import Record
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
    first: int = 0,
    most_calls: int | None = None,
    advance: Callable[[int], None] = lambda episodes: None,
) -> list[Drive]:
    """``count`` episodes of a stream from number ``first`` on, driven by a method.

    The noise of a call is a function of seed, episode and call alone: methods are paired. The
    problems are those of the seed ``world``. With a
    ``shadow``, full compute and a metric, every call's deviation is measured; the shadow's plans
    are not executed. An episode is over after ``most_calls`` plans at the latest.
    """
    planner, last = task.planner(variant), first + count
    drives = {number: Drive() for number in range(first, last)}
    for begin in range(first, last, lanes):
        numbers = range(begin, min(begin + lanes, last))
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
            if call == most_calls:
                break
        for number, episode in episodes.items():
            drives[number].result = episode.result()
        advance(len(numbers))
    return list(drives.values())


def on_device(run: Run, device: torch.device) -> Run:
    """A method of a planner on a device, for contexts and noise from the CPU; plans stay there."""

    def sent(context: Context, noise: Noise) -> tuple[Tensor, Record]:
        draws = {step: draw.to(device) for step, draw in noise.steps.items()}
        return run(context.to(device), Noise(noise.initial.to(device), draws))

    return sent


def random_contexts(drives: Sequence[Drive], seed: int, first: int = 0) -> Tensor:
    """The context of one random call of each episode, (episodes, ...), numbered from ``first``."""
    numbered = enumerate(drives, first)
    return torch.cat(
        [drive.contexts[drive.random_call(seed, number)] for number, drive in numbered]
    )
