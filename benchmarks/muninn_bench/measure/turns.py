"""Taking turns: every method in every round, so that drift of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from muninn.errors import InputError
from muninn.progress import Advance
from muninn_bench.measure.machine import synchronise

Result = TypeVar("Result")


@dataclass(frozen=True)
class Turn(Generic[Result]):
    """One timed call: its round, counted from 0, its wall-clock time, and what it returned."""

    round: int
    seconds: float
    result: Result


def take_turns(
    runs: Sequence[Callable[[int], Result]],
    *,
    warm_up: int,
    timed: int,
    device: torch.device,
    strides: Sequence[int] | None = None,
    warm_strides: Sequence[int] | None = None,
    advance: Advance = lambda steps: None,
) -> list[list[Turn[Result]]]:
    """Timed calls of every run, all runs in every round, each round beginning with another.

    Runs are called with the number of the round, negative while warming up. Run ``i`` takes part
    in every ``strides[i]``-th round, in all by default; while warming up ``warm_strides`` say so.
    """
    if not runs or timed < 1:
        raise InputError(f"time at least one call of one method, got {len(runs)} and {timed}")
    every = [1] * len(runs) if strides is None else list(strides)
    warm = every if warm_strides is None else list(warm_strides)
    turns: list[list[Turn[Result]]] = [[] for _ in runs]
    for number in range(-warm_up, timed):
        first = number % len(runs)
        for place in [*range(first, len(runs)), *range(first)]:
            # Shifted by place: else all slow runs would meet in the same rounds.
            if (number + place) % (warm if number < 0 else every)[place]:
                continue
            seconds, result = time_call(lambda at=place: runs[at](number), device)  # type: ignore[misc]  # noqa: B023
            if number >= 0:
                turns[place].append(Turn(number, seconds, result))
        advance(1)
    return turns


def time_call(call: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """Seconds from an idle device to an idle device, and the result."""
    synchronise(device)
    began = time.perf_counter()
    result = call()
    synchronise(device)
    return time.perf_counter() - began, result


def spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile (linear between calls) and maximum of at least one, in milliseconds.

    >>> spread([0.004, 0.001, 0.002])
    (2.0, 3.96, 4.0)
    """
    data = 1e3 * np.asarray(seconds, dtype=np.float64)
    return float(np.median(data)), round(float(np.quantile(data, 0.99)), 9), float(data.max())
