"""Work in several processes, which do not outlive the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

import torch

from muninn.errors import MuninnError

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int
) -> Iterator[Result]:
    """The function's results in the order of items; computed here if one process is asked for."""
    if processes == 1:
        yield from map(function, items)
        return
    crew = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin)
    try:
        yield from crew.map(function, items)
    except BrokenProcessPool as error:
        raise MuninnError(
            "a process died; what was finished is kept: run the command again"
        ) from error
    finally:  # nobody waits for what they are in the middle of
        for process in list((crew._processes or {}).values()):
            process.terminate()
        crew.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends us
    torch.set_num_threads(1)
    end_with_parent()


def end_with_parent() -> None:
    """Have this process end when the one that started it does, even if that is killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
