"""A real worker process: it answers, fails, hangs, dies, and is replaced. Nothing here is timed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import loop_cases as cases
from muninn.errors import InputError, MuninnError
from muninn.loop.escalation import Escalation, Execute, Hold
from muninn.loop.request import Reply, Request
from muninn.loop.supervisor import Observation, Supervisor
from muninn.loop.worker import WorkerProcess

LOAD = 120.0  # seconds in which a loaded machine starts a process


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess(cases.obedient, patience=0.0) as process:
        process.wait_until_ready(LOAD)
        yield process


def _ask(worker: WorkerProcess, order: object, seconds: float = LOAD) -> Reply | str:
    return worker.ask(Request("cached", order, (1,)), worker.clock() + seconds)


@pytest.mark.slow
def test_the_life_of_a_worker(worker: WorkerProcess) -> None:
    plans = _ask(worker, "plan")
    assert isinstance(plans, Reply)
    assert plans.trajectories[0, 0, 0] == worker.pid != os.getpid()

    assert _ask(worker, "raise") == "RuntimeError: no route"
    unsendable = _ask(worker, lambda: None)
    assert isinstance(unsendable, str)
    assert "cannot be sent" in unsendable

    first = worker.pid
    hung = _ask(worker, "sleep", 0.05)  # patience 0: replaced at once
    assert hung == "the planner's process hangs; it is being replaced"
    assert worker.pid != first
    worker.wait_until_ready(LOAD)
    again = _ask(worker, "plan")
    assert isinstance(again, Reply)
    assert again.trajectories[0, 0, 0] == worker.pid

    died = _ask(worker, "die")
    assert isinstance(died, str)
    assert "died" in died
    assert worker.replaced == 2


def test_a_hung_planner_is_a_hold_and_a_late_plan_is_thrown_away() -> None:
    with WorkerProcess(cases.obedient, patience=1e6) as worker:
        robot = Supervisor(worker, Escalation(), budget=LOAD)
        worker.wait_until_ready(LOAD)

        def call(order: str, budget: float) -> object:
            robot.budget = budget
            now = worker.clock()
            return robot.supervise(Observation(order, now), now).action

        assert call("plan", LOAD) == Execute("cached", 0, 1.0)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)  # a planner that is late, not dead
        assert call("raise", 0.05) == Hold("no plan by the deadline")
        assert call("plan", 0.05) == Hold("no plan by the deadline")
        os.kill(worker.pid, signal.SIGCONT)
        # The answer to "raise" is still to come; it must not be taken for this call's.
        assert call("plan", LOAD) == Execute("cached", 0, 1.0)
        assert worker.replaced == 0


@pytest.mark.slow
def test_a_large_job_does_not_block_the_robot() -> None:
    with WorkerProcess(cases.obedient, patience=1e6) as worker:
        worker.wait_until_ready(LOAD)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        found = _ask(worker, "x" * 50_000_000, 0.5)  # more than any pipe holds
        assert isinstance(found, str)
        assert "could not be sent" in found


def test_a_planner_that_cannot_be_built_is_said_and_not_tried_forever() -> None:
    with WorkerProcess(cases.unbuildable) as worker:
        with pytest.raises(MuninnError, match=r"missing\.safetensors"):
            worker.wait_until_ready(LOAD)
        found = _ask(worker, "plan")
        assert isinstance(found, str)
        assert "missing.safetensors" in found
        assert worker.replaced == 0


def test_a_planner_that_is_still_loading_holds() -> None:
    with WorkerProcess(cases.obedient) as worker:
        found = _ask(worker, "plan", 0.0)
        assert found == "the planner is still loading"
        with pytest.raises(InputError, match="patience"):
            WorkerProcess(cases.obedient, patience=-1.0)
