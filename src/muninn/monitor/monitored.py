"""A cached planner under watch: the same call, audited now and then, full compute when in doubt."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Executor
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from muninn.certify.cached import CachedPlanner
from muninn.certify.metrics import Metric, Tolerance
from muninn.context import Context
from muninn.engines.runtime import log_once
from muninn.errors import CertificateError, InputError
from muninn.model.planner import Noise, Planner
from muninn.monitor.monitor import Monitor, certificate_digest
from muninn.monitor.shadow import HeldCall, Results, Shadow, excess_under
from muninn.monitor.telemetry import Sample, Telemetry
from muninn.record import Record


@dataclass
class _Episode:
    """What is kept of the episode under way."""

    key: Hashable
    audited: bool  # drawn before its first call
    calls: int = 0
    call: str = ""
    # One call, uniform among those so far; where the unit is the episode, all of them.
    held: list[HeldCall] = field(default_factory=list)
    estimate: float = 0.0  # of that one call


@dataclass(eq=False, repr=False)
class Monitored:
    """Plans like a cached planner, under the eyes of a monitor.

    An episode is audited with probability ``rate``, drawn before its first call: one call, uniform
    among its calls, is compared with full compute when the episode is over (all of them, as one
    audit, where the certificate's unit is the episode). After an alarm, and while nobody can audit,
    full compute runs and every record says why. Without a certificate, or with one that is not the
    monitor's, it is a CertificateError.
    """

    fast: CachedPlanner  # what muninn.cache returned
    monitor: Monitor  # of the same certificate
    _: KW_ONLY
    rate: float = 0.1  # share of episodes that are audited
    # Runs audits, say ``ThreadPoolExecutor(1)``; without it they wait for :meth:`audit`.
    executor: InitVar[Executor | None] = None
    reference: Planner | None = None  # whose full compute is the truth, if the certificate has one
    metric: Metric | None = None  # the certificate's, like the tolerance, where it is a function
    tolerance: Tolerance | None = None
    telemetry: Telemetry | None = None  # gets every call's record
    seed: InitVar[int | None] = None  # of the draws; None for fresh entropy

    def __post_init__(self, executor: Executor | None, seed: int | None) -> None:
        certificate, planner = self.fast.certificate, self.fast.planner
        if certificate is None:
            raise CertificateError(f"there is no certificate to watch: {self.fast.reason}")
        if certificate_digest(certificate) != self.monitor.digest:
            raise CertificateError("the monitor watches another certificate; make one for this one")
        if not 0.0 < self.rate <= 1.0:
            raise InputError(f"rate is the share of episodes audited, in (0, 1]; got {self.rate}")
        terms = self.reference, self.metric, self.tolerance
        self._excess = excess_under(certificate, planner, *terms)
        self._shadow = Shadow(executor, planner.device)
        self._whole_episodes = certificate.unit == "episode"
        self._full = CachedPlanner(planner, None, "full")
        self._random = np.random.default_rng(seed)
        self._episode: _Episode | None = None

    @property
    def reason(self) -> str | None:
        """Why full compute runs now, or None: an alarm, nobody to audit, another arithmetic."""
        return self.monitor.alarm or self._shadow.blind or self.fast.reason

    def __call__(
        self,
        context: Context = None,
        *,
        noise: Noise | None = None,
        generator: torch.Generator | None = None,
        episode: Hashable | None = None,
    ) -> tuple[Tensor, Record]:
        """Trajectories and their record, as from the cached planner.

        Calls with the same name of an ``episode`` belong together and depend on each other; another
        name ends the episode before, and a call without one stands alone.
        """
        self._take(self._shadow.collect())
        noise = self.fast.planner.prepare(context, noise, generator)
        if self._episode is not None and (episode is None or episode != self._episode.key):
            self.end_episode()
        call, reason = self.monitor.next_call(), self.monitor.alarm or self._shadow.blind
        if reason is None:
            trajectory, record = self.fast(context, noise=noise)
        else:
            trajectory, record = self._full(context, noise=noise)
            record = replace(record, fallback=(reason,) * len(trajectory))
        if record.bound is None:
            self._episode = None  # full compute deviates by nothing: no evidence of the cache
        else:
            try:
                self._watch(HeldCall(context, noise, trajectory), record, episode, call)
            except Exception as error:  # watching must not cost the robot its plan
                self._episode = None
                log_once(f"a call could not be kept for an audit: {type(error).__name__}: {error}")
            if episode is None:
                self.end_episode()
        if self.telemetry is not None:
            name, digest = None if episode is None else str(episode), self.monitor.digest
            said = {"call": call, "episode": name, "certificate": digest}
            self.telemetry.observe(record, **said, drift_warning=self.monitor.warning)
        return trajectory, record

    def _watch(self, batch: HeldCall, record: Record, episode: Hashable | None, call: str) -> None:
        """Keep what an audit may need: the rows of a batch are so many calls."""
        if self._episode is None:
            self._episode = _Episode(episode, bool(self._random.random() < self.rate))
        kept = self._episode
        for row in range(len(batch.trajectory)):
            kept.calls += 1
            drawn = self._random.integers(kept.calls) == 0  # uniform among all calls so far
            if drawn:
                kept.estimate = float(record.estimate[row])
            if not kept.audited or not (drawn or self._whole_episodes):
                continue
            kept.call = call
            kept.held = [*(kept.held if self._whole_episodes else ()), batch.row(row)]

    def end_episode(self) -> None:
        """Say that the episode is over; its audit is queued. Waits for nothing."""
        ended, self._episode = self._episode, None
        if ended is None or not ended.calls:
            return
        self.monitor.see(ended.estimate)
        if ended.audited:
            self._shadow.submit(ended.call, partial(self._excess, ended.held))

    def audit(self) -> None:
        """Run the audits that wait, on this thread: for when the robot has time."""
        self._take(self._shadow.run_here())
        self.monitor.flush()

    def revive(self, executor: Executor) -> None:
        """Go on with another audit worker after one died."""
        self._shadow.revive(executor)

    def close(self) -> None:
        """End the episode and finish every audit that can be finished."""
        self.end_episode()
        self._take(self._shadow.finish())
        self.monitor.flush()

    def _take(self, results: Results) -> None:
        for call, excess in results:
            self.monitor.record(call, excess)

    def samples(self) -> list[Sample]:
        """Calls, audits, alarm, blindness: for :func:`muninn.monitor.telemetry.serve_metrics`."""
        labels = {"robot": self.monitor.robot}
        waiting, blind = len(self._shadow), self._shadow.blind is not None
        return [
            *(() if self.telemetry is None else self.telemetry.samples()),
            *self.monitor.samples(),
            Sample("audits_waiting", "gauge", waiting, "Audits not yet run.", labels),
            Sample("blind", "gauge", blind, "1 while nobody can audit.", labels),
        ]
