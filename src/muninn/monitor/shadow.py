"""Shadow audits: full compute on calls that were already answered, here or on another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric, Tolerance, measure, tolerances
from muninn.certify.paired import full_compute
from muninn.context import Context, select
from muninn.engines.runtime import log_once
from muninn.errors import CertificateError, DenoiserError
from muninn.identity.arithmetic import Arithmetic
from muninn.identity.undisturbed import under_autocast
from muninn.model.planner import Noise, Planner

BACKLOG = 8
"""Audits that may wait. More than that, and nobody is watching."""

Work = Callable[[], float | None]
Results = list[tuple[str, float | None]]
"""(call, excess) of finished audits."""


@dataclass(frozen=True)
class HeldCall:
    """A call that may be audited."""

    context: Context
    noise: Noise
    trajectory: Tensor

    def row(self, row: int) -> HeldCall:
        """One row of a batch: copies, since callers reuse and change buffers."""
        rows = torch.tensor([row], device="cpu")  # whatever the default device
        return HeldCall(select(self.context, rows), self.noise.select(rows), self.trajectory[rows])


def excess_of(
    calls: Sequence[HeldCall],
    reference: Planner,
    metric: Metric,
    tolerance: Tolerance,
    arithmetic: Arithmetic,
) -> float | None:
    """Worst deviation over tolerance of some calls; None where full compute fails.

    Measured as at calibration: under the autocast that ``arithmetic``, the certificate's, names,
    whatever is in force on the thread that does it.
    """
    worst = 0.0
    for call in calls:
        with under_autocast(arithmetic, call.trajectory.device.type):
            try:
                full = full_compute(reference, call.context, call.noise)
            except DenoiserError:
                return None
            deviation = measure(metric, full, call.trajectory.to(full.dtype), call.context)
            allowed = tolerances(tolerance, call.context, len(full))
        worst = max(worst, float((deviation / allowed).max()))
    return worst


def excess_under(
    certificate: Certificate,
    planner: Planner,
    reference: Planner | None,
    metric: Metric | None,
    tolerance: Tolerance | None,
) -> Callable[[Sequence[HeldCall]], float | None]:
    """:func:`excess_of` as a certificate measures; functions that are the user's own are given.

    A missing or other reference is a CertificateError, such a function an InputError.
    """
    if reference is None and certificate.reference is not None:
        raise CertificateError(
            "the certificate was measured against a reference planner; pass it as reference="
        )
    truth = certificate.reference or certificate.identity
    if reference is not None and reference.identity() != truth:
        raise CertificateError(
            "reference is not the planner that the certificate was measured against; pass that one"
        )
    metric, tolerance = certificate.terms(metric, tolerance)
    return partial(
        excess_of,
        reference=reference or planner,
        metric=metric,
        tolerance=tolerance,
        arithmetic=certificate.arithmetic,
    )


@dataclass
class Pending:
    """An audit that waits for its turn or its result."""

    call: str
    run: Work
    future: Future[float | None] | None = None

    @property
    def failure(self) -> BaseException | None:
        """Why its worker came to no result, or None."""
        if self.future is None or not self.future.done():
            return None
        return CancelledError() if self.future.cancelled() else self.future.exception()

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return self.future is not None and self.future.done() and self.failure is None


def _in_stream(stream: torch.cuda.Stream, copied: torch.cuda.Event, work: Work) -> float | None:
    with torch.cuda.stream(stream):
        stream.wait_event(copied)
        return work()


@dataclass(eq=False)
class Shadow:
    """A short queue of audits; nothing here makes a planning call wait.

    An executor takes each audit (a thread; a process cannot share the network); without one, audits
    wait for :meth:`run_here`. Results are taken on the caller's thread, in the order of the calls,
    whichever worker is done first.

    For the monitor's test is sequential: it bounds the probability that the evidence *ever* reaches
    the alarm, provided that no audit's outcome decides when it is counted. Were results taken as
    they come, violations that happen to finish first would be counted before the kept promises of
    earlier calls, and raise an alarm on a selection. So an audit that raises is tried again and
    never skipped; until it succeeds the monitor is blind.
    """

    executor: Executor | None  # say ThreadPoolExecutor(1)
    device: torch.device  # of the planner; on a GPU audits run on a stream of their own

    def __post_init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._queue: deque[Pending] = deque()
        self._dead: str | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def blind(self) -> str | None:
        """Why nobody is watching, or None."""
        if self._dead is not None:
            return f"no audits: the audit worker died ({self._dead}); give it a new executor"
        if len(self._queue) >= BACKLOG:
            return (
                f"no audits: {len(self._queue)} wait; run audit() between calls, give another "
                "executor, or lower the rate"
            )
        return None

    def submit(self, call: str, work: Work) -> None:
        """Queue an audit; never raises, and never runs it."""
        if self._stream is not None:
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(torch.cuda.current_stream(self.device))
            work = partial(_in_stream, self._stream, copied, work)
        self._queue.append(Pending(call, work))
        self._hand_over(self._queue[-1])

    def _hand_over(self, audit: Pending) -> None:
        if self.executor is None:
            return
        try:
            audit.future = self.executor.submit(audit.run)
        except Exception as error:  # shut down, or its thread cannot be started
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """The worker is gone. Its audits stay in the queue; none is lost."""
        self._dead = f"{type(error).__name__}: {error}"
        self.executor = None
        for audit in self._queue:
            if audit.future is not None and (audit.future.cancel() or audit.failure):
                audit.future = None
        log_once(str(self.blind))

    def revive(self, executor: Executor) -> None:
        """Go on with another worker; audits that waited are handed to it."""
        self._dead, self.executor = None, executor
        for audit in list(self._queue):
            if audit.future is None or not audit.future.done():  # it may hang in the old worker
                self._hand_over(audit)

    def collect(self) -> Results:
        """Results that are ready, in the order of the calls; waits for nothing."""
        failures = [audit.failure for audit in self._queue if audit.failure is not None]
        if failures:
            self._lose(failures[0])
        ready: Results = []
        while self._queue and self._queue[0].finished:
            audit = self._queue.popleft()
            assert audit.future is not None
            ready.append((audit.call, audit.future.result()))
        return ready

    def run_here(self, *, all_of_them: bool = False) -> Results:
        """Run what waits on this thread, with ``all_of_them`` also what a worker is at.

        An audit that raises stays in the queue and the monitor is blind; nothing escapes.
        """
        ready = self.collect()
        for audit in self._queue:
            under_way = audit.future is not None and not audit.future.cancel()
            if audit.finished or (under_way and not all_of_them):
                continue
            audit.future = None
            try:
                excess = audit.run()
            except Exception as error:
                self._lose(error)
                break  # what is behind it could not leave
            audit.future = Future()
            audit.future.set_result(excess)
        ready += self.collect()
        if not self._queue:
            self._dead = None
        return ready

    def finish(self, patience: float = 60.0) -> Results:
        """Results of every audit that can be finished, by the worker within some seconds or here.

        A worker that hangs would hold back all results after its own: its audit runs here, too.
        """
        wait([audit.future for audit in self._queue if audit.future], timeout=patience)
        return self.run_here(all_of_them=True)
