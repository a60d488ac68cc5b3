"""Shadow audits: full compute on calls that were already answered, here or on another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn.certify.metrics import (
    METRICS,
    Metric,
    Tolerance,
    measure,
    metric_name,
    resolve,
    tolerances,
)
from muninn.certify.paired import full_compute
from muninn.context import Context
from muninn.engines.runtime import log_once
from muninn.errors import CertificateError, DenoiserError, InputError
from muninn.identity.arithmetic import Arithmetic
from muninn.identity.undisturbed import under_autocast
from muninn.model.planner import Noise, Planner

BACKLOG = 8
"""Audits that may wait. More than that, and nobody is watching."""


@dataclass(frozen=True)
class HeldCall:
    """A call of one row that may be audited: copies, since callers reuse and change buffers."""

    context: Context
    noise: Noise
    trajectory: Tensor


@dataclass
class Job:
    """An audit that waits for its turn or its result."""

    call: str
    run: Callable[[], float | None]
    future: Future[float | None] | None = None

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return self.future is not None and self.future.done() and _failed(self.future) is None


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
            deviation = measure(metric, full, call.trajectory.to(full.dtype))
            allowed = tolerances(tolerance, call.context, len(full))
        worst = max(worst, float((deviation / allowed).max()))
    return worst


class Shadow:
    """A short queue of audits; nothing here makes a planning call wait.

    With an executor each audit is handed to it (a thread; a process cannot share the network).
    Without one, audits wait for :meth:`run_here`. Results are taken on the caller's thread.

    Results leave in the order of the calls, whichever worker is done first; a result waits until
    all earlier ones are in. The monitor's test is sequential: it bounds the probability that the
    evidence *ever* reaches the alarm, provided that nothing about an audit's outcome decides when
    it is counted. Were results taken as they come, audits that violate and happen to finish first
    would be counted before the kept promises of earlier calls, and raise an alarm on a selection.
    For the same reason an audit that raises is tried again and never skipped; until it succeeds
    the monitor is blind, and full compute runs.

    Args:
        executor: say ``ThreadPoolExecutor(1)``; on a GPU audits run on a stream of their own.
        device: where the planner runs.
    """

    def __init__(self, executor: Executor | None, device: torch.device) -> None:
        self.executor = executor
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._jobs: deque[Job] = deque()
        self._dead: str | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def blind(self) -> str | None:
        """Why nobody is watching, or None."""
        if self._dead is not None:
            return f"no audits: the audit worker died ({self._dead}); give it a new executor"
        if len(self._jobs) >= BACKLOG:
            return (
                f"no audits: {len(self._jobs)} wait; run audit() between calls, give another "
                "executor, or lower the rate"
            )
        return None

    def submit(self, call: str, work: Callable[[], float | None]) -> None:
        """Queue an audit; never raises, and never runs it."""
        job = Job(call, self._in_stream(work))
        self._jobs.append(job)
        self._hand_over(job)

    def _in_stream(self, work: Callable[[], float | None]) -> Callable[[], float | None]:
        if self._stream is None:
            return work
        stream = self._stream
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(self._device))

        def run() -> float | None:
            with torch.cuda.stream(stream):
                stream.wait_event(copied)
                return work()

        return run

    def _hand_over(self, job: Job) -> None:
        if self.executor is None:
            return
        try:
            job.future = self.executor.submit(job.run)
        except Exception as error:  # shut down, or its thread cannot be started
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """The worker is gone. Its audits stay in the queue; none is lost."""
        self._dead = f"{type(error).__name__}: {error}"
        self.executor = None
        for job in self._jobs:
            if job.future is not None and (job.future.cancel() or _failed(job.future)):
                job.future = None
        log_once(str(self.blind))

    def revive(self, executor: Executor) -> None:
        """Go on with another worker; audits that waited are handed to it."""
        self._dead, self.executor = None, executor
        for job in list(self._jobs):
            if job.future is None or not job.future.done():  # it may hang in the old worker
                self._hand_over(job)

    def collect(self) -> list[tuple[str, float | None]]:
        """Results that are ready, as (call, excess), in the order of the calls.

        Waits for nothing: what is ready behind an audit that is not stays for a later time.
        """
        failed = [_failed(job.future) for job in self._jobs if job.future is not None]
        failures = [error for error in failed if error is not None]
        if failures:
            self._lose(failures[0])
        ready: list[tuple[str, float | None]] = []
        while self._jobs and self._jobs[0].finished:
            job = self._jobs.popleft()
            assert job.future is not None
            ready.append((job.call, job.future.result()))
        return ready

    def run_here(self, *, all_of_them: bool = False) -> list[tuple[str, float | None]]:
        """Run what waits on this thread; results as from :meth:`collect`.

        An audit that raises stays in the queue and the monitor is blind; nothing escapes.

        Args:
            all_of_them: run audits that are under way in a worker, too.
        """
        ready = self.collect()
        for job in self._jobs:
            if job.finished:
                continue
            if job.future is not None and not job.future.cancel() and not all_of_them:
                continue  # under way in the worker
            job.future = None
            try:
                excess = job.run()
            except Exception as error:
                self._lose(error)
                break  # what is behind it could not leave
            job.future = Future()
            job.future.set_result(excess)
        ready += self.collect()
        if not self._jobs:
            self._dead = None
        return ready

    def finish(self, patience: float = 60.0) -> list[tuple[str, float | None]]:
        """Results of every audit that can be finished: the worker's, within some seconds, and
        then those that wait, on this thread.

        A worker that hangs would hold back all results after its own: its audit runs here, too.
        """
        wait([job.future for job in self._jobs if job.future is not None], timeout=patience)
        return self.run_here(all_of_them=True)


def _failed(future: Future[float | None]) -> BaseException | None:
    """Why a future that is done has no result, or None."""
    if not future.done():
        return None
    try:
        return future.exception()
    except CancelledError as error:
        return error


def audit_metric(certificate: Certificate, metric: Metric | None) -> Metric:
    """The metric of a certificate, by its name or as given.

    Raises:
        InputError: it is not one of Muninn's own and was not given, or another one was.
    """
    if metric is None:
        try:
            return resolve(certificate.metric)[1]
        except InputError as error:
            raise InputError(
                f"the certificate's metric is {certificate.metric!r}, which is not one of "
                f"{', '.join(METRICS)} or executed:N; pass the function as metric="
            ) from error
    if metric_name(metric) != certificate.metric:
        raise InputError(
            f"the certificate's metric is {certificate.metric!r}, got {metric_name(metric)!r}"
        )
    return metric


def audit_tolerance(certificate: Certificate, tolerance: Tolerance | None) -> Tolerance:
    """The tolerance of a certificate, its number or the function as given.

    Raises:
        InputError: the function is missing, or is not the certificate's.
    """
    if certificate.tolerance is not None and tolerance is None:
        return certificate.tolerance
    given = metric_name(tolerance) if callable(tolerance) else tolerance
    if given is None or given not in (certificate.tolerance, certificate.tolerance_name):
        raise InputError(
            "the certificate's tolerance is "
            f"{certificate.tolerance_name or certificate.tolerance!r}, got {given!r}; pass the "
            "function it was calibrated with as tolerance="
        )
    assert tolerance is not None
    return tolerance


def audit_reference(certificate: Certificate, own: Planner, reference: Planner | None) -> Planner:
    """The planner whose full compute is the truth of a certificate.

    Raises:
        CertificateError: the certificate names another one.
    """
    if reference is None:
        if certificate.reference is not None:
            raise CertificateError(
                "the certificate was measured against a reference planner; pass it as reference="
            )
        return own
    if reference.identity() != (certificate.reference or certificate.identity):
        raise CertificateError(
            "reference is not the planner that the certificate was measured against; pass that one"
        )
    return reference
