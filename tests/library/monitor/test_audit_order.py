"""Audits are counted in the order of the calls, whichever worker is done first.

The alarm's level holds for a sequence whose order has nothing to do with its outcomes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from certify_cases import certificate
from muninn.certify.certificate import Certificate
from muninn.monitor.monitor import Monitor
from muninn.monitor.shadow import BACKLOG, Shadow

CPU = torch.device("cpu")
ISSUED: Certificate = certificate()
OUTCOMES = [0.5, 2.0, 0.5, 0.5, 2.0, 2.0, 0.5]


class Workers(Executor):
    """Many workers; the test says which of them is done next, and how it ends."""

    def __init__(self) -> None:
        self.begun: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Any, *args: Any, **more: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()  # under way: it cannot be cancelled any more
        self.begun.append((future, work))
        return future

    def end(self, place: int) -> None:
        future, work = self.begun[place]
        if not future.done():
            future.set_result(work())

    def die(self, place: int) -> None:
        future, _ = self.begun[place]
        if not future.done():
            future.set_exception(MemoryError("out of memory"))


def shadow_of(executor: Executor | None, outcomes: list[float]) -> Shadow:
    shadow = Shadow(executor, CPU)
    for place, outcome in enumerate(outcomes):
        shadow.submit(str(place), lambda outcome=outcome: outcome)  # type: ignore[misc]
    return shadow


def results(outcomes: list[float]) -> list[tuple[str, float]]:
    return [(str(place), outcome) for place, outcome in enumerate(outcomes)]


@pytest.mark.parametrize("first", ["violating", "kept", "last"])
def test_the_monitor_goes_the_same_way_whichever_audits_finish_first(first: str) -> None:
    workers = Workers()
    shadow, watching, in_turn = shadow_of(workers, OUTCOMES), Monitor(ISSUED), Monitor(ISSUED)
    for call, outcome in results(OUTCOMES):
        in_turn.record(call, outcome)
    keys: dict[str, Callable[[int], Any]] = {
        "violating": lambda place: OUTCOMES[place] <= 1.0,
        "kept": lambda place: OUTCOMES[place] > 1.0,
        "last": lambda place: -place,
    }
    for place in sorted(range(len(OUTCOMES)), key=keys[first]):
        workers.end(place)
        for call, excess in shadow.collect():
            watching.record(call, excess)
        assert watching.path == in_turn.path[: len(watching.audits)]  # at every look, not only now
    assert [audit.call for audit in watching.audits] == [audit.call for audit in in_turn.audits]
    assert watching.path == in_turn.path
    assert watching.alarm == in_turn.alarm


def test_violations_that_finish_first_wait_for_the_calls_before_them() -> None:
    """Four kept promises, then four violations: alone, the four would raise an alarm."""
    outcomes = [0.5] * 4 + [2.0] * 4
    alone, in_turn = Monitor(ISSUED), Monitor(ISSUED)
    for outcome in outcomes[4:]:
        alone.record(alone.next_call(), outcome)
    for outcome in outcomes:
        in_turn.record(in_turn.next_call(), outcome)
    assert alone.alarm is not None and in_turn.alarm is None
    workers = Workers()
    shadow = shadow_of(workers, outcomes)
    for place in range(4, 8):
        workers.end(place)
        assert shadow.collect() == []
    assert len(shadow) == 8
    for place in range(4):
        workers.end(place)
    assert shadow.collect() == results(outcomes)
    assert len(shadow) == 0


def test_threads_that_finish_in_any_order() -> None:
    gates = [threading.Event() for _ in OUTCOMES]

    def audit(place: int) -> float:
        assert gates[place].wait(60.0)
        return OUTCOMES[place]

    with ThreadPoolExecutor(len(OUTCOMES)) as executor:
        shadow, found = Shadow(executor, CPU), []
        for place in range(len(OUTCOMES)):
            shadow.submit(str(place), lambda place=place: audit(place))  # type: ignore[misc]
        for place in sorted(range(len(OUTCOMES)), key=lambda place: -OUTCOMES[place]):
            gates[place].set()
            future = shadow._queue[place - len(found)].future if place >= len(found) else None
            if future is not None:
                future.result(60.0)
            found += shadow.collect()
        found += shadow.finish()
    assert found == results(OUTCOMES)


# -- what does not finish --------------------------------------------------------------------


@pytest.mark.parametrize("rescue", ["run_here", "finish", "revive"])
def test_an_audit_that_its_worker_lost_is_run_again_before_later_ones_are_counted(
    rescue: str,
) -> None:
    workers = Workers()
    shadow = shadow_of(workers, [0.5, 2.0, 0.5])
    workers.end(0), workers.die(1), workers.end(2)
    assert shadow.collect() == [("0", 0.5)]
    assert shadow.blind is not None and "MemoryError" in shadow.blind
    assert shadow.collect() == []  # the third is there, and waits
    if rescue == "revive":
        another = Workers()
        shadow.revive(another)
        assert len(another.begun) == 1  # the finished one is not run twice
        assert shadow.collect() == []
        another.end(0)
        found = shadow.collect()
    else:
        found = shadow.run_here() if rescue == "run_here" else shadow.finish()
    assert found == [("1", 2.0), ("2", 0.5)]
    assert len(shadow) == 0 and shadow.blind is None


def test_a_worker_that_hangs_holds_results_back_until_it_is_replaced() -> None:
    workers = Workers()
    shadow = shadow_of(workers, [0.5] * BACKLOG)
    for place in range(1, BACKLOG):
        workers.end(place)
    assert shadow.collect() == shadow.run_here() == []
    assert shadow.blind is not None  # nothing reaches the monitor, so nobody watches
    another = Workers()
    shadow.revive(another)
    another.end(0)
    assert shadow.collect() == results([0.5] * BACKLOG)
    workers.end(0)  # what the old worker says at last is not counted again
    assert shadow.collect() == [] and shadow.blind is None


def test_the_end_waits_for_a_worker_that_hangs_no_longer_than_said() -> None:
    workers = Workers()
    shadow = shadow_of(workers, OUTCOMES)
    for place in range(1, len(OUTCOMES)):
        workers.end(place)
    assert shadow.finish(patience=0.01) == results(OUTCOMES)
    assert len(shadow) == 0


@contextmanager
def raising(shadow: Shadow, place: int) -> Iterator[None]:
    """The audit at a place raises, wherever it is run."""

    def broken() -> float:
        raise ZeroDivisionError("metric")

    audit = shadow._queue[place]
    work, audit.run = audit.run, broken
    yield
    audit.run = work


def test_an_audit_that_raises_is_not_skipped() -> None:
    shadow = shadow_of(None, [0.5, 0.5, 2.0])
    with raising(shadow, 1):
        assert shadow.run_here() == [("0", 0.5)]
        assert shadow.run_here() == shadow.finish() == []
        assert shadow.blind is not None and "ZeroDivisionError" in shadow.blind
    assert shadow.run_here() == [("1", 0.5), ("2", 2.0)]
    assert shadow.blind is None


EVENTS = ["submit", "end", "die", "collect", "run_here", "revive"]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 7)), max_size=40))
@settings(max_examples=200)
def test_whatever_happens_results_come_once_and_in_the_order_of_the_calls(
    events: list[tuple[str, int]],
) -> None:
    workers, found, submitted = Workers(), [], 0
    shadow = Shadow(workers, CPU)
    for event, place in events:
        if event == "submit":
            outcome = float(submitted % 3)
            shadow.submit(str(submitted), lambda outcome=outcome: outcome)  # type: ignore[misc]
            submitted += 1
        elif event in ("end", "die") and workers.begun:
            getattr(workers, event)(place % len(workers.begun))
        elif event == "revive":
            workers = Workers()
            shadow.revive(workers)
        elif event in ("collect", "run_here"):
            found += getattr(shadow, event)()
        assert found == results([float(i % 3) for i in range(len(found))])
        assert len(found) + len(shadow) == submitted
    found += shadow.finish(patience=0.0)
    assert found == results([float(i % 3) for i in range(submitted)])
