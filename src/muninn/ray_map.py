"""The map on Ray: a cluster that runs already, or one on this machine while it is needed."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from muninn.errors import InputError, MuninnError
from muninn.parallel import Item, Map, Result, packed, unpacked

DEATHS = 4
"""Workers that one item may cost, and that may die in a row before they have begun."""

STORE = 256 * 2**20
"""Bytes of shared memory where Ray is started here: it holds a planner; larger ones go to disk."""

REACH_SECONDS, START_SECONDS = 10.0, 60.0
"""Until a cluster counts as out of reach, and until a person is told that no worker starts."""

_log = logging.getLogger("muninn")


@dataclass
class _Job:
    """An item on its way to a result."""

    item: bytes
    given: bool = False  # to a worker
    result: Any = None  # bytes, or the error that it ended with
    deaths: int = 0


class Ray(Map):
    """The map whose workers are Ray's, with one CPU and one thread each.

    The function travels once to every worker. A worker that dies is replaced, and its item given to
    the next that is free. Where the program is connected to Ray already, that connection is used.

    Args:
        workers: how many; by default as many as there are CPUs now, or GPUs for them.
        address: of a running cluster: ``auto`` (this machine is part of it), ``host:6379`` or
            ``ray://host:10001``. By default that of RAY_ADDRESS; without it Ray starts here, and
            ends with the block.
        gpus: that each worker asks for.

    Raises:
        InputError: Ray is not installed; the cluster cannot be reached, or has nothing to work on.
    """

    def __init__(
        self, workers: int | None = None, address: str | None = None, gpus: float = 0
    ) -> None:
        if workers is not None and workers < 1:
            raise InputError(f"a map needs at least one worker, got {workers}")
        self._ray = _installed()
        self._workers, self._address, self._gpus = workers, address, gpus
        self._sent: tuple[object, Any] = (None, None)  # a function, and the reference of it
        self._free: list[Any] = []  # workers
        self._busy: dict[Any, tuple[Any, _Job | None]] = {}  # by what they will answer
        self._unborn = 0  # workers that died before they had begun, in a row

    def __enter__(self) -> Ray:
        self._connected = not self._ray.is_initialized()
        if self._connected:
            _connect(self._ray, self._address, self._workers)
        kind, each = ("GPU", self._gpus) if self._gpus else ("CPU", 1)
        self._count = self._workers or int(self._ray.cluster_resources().get(kind, 0) // each)
        if not self._count:
            self.__exit__(None)
            raise InputError(
                f"Ray has no {kind} now: add a node that has one, or say how many workers will "
                "find one (Ray starts nodes where its cluster file allows it): ray:8"
            )
        self._worker = self._ray.remote(num_cpus=1, num_gpus=self._gpus)(_Worker)
        for _ in range(self._count):
            self._hire()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for worker in [*self._free, *(worker for worker, _ in self._busy.values())]:
            self._ray.kill(worker)
        self._free, self._busy, self._sent = [], {}, (None, None)
        if self._connected:
            self._ray.shutdown()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results in the order of items: see :class:`Map`."""
        if not (self._free or self._busy):
            raise InputError("Ray starts in a with block: with Ray() as workers: ...")
        dumps = self._ray.cloudpickle.dumps
        if self._sent[0] is not function:
            self._sent = function, self._ray.put(packed(function, dumps))
        jobs: deque[_Job] = deque()
        rest, sent = iter(items), [self._sent[1]]  # in a list: Ray would send it with every item
        for index in count():
            while True:
                jobs.extend(_Job(dumps(item)) for item in islice(rest, 2 * self._count - len(jobs)))
                if not jobs:
                    return
                for job in [job for job in jobs if not job.given][: len(self._free)]:
                    worker, job.given = self._free.pop(), True
                    self._busy[worker.apply.remote(sent, job.item)] = worker, job
                if jobs[0].result is not None:
                    break
                self._wait()
            yield _opened(jobs.popleft().result, index)

    def _hire(self) -> None:
        worker = self._worker.remote()
        self._busy[worker.ready.remote()] = worker, None

    def _wait(self) -> None:
        """Until a worker is done: it is free then, or it died and another takes its place."""
        failures = self._ray.exceptions
        done, _ = self._ray.wait(list(self._busy), timeout=START_SECONDS)
        if not done and not any(job for _, job in self._busy.values()):
            _log.warning("no Ray worker has started yet; see `ray status` for what they wait for")
        for answer in done:
            worker, job = self._busy.pop(answer)
            try:
                result = self._ray.get(answer)
            except failures.RayTaskError as error:  # of the function
                result = error
            except failures.RayError as error:
                self._ray.kill(worker)  # it may only be out of reach
                self._hire()
                self._died(job, error)
                continue
            self._free.append(worker)
            if job is None:
                self._unborn = 0
            else:
                job.result = result

    def _died(self, job: _Job | None, error: Exception) -> None:
        """Count it: against the item, or against all workers where one had not begun."""
        if job is None:
            self._unborn += 1
            if self._unborn == DEATHS:
                last = str(error).strip().rpartition("\n")[2]
                raise MuninnError(f"Ray workers cannot start: {last}") from error
            return
        job.deaths += 1
        job.given = job.deaths == DEATHS
        if job.given:
            job.result = MuninnError(
                f"{DEATHS} Ray workers died of one item ({type(error).__name__}). If memory was "
                "short, give fewer workers or a smaller batch_size; what was finished is kept "
                "where there is a journal: run the command again"
            )


class _Worker:
    """What works in a process of Ray; the function that it was sent last stays loaded."""

    def __init__(self) -> None:
        self._sent: Any = None

    def ready(self) -> None:
        """Answers when it has begun."""

    def apply(self, sent: list[Any], item: bytes) -> bytes:
        """The result of an item, pickled: Ray's own copies of arrays cannot be written to."""
        if sent[0] != self._sent:
            self._function = unpacked(_installed().get(sent[0]))
            self._sent = sent[0]
        return pickle.dumps(self._function(pickle.loads(item)))


def _opened(result: Any, index: int) -> Any:
    """A result, or what it ended with, raised."""
    if isinstance(result, bytes):
        return pickle.loads(result)
    told = RuntimeError(f"item {index} of the map, in a worker\n{result}")
    raise getattr(result, "cause", result) from told


def _installed() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("this needs Ray: pip install 'muninn-diffusion[ray]'") from error
    return ray


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    """Join a cluster, or start one here without a dashboard; quietly."""
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report to its makers
        settings = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": STORE}
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if port.isdigit():  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), REACH_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **settings)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray cluster can be used at {address!r} ({error}). Does it run (`ray status` on "
            "its head node), is the port open from here, does it have this Python and this Ray, "
            "and does it want a token (RAY_AUTH_MODE=token)?"
        ) from error
