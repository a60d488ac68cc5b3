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
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from muninn.errors import InputError, MuninnError
from muninn.progress import Advance, silent

Item = TypeVar("Item")
Result = TypeVar("Result")


class Map(AbstractContextManager["Map"], Protocol):
    """Applies a function to items, in a ``with`` block; a cluster could stand behind it as well."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], advance: Advance = silent
    ) -> Iterator[Result]:
        """Results in the order of items; items are taken as results are.

        Args:
            function: of one item alone; what it stores on itself may be lost.
            items: may be endless.
            advance: told of every result.

        Raises:
            Exception: what the function raised; its ``__cause__`` names the item by its index.
        """
        ...


class Inline(Map):
    """The map that works here, one item after the other."""

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], advance: Advance = silent
    ) -> Iterator[Result]:
        """Results in the order of items: see :class:`Map`."""
        for index, item in enumerate(items):
            try:
                result = function(item)
            except Exception as error:
                raise error from RuntimeError(f"item {index} of the map")
            advance(1)
            yield result

    def __exit__(self, *raised: object) -> None:
        """Nothing is left to end."""


class Processes(Map):
    """The map that works in processes of its own, started afresh, with one thread each.

    Function, items and results are pickled, the function once for each :meth:`map`. A script that
    uses it needs the usual ``if __name__ == "__main__":``. Ctrl-C, an exception and the death of
    this process end the workers.

    Raises:
        InputError: ``workers`` is below 1, or the function cannot be pickled.
        MuninnError: a worker died.
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

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item], advance: Advance = silent
    ) -> Iterator[Result]:
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
                "muninn.parallel.Inline()"
            ) from error
        left, waiting = enumerate(items), deque[tuple[int, Future[Result]]]()
        try:
            while True:
                while len(waiting) < 2 * self._workers and (given := next(left, None)) is not None:
                    waiting.append((given[0], self._pool.submit(_apply, path, given[1])))
                if not waiting:
                    return
                index, future = waiting.popleft()
                try:
                    result = future.result()
                except Exception as error:
                    told = f"item {index} of the map, in a worker\n{error.__cause__ or ''}"
                    raise error from RuntimeError(told)
                advance(1)
                yield result
        except BrokenProcessPool as error:
            raise MuninnError(
                "a worker process died (was memory short?); what was finished is kept where there "
                "is a journal: run the command again"
            ) from error
        finally:  # whoever iterates may have stopped
            for _, future in waiting:
                future.cancel()


def workers_of(count: int) -> Map:
    """The map of so many workers; a single one works here."""
    return Inline() if count == 1 else Processes(count)


_loaded: tuple[Path | None, Any] = (None, None)


def _apply(path: Path, item: Any) -> Any:
    """Apply the function of a file; the last one stays loaded."""
    global _loaded
    if _loaded[0] != path:
        _loaded = (path, pickle.loads(path.read_bytes()))
    return _loaded[1](item)


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
