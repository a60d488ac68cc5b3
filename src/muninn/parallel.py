"""One map for long work: results come in the order of items, the same for any number of workers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, nullcontext
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

    :class:`Processes` does the same in others, :class:`muninn.ray_map.Ray` on a cluster.
    """

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of items, which may be endless and are taken as results are.

        The function sees one item alone; what it stores on itself may be lost. One that is given
        again travels no second time, so it must not have changed. What it raises is raised here,
        with a ``__cause__`` that names the item by its index.
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

    Function, items and results are pickled, the function once until another is given. A script that
    uses it needs the usual ``if __name__ == "__main__":``. Ctrl-C, an exception and the death of
    this process end the workers. A function that cannot be pickled is an InputError, a worker that
    died a MuninnError.
    """

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise InputError(f"a map needs at least one worker, got {workers}")
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._sent: tuple[object, Path] = (None, Path())  # a function, and where it lies

    def __enter__(self) -> Processes:
        spawn = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="muninn-map-")
        self._pool = ProcessPoolExecutor(self._workers, spawn, _begin)
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
        if self._sent[0] is not function:
            path = Path(self._folder.name) / secrets.token_hex(8)
            path.write_bytes(packed(function, pickle.dumps))
            self._sent = function, path
        path = self._sent[1]
        futures = (self._pool.submit(_apply, path, pickle.dumps(item)) for item in items)
        waiting = deque(islice(futures, 2 * self._workers))
        try:
            for index in count():
                if not waiting:
                    return
                try:
                    result = pickle.loads(waiting.popleft().result())
                except Exception as error:
                    told = f"item {index} of the map, in a worker\n{error.__cause__ or ''}"
                    raise error from RuntimeError(told)
                yield result
                waiting.extend(islice(futures, 1))
        except BrokenProcessPool as error:
            raise MuninnError(
                "a worker process died. Was memory short? Then take fewer workers or a smaller "
                "batch_size. What was finished is kept where there "
                "is a journal: run the command again"
            ) from error
        finally:  # whoever iterates may have stopped
            for future in waiting:
                future.cancel()


Workers = int | str | Map | None
"""Who measures: so many processes, a map, or ``ray`` in a form that :func:`workers_of` reads."""


def workers_of(workers: Workers, device: torch.device | None = None) -> AbstractContextManager[Map]:
    """The map that somebody asked for; one that is given is left open.

    None, or a single worker, works here; a number starts processes. ``"ray"`` starts Ray on this
    machine, or takes the cluster of RAY_ADDRESS; ``"ray:8"`` does it with eight workers.
    ``"ray:auto"`` is the cluster that this machine belongs to, ``"ray:host:6379"`` and
    ``"ray://host:10001"`` are one elsewhere. For a CUDA ``device`` each worker asks for a GPU.

    Raises:
        InputError: it is none of these, or Ray is not installed.
    """
    if isinstance(workers, Map):
        return nullcontext(workers)
    if isinstance(workers, str) and workers.partition(":")[0] == "ray":
        from muninn.ray_map import Ray

        rest = workers if workers.startswith("ray://") else workers[len("ray:") :]
        gpus = 1 if device is not None and device.type == "cuda" else 0
        return Ray(int(rest), gpus=gpus) if rest.isdigit() else Ray(address=rest or None, gpus=gpus)
    try:
        count = 1 if workers is None else int(workers)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"workers are a number, 'ray', 'ray:8', 'ray:auto', 'ray://host:10001' or a map of "
            f"muninn.parallel; got {workers!r:.60}"
        ) from error
    return Map() if count == 1 else Processes(count)


def packed(function: object, dumps: Callable[[Any], bytes]) -> bytes:
    """A function for :func:`unpacked` in another process: where its modules lie comes with it.

    Raises:
        InputError: it cannot be pickled.
    """
    try:
        return dumps((sys.path, torch.get_default_dtype(), dumps(function)))
    except Exception as error:  # pickle raises many kinds
        raise InputError(
            f"this cannot be sent to another process: {error}. Define functions at the top of a "
            "module, not inside others, or use the inline map, muninn.parallel.Map()"
        ) from error


def unpacked(content: bytes) -> Callable[[Any], Any]:
    """The function, in a process that has one thread from now on.

    Raises:
        InputError: something that it needs is not here.
    """
    path, dtype, function = pickle.loads(content)
    sys.path += [folder for folder in path if folder not in sys.path]
    torch.set_num_threads(1)
    threadpool_limits(1)  # the threads of numpy
    torch.set_default_dtype(dtype)
    try:
        loaded: Callable[[Any], Any] = pickle.loads(function)
    except MuninnError:
        raise
    except Exception as error:  # whatever an import, or somebody's class, raises
        raise InputError(
            f"a worker cannot load what it was sent ({type(error).__name__}: {error}): modules and "
            "devices must be there as they are here"
        ) from error
    return loaded


@lru_cache(maxsize=1)
def _loaded(path: Path) -> Callable[[Any], Any]:
    """The function of a file; the last one stays loaded."""
    return unpacked(path.read_bytes())


def _apply(path: Path, item: bytes) -> bytes:
    """The result of an item, both pickled by value: torch would share the tensors of either, an
    open file for each of them for as long as it lives."""
    return pickle.dumps(_loaded(path)(pickle.loads(item)))


def _begin() -> None:
    """Set up a worker: deaf to Ctrl-C, which its parent hears, and gone with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
