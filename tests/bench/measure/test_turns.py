"""Taking turns, by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from latency_cases import DEVICE
from muninn.errors import InputError
from muninn_bench.measure import turns
from muninn_bench.measure.turns import spread, take_turns


def test_every_run_takes_part_in_every_round_and_the_first_changes() -> None:
    order: list[tuple[int, str]] = []

    def run(name: str) -> Callable[[int], str]:
        def call(number: int) -> str:
            order.append((number, name))
            return name

        return call

    found = take_turns([run(name) for name in "abc"], warm_up=2, timed=4, device=DEVICE)
    rounds = {number: [name for at, name in order if at == number] for number, _ in order}
    assert sorted(rounds) == [-2, -1, 0, 1, 2, 3]
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds.values())
    assert [names[0] for _, names in sorted(rounds.items())] == ["b", "c", "a", "b", "c", "a"]
    for name, own in zip("abc", found, strict=True):
        assert [turn.round for turn in own] == [0, 1, 2, 3]  # warm-up is not kept
        assert {turn.result for turn in own} == {name}


def test_slow_runs_take_part_in_fewer_rounds_at_different_times() -> None:
    found = take_turns(
        [lambda number: number] * 3, warm_up=4, timed=12, device=DEVICE, strides=[1, 4, 4]
    )
    taken = [[turn.round for turn in own] for own in found]
    assert taken == [list(range(12)), [3, 7, 11], [2, 6, 10]]
    seen: list[int] = []
    take_turns(
        [seen.append], warm_up=4, timed=8, device=DEVICE, strides=[4], warm_strides=[1]
    )  # fmt: skip
    assert seen == [-4, -3, -2, -1, 0, 4]  # all of the warm-up, every fourth timed round
    with pytest.raises(InputError, match="at least one"):
        take_turns([], warm_up=0, timed=1, device=DEVICE)


def test_the_device_is_idle_before_and_after_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(turns, "synchronise", lambda device: seen.append("wait"))
    ticks = iter([1.0, 1.5])
    monkeypatch.setattr(turns.time, "perf_counter", lambda: (seen.append("tick"), next(ticks))[1])
    seconds, result = turns.time_call(lambda: seen.append("call") or 7, DEVICE)
    assert (seconds, result) == (0.5, 7)
    assert seen == ["wait", "tick", "call", "wait", "tick"]


def test_spread_by_hand() -> None:
    found = spread([0.001 * value for value in range(1, 102)])  # 1 to 101 ms
    assert found == pytest.approx((51.0, 100.0, 101.0))
