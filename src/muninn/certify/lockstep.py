"""Episodes in lockstep: each in a thread of its own, their plans made together in one batch.

An episode depends on planning only through its plans, and a network takes a batch in little more
time than a row. Whenever every episode that is still running waits for a plan, all are made here,
in the thread that called: the user's simulators run elsewhere, the network does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch import Tensor

from muninn.context import Context, batch_size, select
from muninn.errors import CalibrationError, InputError

Run = Callable[[Callable[[Context], Tensor], int], Any]
"""``run(plan, seed)`` drives one episode; ``plan(context)`` takes and returns one row."""

Answer = Callable[[list[int], list[Context]], Sequence[Tensor]]
"""Plans, a row each, for the episodes of these numbers and their contexts."""

_Heard = tuple[int, Context | None, "Future[Tensor] | None", Any]


class _Over(BaseException):
    """Ends an episode that nobody waits for any more."""


def run_together(
    run: Run, seeds: Sequence[int], answer: Answer, time_limit: float | None = None
) -> list[Any]:
    """What ``run`` returns for each seed. One alone runs in this thread.

    Batches are in order of seeds, so that they are the same whoever came first.

    Raises:
        CalibrationError: an episode takes longer than ``time_limit`` seconds.
        BaseException: the first that an episode or the planner raised.
    """
    if len(seeds) == 1:
        return [_alone(run, seeds[0], answer, time_limit)]
    told: SimpleQueue[_Heard] = SimpleQueue()
    over = threading.Event()

    def episode(place: int, seed: int) -> None:
        def plan(context: Context) -> Tensor:
            made: Future[Tensor] = Future()
            told.put((place, _one_row(context), made, None))
            if over.is_set():  # nobody may have heard it
                raise _Over
            return made.result()

        try:
            told.put((place, None, None, run(plan, seed)))
        except BaseException as error:  # handed over, and raised there
            told.put((place, None, None, error))

    for place, seed in enumerate(seeds):
        threading.Thread(target=episode, args=(place, seed), daemon=True).start()
    began, found = time.monotonic(), dict[int, Any]()
    waiting: dict[int, tuple[Context, Future[Tensor]]] = {}
    try:
        while len(found) < len(seeds):
            left = None if time_limit is None else began + time_limit - time.monotonic()
            try:
                place, context, made, result = told.get(timeout=left and max(left, 1e-3))
            except Empty:
                late = [seeds[k] for k in range(len(seeds)) if k not in found and k not in waiting]
                raise _too_long(late[0], time_limit) from None
            if made is not None:
                waiting[place] = (context, made)
            elif isinstance(result, BaseException):
                raise result
            else:
                found[place] = result
            if waiting and len(waiting) + len(found) == len(seeds):
                places = sorted(waiting)
                plans = answer(places, [waiting[place][0] for place in places])
                for place, plan in zip(places, plans, strict=True):
                    waiting.pop(place)[1].set_result(plan)
    finally:
        over.set()
        unheard = [told.get() for _ in range(told.qsize())]
        for asked in (*(made for _, made in waiting.values()), *(heard[2] for heard in unheard)):
            if asked is not None:
                asked.set_exception(_Over())
    return [found[place] for place in range(len(seeds))]


def _alone(run: Run, seed: int, answer: Answer, time_limit: float | None) -> Any:
    began = time.monotonic()

    def in_time() -> None:
        if time_limit is not None and time.monotonic() - began > time_limit:
            raise _too_long(seed, time_limit)

    def plan(context: Context) -> Tensor:
        in_time()
        return answer([0], [_one_row(context)])[0]

    result = run(plan, seed)
    in_time()
    return result


def _one_row(context: Context) -> Context:
    """A copy of a context: simulators reuse their buffers."""
    if batch_size(context) not in (None, 1):
        raise InputError("an episode plans one call at a time: a context of one row")
    return select(context, torch.arange(1, device="cpu"))


def _too_long(seed: int, time_limit: float | None) -> CalibrationError:
    return CalibrationError(
        f"the episode of seed {seed} is not over after {time_limit:g} s: end it in run(), or allow "
        "more with time_limit=. Finished episodes are kept where there is a journal"
    )
