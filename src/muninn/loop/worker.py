"""Where plans are computed: in this process, or in a worker process that cannot be late.

The robot's process asks and waits until a time, no longer. A worker that has not answered by then
may finish, and its answer is thrown away; one that stays silent is killed and replaced.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from muninn.errors import InputError, MuninnError
from muninn.loop.request import Reply, Request, Responder

_HEADER = struct.Struct("!Q")
_READY = ""  # a worker's first message; else why it cannot be. Then one answer for each request

Clock = Callable[[], float]


class Runner(Protocol):
    """Has requests answered by a time, on a monotonic clock of its own."""

    def clock(self) -> float:
        """Seconds."""

    def ask(self, request: Request, until: float) -> Reply | str:
        """The plans, or why there are none. Never raises; returns by ``until``."""


@dataclass(eq=False)
class InProcess:
    """Plans right here: for tests and simulation. It cannot return before a planner does.

    The clock tells monotonic seconds; a simulation has its own for virtual time.
    """

    programs: Responder
    clock: Clock = time.monotonic

    def ask(self, request: Request, until: float) -> Reply | str:
        """Plan; ``until`` is for the caller to check."""
        try:
            return self.programs.run(request)
        except Exception as error:
            return f"{type(error).__name__}: {error}"


class WorkerProcess(AbstractContextManager["WorkerProcess"]):
    """Plans in a process of its own and never waits beyond ``until``.

    Args:
        build: makes the programs, in the worker; a function of a module, or a ``partial`` of one.
        patience: seconds after its deadline that a silent worker may live. Waiting for a plan that
            is merely late pays while it is shorter than loading the model again.

    Use it as a context manager, or call :meth:`close`.
    """

    clock = staticmethod(time.monotonic)

    def __init__(self, build: Callable[[], Responder], *, patience: float = 1.0) -> None:
        if not patience >= 0.0:
            raise InputError(f"patience is a number of seconds, at least 0, got {patience}")
        self._build = build
        self._patience = patience
        self.replaced = 0
        self._broken: str | None = None
        self._ready = self._idle = False
        self._start()

    @property
    def pid(self) -> int | None:
        """Of the present worker."""
        return self._process.pid

    def wait_until_ready(self, timeout: float) -> None:
        """Wait until the programs can be asked; MuninnError if they are not built in time."""
        until = time.monotonic() + timeout
        while not self._ready:
            if reason := self._broken or self._receive(until):
                raise MuninnError(f"the planner's process is not ready: {reason}")

    def ask(self, request: Request, until: float) -> Reply | str:
        """The plans by ``until``, or why there are none."""
        multiprocessing.active_children()  # takes leave of those that were killed
        if self._broken is not None:
            return self._broken
        while not self._idle:  # starting, or still at an earlier request whose answer is void
            found = self._receive(until)
            if self._broken is not None or not self._idle:
                return found
        try:
            data = _framed(request)
        except Exception as error:  # a context may hold anything
            return f"the context cannot be sent to a process ({error})"
        self._idle, self._due = False, until
        try:
            self._socket.settimeout(max(until - time.monotonic(), 1e-4))
            self._socket.sendall(data)
        except OSError as error:  # half a message is sent: this worker cannot be talked to again
            return self._replace(f"the request could not be sent ({error})")
        return self._receive(until)

    def close(self) -> None:
        """End the worker."""
        self._broken = "the planner's process was closed"
        self._socket.close()
        self._process.kill()
        self._process.join()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        # Spawned: a forked child would share locks and GPU state with the robot's process.
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_work, args=(theirs, self._build), daemon=True)
        self._process.start()
        theirs.close()
        self._buffer = b""
        self._ready = self._idle = False
        self._due = float("inf")  # loading takes as long as it takes

    def _replace(self, why: str) -> str:
        self._socket.close()
        self._process.kill()
        self.replaced += 1
        self._start()
        return f"{why}; it is being replaced"

    def _receive(self, until: float) -> Reply | str:
        """One message, after which the worker is idle, or why there is none by ``until``."""
        while (message := self._next()) is None:
            now = time.monotonic()
            if now >= until:
                if now >= self._due + self._patience:
                    return self._replace("the planner's process hangs")
                return "no plan by the deadline" if self._ready else "the planner is still loading"
            self._socket.settimeout(max(until - now, 1e-4))
            try:
                data = self._socket.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError as error:
                return self._replace(f"the planner's process is gone ({error})")
            if not data:
                return self._replace("the planner's process died")
            self._buffer += data
        self._idle = True
        if not self._ready:
            self._ready = message == _READY
            # Built once, failed once: another try would fail as well.
            self._broken = None if self._ready else str(message)
        return message

    def _next(self) -> Reply | str | None:
        """The first whole message in the buffer."""
        start, size = _HEADER.size, len(self._buffer)
        end = start + (_HEADER.unpack_from(self._buffer)[0] if size >= start else 0)
        if size < end:
            return None
        message: Reply | str = pickle.loads(self._buffer[start:end])
        self._buffer = self._buffer[end:]
        return message


def _work(connection: socket.socket, build: Callable[[], Responder]) -> None:
    """The worker: build once, then answer requests in order until the other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the robot's process to handle

    try:
        runner = InProcess(build())
    except Exception as error:
        why = f"the planner could not be built ({type(error).__name__}: {error})"
        connection.sendall(_framed(why))
        return
    connection.sendall(_framed(_READY))
    with connection.makefile("rb") as stream:
        while header := stream.read(_HEADER.size):
            request = pickle.loads(stream.read(_HEADER.unpack(header)[0]))
            connection.sendall(_framed(runner.ask(request, float("inf"))))


def _framed(message: object) -> bytes:
    data = pickle.dumps(message)
    return _HEADER.pack(len(data)) + data
