"""One map for long work: results come in the order of items, the same for any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from muninn.errors import InputError, MuninnError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Map(AbstractContextManager["Map"]):
    """Applies a function to items, in a ``with`` block: this one here, one item after the other.

    :class:`Processes` does the same in others; a cluster could stand behind it as well.
    """

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of items, which may be endless and are taken as results are.

        The function sees one item alone; what it stores on itself may be lost. What it raises is
        raised here, with a ``__cause__`` that names the item by its index.
        """
        for index, item in enumerate(items):
            try:
                result = function(item)
            except Exception as error:
                raise error from RuntimeError(f"item {index} of the map")
            yield result

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """End the work; here nothing is left to end."""


class Processes(Map):
    """The map that works in processes of its own, started afresh, with one thread each.

    Function, items and results are pickled, the function once for each :meth:`map`. A script that
    uses it needs the usual ``if __name__ == "__main__":``. Ctrl-C, an exception and the death of
    this process end the workers. A function that cannot be pickled is an InputError, a worker that
    died a MuninnError.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise InputError(f"a map needs at least one worker, got {workers}")
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Processes:
        spawn, dtype = multiprocessing.get_context("spawn"), torch.get_default_dtype()
        self._folder = tempfile.TemporaryDirectory(prefix="muninn-map-")
        self._pool = ProcessPoolExecutor(self._workers, spawn, _begin, (dtype,))
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        pool, self._pool = self._pool, None
        assert pool is not None
        if kind is not None:  # nobody waits for what they are in the middle of
            for process in list((pool._processes or {}).values()):
                process.terminate()
        pool.shutdown(cancel_futures=True)
        self._folder.cleanup()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of items: see :class:`Map`."""
        if self._pool is None:
            raise InputError("processes start in a with block: with Processes(4) as workers: ...")
        path = Path(self._folder.name) / secrets.token_hex(8)
        try:
            path.write_bytes(pickle.dumps(function))
        except Exception as error:  # pickle raises many kinds
            raise InputError(
                f"this cannot be sent to another process: {error}. Lambdas, and functions inside "
                "functions, never can: define them at the top of a module, or use the inline map, "
                "muninn.parallel.Map()"
            ) from error
        futures = (self._pool.submit(_apply, path, item) for item in items)
        waiting = deque(islice(futures, 2 * self._workers))
        try:
            for index in count():
                if not waiting:
                    return
                try:
                    result = waiting.popleft().result()
                except Exception as error:
                    told = f"item {index} of the map, in a worker\n{error.__cause__ or ''}"
                    raise error from RuntimeError(told)
                yield result
                waiting.extend(islice(futures, 1))
        except BrokenProcessPool as error:
            raise MuninnError(
                "a worker process died (was memory short?); what was finished is kept where there "
                "is a journal: run the command again"
            ) from error
        finally:  # whoever iterates may have stopped
            for future in waiting:
                future.cancel()


def workers_of(count: int) -> Map:
    """The map of so many workers; a single one works here."""
    return Map() if count == 1 else Processes(count)


@lru_cache(maxsize=1)
def _loaded(path: Path) -> Callable[[Any], Any]:
    """The function of a file; the last one stays loaded."""
    function: Callable[[Any], Any] = pickle.loads(path.read_bytes())
    return function


def _apply(path: Path, item: Any) -> Any:
    return _loaded(path)(item)


def _begin(dtype: torch.dtype) -> None:
    """Set up a worker: one thread, deaf to Ctrl-C, which its parent hears, and gone with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threadpool_limits(1)  # the threads of numpy
    torch.set_default_dtype(dtype)
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
