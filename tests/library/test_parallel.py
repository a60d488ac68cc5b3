"""The map: order, laziness, errors and interruptions are the same here and in processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from muninn.errors import InputError, MuninnError
from muninn.parallel import Map, Processes, workers_of
from parallel_cases import Travelling, fails_at, process_of, slow_first, total


@pytest.fixture(scope="module", params=[None, 2, "ray:2"])
def workers(request: pytest.FixtureRequest) -> Iterator[Map]:
    if request.param == "ray:2":
        pytest.importorskip("ray")
    with workers_of(request.param) as made:
        yield made


def test_results_come_in_the_order_of_items(workers: Map) -> None:
    found = list(workers.map(slow_first, range(7)))
    assert [value for value, _ in found] == [item * item for item in range(7)]
    assert list(workers.map(slow_first, [])) == []


def test_an_endless_iterator_is_read_as_far_as_results_are_taken(workers: Map) -> None:
    taken = itertools.count()
    results = workers.map(slow_first, taken)
    assert [value for value, _ in itertools.islice(results, 3)] == [0, 1, 4]
    assert next(taken) <= 8


def test_an_exception_keeps_its_type_and_message_and_names_the_item(workers: Map) -> None:
    results = workers.map(partial(fails_at, 2), range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(InputError, match=r"^no 2$") as raised:
        next(results)
    assert "item 2 of the map" in str(raised.value.__cause__)
    assert list(workers.map(partial(fails_at, 9), range(3))) == [0, 1, 2]  # it goes on


def test_two_maps_take_turns(workers: Map) -> None:
    squares, places = workers.map(slow_first, range(5)), workers.map(partial(fails_at, 9), range(5))
    assert [(a, b) for (a, _), b in zip(squares, places, strict=True)] == [
        (item * item, item) for item in range(5)
    ]


def test_a_function_that_is_given_again_travels_no_second_time(workers: Map) -> None:
    function = Travelling()
    for _ in range(3):
        assert list(workers.map(function, range(4))) == [0, 1, 2, 3]
    assert function.departures <= 1


def test_workers_are_other_processes_with_one_thread_each() -> None:
    with Processes(2) as workers:
        assert {threads for _, threads in workers.map(slow_first, range(4))} == {1}
        assert os.getpid() not in set(workers.map(process_of, range(4)))


def test_tensors_of_items_are_copied_and_hold_no_files() -> None:
    items = [{place: torch.full((4, 2), float(place))} for place in range(40)]
    with Processes(2) as workers:
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
        assert list(workers.map(total, items)) == [8.0 * place for place in range(40)]
        if before is not None:
            assert len(os.listdir("/proc/self/fd")) <= before + 16  # the pool's own
    assert not any(plan.is_shared() for item in items for plan in item.values())


def test_what_cannot_be_sent_is_said_before_anything_runs() -> None:
    with (
        Processes(1) as workers,
        pytest.raises(InputError, match=r"use the inline map.*Map\(\)"),
    ):
        next(workers.map(lambda item: item, [1]))
    with pytest.raises(InputError, match="with Processes"):
        next(Processes(1).map(process_of, [1]))
    with pytest.raises(InputError, match="at least one worker, got 0"):
        Processes(0)


def test_one_worker_works_here_and_a_dead_one_is_told() -> None:
    with workers_of(1) as alone:
        assert list(alone.map(process_of, [0])) == [os.getpid()]
    with workers_of(2) as workers, pytest.raises(MuninnError, match=r"died.*run the command again"):
        list(workers.map(os._exit, [3]))
    with pytest.raises(InputError, match="at least one worker, got 0"):
        workers_of(0)


def test_workers_are_a_number_a_word_or_a_map() -> None:
    given = Map()
    with workers_of(given) as same:
        assert same is given
    for few in (None, 1, "1"):
        with workers_of(few) as here:
            assert type(here) is Map
    assert isinstance(workers_of("3"), Processes)
    for wrong in ("many", "rays", "2.5", [2]):
        with pytest.raises(InputError, match=r"workers are a number, 'ray', 'ray:8'.*; got"):
            workers_of(wrong)  # type: ignore[arg-type]


INTERRUPTED = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from muninn.parallel import Processes
def forever(item):
    time.sleep(600)
if __name__ == "__main__":
    with Processes(2) as workers:
        found = workers.map(forever, range(9))
        print("begun", flush=True)
        try:
            next(found)
        except KeyboardInterrupt:
            raise SystemExit(7)
"""


def test_ctrl_c_ends_the_workers_at_once(tmp_path: os.PathLike[str]) -> None:
    script = os.path.join(tmp_path, "script.py")
    with open(script, "w") as file:
        file.write(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    time.sleep(4.0)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    assert process.wait(timeout=30) == 7
    assert not living(process.pid)


def living(group: int) -> list[str]:
    """Processes of a group that still run."""
    listed = subprocess.run(["ps", "-eo", "pgid,stat,args"], capture_output=True, text=True).stdout
    found = [line.split(None, 2) for line in listed.splitlines()[1:]]
    return [args for own, state, args in found if own == str(group) and "Z" not in state]


_FAMILY = """
import multiprocessing, time
from muninn.parallel import end_with_parent

def child(started):
    end_with_parent()
    started.set()
    time.sleep(60)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    started = context.Event()
    process = context.Process(target=child, args=(started,))
    process.start()
    started.wait()
    print(process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "family.py"
    script.write_text(_FAMILY)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert child.exists()
        parent.kill()
    until = time.monotonic() + 20.0
    while child.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not child.exists()
