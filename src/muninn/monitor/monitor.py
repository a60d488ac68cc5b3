"""Watches a deployed certificate: audits in, an alarm out when the promise is refuted.

:class:`Monitor` is the bookkeeping: it holds no tensor and runs no network. What audits are, when
they run and where is in :mod:`muninn.monitor.monitored`; the guarantee is in docs/monitor.md.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from muninn.certify.certificate import Certificate
from muninn.engines.runtime import log_once
from muninn.errors import CertificateError, InputError
from muninn.files import write_whole
from muninn.monitor.audit import Audit, certificate_digest, read_audits, watchable
from muninn.monitor.sequential import Drift, RiskEvidence, require_level
from muninn.monitor.telemetry import JsonLines, Sample

Clock = Callable[[], float]


class Monitor:
    """Tests "the violation rate is at most the certificate's risk" while a robot runs.

    Args:
        certificate: what is deployed; a confident one.
        level: probability of ever raising a false alarm if the certificate keeps its risk.
        robot: name of this robot, unique in its fleet.
        log: audit log (JSON lines). One that exists is taken up again, alarm included, so that a
            restart forgets nothing; one of another certificate or robot is refused.
        seed: of the tie-breaking in the drift test; None for fresh entropy.
        clock: wall clock for people.

    Attributes:
        audits: every audit, in order.
        path: log e-value after each of them.
    """

    def __init__(
        self,
        certificate: Certificate,
        *,
        level: float = 0.05,
        robot: str = "robot",
        log: str | Path | None = None,
        seed: int | None = None,
        clock: Clock = time.time,
    ) -> None:
        self.certificate = watchable(certificate)
        self.digest = certificate_digest(certificate)
        self.level = require_level(level)
        self.robot = robot
        self.audits: list[Audit] = []
        self.path: list[float] = []
        self._evidence = RiskEvidence(certificate.risk)
        # An episode's certificate pools all its calls; one call of an episode is not like them.
        self._drift = Drift(certificate.estimates if certificate.unit == "call" else (), seed)
        self._clock = clock
        self._run = secrets.token_hex(4)
        self._calls = 0
        self._alarmed_at: int | None = None
        self._warned_at: int | None = None
        self._estimates = 0
        self._saved = True
        self._log = None if log is None else JsonLines(log)
        self._unwritten: list[Audit] = []
        if log is not None and Path(log).exists():
            self._resume(read_audits(log), Path(log))

    def _resume(self, audits: Iterable[Audit], log: Path) -> None:
        for audit in audits:
            if audit.certificate != self.digest or audit.robot != self.robot:
                raise CertificateError(
                    f"{log} belongs to certificate {audit.certificate} on robot {audit.robot!r}; "
                    f"this is {self.digest} on {self.robot!r}. Give each its own log"
                )
            self._count(audit)

    # -- what comes in -----------------------------------------------------------------------

    def next_call(self) -> str:
        """An identifier for a call, never used before by this robot."""
        self._calls += 1
        return f"{self._run}-{self._calls}"

    def record(self, call: str, excess: float | None) -> Audit:
        """Take the result of one audit; never raises because of a disk.

        Args:
            call: identifier of the audited call.
            excess: worst deviation over tolerance of the unit; None where full compute failed,
                which counts as a violation: nothing shows that the promise was kept.
        """
        finite = excess is not None and math.isfinite(excess)
        audit = Audit(
            self.digest,
            self.robot,
            call,
            self.audits[-1].ordinal + 1 if self.audits else 0,
            not finite or (excess is not None and excess > 1.0),
            excess if finite else None,
            self._clock(),
        )
        self._count(audit)
        self._unwritten.append(audit)
        self.flush()
        return audit

    def see(self, estimate: float) -> None:
        """Take the error estimate of one call, at most one per episode; NaN says nothing."""
        if math.isnan(estimate):
            return
        self._estimates += 1
        self._drift.add(estimate)
        if self._warned_at is None and self._drift.e_value >= 1.0 / self.level:
            self._warned_at = self._estimates
            log_once(str(self.warning))

    def _count(self, audit: Audit) -> None:
        self.audits.append(audit)
        self._evidence.add(audit.ordinal, audit.violated)
        self.path.append(self._evidence.log_e_value)
        if self._alarmed_at is None and self.path[-1] >= -math.log(self.level):
            self._alarmed_at = len(self.audits)
            self._saved = False
            log_once(str(self.alarm))

    # -- what comes out ----------------------------------------------------------------------

    @property
    def e_value(self) -> float:
        """Evidence against the promise now; an alarm stays even if this falls again."""
        return math.exp(min(self.path[-1], 700.0)) if self.path else 1.0

    @property
    def alarm(self) -> str | None:
        """Why the certificate is no longer to be relied on, or None. Cleared by recalibration."""
        if self._alarmed_at is None:
            return None
        seen = self.audits[: self._alarmed_at]
        return (
            f"monitor alarm: {sum(audit.violated for audit in seen)} of {len(seen)} audits exceed "
            f"the tolerance, promised were at most {self.certificate.risk:.1%} (level "
            f"{self.level:g}); calibrate again"
        )

    @property
    def warning(self) -> str | None:
        """That error estimates have drifted, or None. An early sign, not a violated promise."""
        if self._warned_at is None:
            return None
        return (
            f"error estimates are no longer like those before (after {self._warned_at} episodes, "
            f"level {self.level:g}); the promise may still hold, audits decide"
        )

    def report(self) -> dict[str, Any]:
        """Everything behind an alarm, JSON-ready."""
        return {
            "certificate": self.digest,
            "promise": self.certificate.promise(),
            "risk": self.certificate.risk,
            "confidence": self.certificate.confidence,
            "level": self.level,
            "robot": self.robot,
            "alarm": self.alarm,
            "alarm_after_audits": self._alarmed_at,
            "drift_warning": self.warning,
            "drift_e_value": self._drift.e_value,
            "log_e_values": self.path,
            "audits": [audit.to_json() for audit in self.audits],
        }

    def flush(self) -> bool:
        """Write what is not yet on disk: audits, and the evidence of an alarm; whether it all is.

        A full disk costs nothing but time: audits stay in memory and are tried again.
        """
        if self._log is None:
            self._unwritten.clear()
            return True
        # Only an alarm is worth waiting for the disk: a reboot must not forget it.
        sync = self._alarmed_at is not None
        while self._unwritten and self._log.append(self._unwritten[0].to_json(), sync=sync):
            self._unwritten.pop(0)
        if not self._saved:
            try:
                write_whole(self.evidence_path, json.dumps(self.report(), indent=1))
                self._saved = True
            except OSError:
                return False
        return self._saved and not self._unwritten

    @property
    def evidence_path(self) -> Path:
        """Where the evidence of an alarm is written: beside the log."""
        if self._log is None:
            raise InputError("this monitor has no log, so evidence is not written; use report()")
        return self._log.path.with_suffix(".alarm.json")

    def samples(self) -> list[Sample]:
        """State for :func:`muninn.monitor.telemetry.render`."""
        labels = {"robot": self.robot, "certificate": self.digest}
        bad = sum(audit.violated for audit in self.audits)
        values: dict[str, tuple[str, float, str]] = {
            "audits": ("counter", len(self.audits), "Audits against full compute."),
            "audit_violations": ("counter", bad, "Audits beyond tolerance."),
            "audits_unwritten": ("gauge", len(self._unwritten), "Audits not yet on disk."),
            "log_e_value": ("gauge", self.path[-1] if self.path else 0.0, "Log evidence."),
            "alarm": ("gauge", float(self.alarm is not None), "1 after an alarm."),
            "drift_warning": ("gauge", float(self.warning is not None), "1 after a warning."),
        }
        return [Sample(name, *value, labels) for name, value in values.items()]
