"""Episodes in lockstep: each in a thread of its own, what they ask for answered together.

An episode depends on planning only through its plans, and a network takes a batch in little more
time than a row. Whenever every episode that is still running waits for an answer, all are given
here, in the thread that called: the user's simulators run elsewhere, the network does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from muninn.errors import CalibrationError

Item = TypeVar("Item")
Result = TypeVar("Result")
Ask = Callable[[Any], Any]


class _Over(BaseException):
    """Ends an episode that nobody waits for any more."""


def run_together(
    run: Callable[[Ask, Item], Result],
    items: Sequence[Item],
    answer: Callable[[list[int], list[Any]], Sequence[Any]],
    *,
    time_limit: float | None = None,
    done: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """What ``run(ask, item)`` returns for each item; one item alone runs in this thread.

    ``answer(places, questions)`` answers those who asked, in order of items, so that batches are
    the same whoever came first. ``done`` is told of every result when it is there.

    Raises:
        CalibrationError: a run takes longer than ``time_limit`` seconds.
        BaseException: the first that a run, ``done`` or ``answer`` raised.
    """
    if len(items) == 1:
        result = _alone(run, items[0], answer, time_limit)
        done(result)
        return [result]
    told: SimpleQueue[tuple[int, Any, Future[Any] | None]] = SimpleQueue()
    over = threading.Event()

    def episode(place: int, item: Item) -> None:
        def ask(question: Any) -> Any:
            answered: Future[Any] = Future()
            told.put((place, question, answered))
            if over.is_set():  # nobody may have heard it
                raise _Over
            return answered.result()

        try:
            told.put((place, run(ask, item), None))
        except BaseException as error:  # handed over, and raised there
            told.put((place, error, None))

    for place, item in enumerate(items):
        threading.Thread(target=episode, args=(place, item), daemon=True).start()
    began, found = time.monotonic(), dict[int, Result]()
    waiting: dict[int, tuple[Any, Future[Any]]] = {}
    try:
        while len(found) < len(items):
            left = None if time_limit is None else began + time_limit - time.monotonic()
            try:
                place, said, asked = told.get(timeout=left and max(left, 1e-3))
            except Empty:
                late = [k for k in range(len(items)) if k not in found and k not in waiting]
                raise _too_long(items[late[0]], time_limit) from None
            if asked is not None:
                waiting[place] = (said, asked)
            elif isinstance(said, BaseException):
                raise said
            else:
                found[place] = said
                done(said)
            if waiting and len(waiting) + len(found) == len(items):
                places = sorted(waiting)
                given = answer(places, [waiting[place][0] for place in places])
                for place, one in zip(places, given, strict=True):
                    waiting.pop(place)[1].set_result(one)
    finally:
        over.set()
        unheard = [told.get() for _ in range(told.qsize())]
        for asked in (*(held for _, held in waiting.values()), *(heard[2] for heard in unheard)):
            if asked is not None:
                asked.set_exception(_Over())
    return [found[place] for place in range(len(items))]


def _alone(
    run: Callable[[Ask, Item], Result],
    item: Item,
    answer: Callable[[list[int], list[Any]], Sequence[Any]],
    time_limit: float | None,
) -> Result:
    began = time.monotonic()

    def in_time() -> None:
        if time_limit is not None and time.monotonic() - began > time_limit:
            raise _too_long(item, time_limit)

    def ask(question: Any) -> Any:
        in_time()
        return answer([0], [question])[0]

    result = run(ask, item)
    in_time()
    return result


def _too_long(item: object, time_limit: float | None) -> CalibrationError:
    return CalibrationError(
        f"the episode of seed {item} is not over after {time_limit:g} s: end it in run(), or allow "
        "more with time_limit=. Finished episodes are kept where there is a journal"
    )
