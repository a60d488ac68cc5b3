"""Episodes in threads, plans in batches: the same whoever comes first, nobody left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from muninn.certify.lockstep import run_together
from muninn.errors import CalibrationError


class Doubles:
    """Plans twice the context; notes who asked together."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.threads: set[int] = set()

    def __call__(self, places: list[int], contexts: list[Any]) -> list[Tensor]:
        self.batches.append(places)
        self.threads.add(threading.get_ident())
        return [2.0 * context for context in contexts]


def episode(plan: Callable[[Any], Tensor], seed: int) -> float:
    """Plans as often as its seed says, at its own pace."""
    total = 0.0
    for call in range(seed):
        time.sleep(0.001 * (seed % 3))
        total += float(plan(torch.full((1, 2), float(call))).sum())
    return total


def test_plans_are_made_together_in_this_thread_until_the_last_is_over() -> None:
    answer = Doubles()
    found = run_together(episode, [3, 1, 4, 2], answer)
    assert found == [4.0 * sum(range(seed)) for seed in (3, 1, 4, 2)]
    assert answer.batches == [[0, 1, 2, 3], [0, 2, 3], [0, 2], [2]]
    assert answer.threads == {threading.get_ident()}


def test_one_alone_runs_in_this_thread() -> None:
    seen = []

    def run(plan: Callable[[Any], Tensor], seed: int) -> int:
        seen.append(threading.get_ident())
        plan(torch.zeros(1, 2))
        return seed

    assert run_together(run, [7], Doubles()) == [7] and seen == [threading.get_ident()]


def test_an_episode_that_raises_ends_all_of_them() -> None:
    over = []

    def run(plan: Callable[[Any], Tensor], seed: int) -> None:
        try:
            plan(torch.zeros(1, 2))
            if seed == 2:
                raise ValueError("the simulator broke")
            plan(torch.zeros(1, 2))
        finally:
            over.append(seed)

    with pytest.raises(ValueError, match="the simulator broke"):
        run_together(run, [1, 2, 3], Doubles())
    until = time.monotonic() + 5.0
    while len(over) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(over) == [1, 2, 3]


def test_what_the_planner_raises_is_raised_here() -> None:
    def refuse(places: list[int], contexts: list[Any]) -> list[Tensor]:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run_together(episode, [1, 2], refuse)


@pytest.mark.parametrize("seeds", [[5], [5, 1]])
def test_an_episode_that_takes_too_long_is_named(seeds: list[int]) -> None:
    def run(plan: Callable[[Any], Tensor], seed: int) -> None:
        for _ in range(400 if seed == 5 else 1):
            time.sleep(0.01)
            plan(torch.zeros(1, 2))

    with pytest.raises(CalibrationError, match=r"seed \d is not over after 0.2 s"):
        run_together(run, seeds, Doubles(), time_limit=0.2)


def test_one_that_never_plans_again_is_noticed_too() -> None:
    def run(plan: Callable[[Any], Tensor], seed: int) -> None:
        plan(torch.zeros(1, 2))
        if seed == 1:
            time.sleep(3.0)

    with pytest.raises(CalibrationError, match="seed 1 is not over"):
        run_together(run, [0, 1], Doubles(), time_limit=0.3)


def test_results_are_told_as_they_come() -> None:
    told: list[float] = []
    found = run_together(episode, [3, 1, 2], Doubles(), done=told.append)
    assert sorted(told) == sorted(found) and told[0] == found[1]

    def refuse(result: float) -> None:
        raise OSError("disk full")

    for seeds in ([1], [1, 2]):
        with pytest.raises(OSError, match="disk full"):
            run_together(episode, seeds, Doubles(), done=refuse)
