"""Watches a deployed certificate: audits in, an alarm out when the promise is refuted.

:class:`Monitor` is the bookkeeping: it holds no tensor and runs no network. :mod:`.monitored` says
when audits run and where; docs/monitor.md has the guarantee.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar, asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import Certificate
from muninn.engines.runtime import log_once
from muninn.errors import CertificateError, InputError
from muninn.files import write_whole
from muninn.monitor.sequential import Drift, RiskEvidence
from muninn.monitor.telemetry import JsonLines, Sample, read_lines


@dataclass(frozen=True)
class Audit:
    """One unit compared with full compute; robot and call are unique together."""

    certificate: str  # digest of the one that was deployed
    robot: str
    call: str  # for an episode: its last one
    ordinal: int  # in the robot's own sequence, from 0
    violated: bool  # the unit exceeded its tolerance, or full compute failed
    excess: float | None  # worst deviation over tolerance; None where full compute failed
    time: float  # wall clock, seconds since the epoch; for people, never used for order

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Audit:
        """The audit that a line of a log describes; InputError if a field is missing or wrong."""
        try:
            audit = cls(**{name: data[name] for name in cls.__dataclass_fields__})
        except KeyError as error:
            raise InputError(f"an audit lacks the field {error}; got {sorted(data)}") from error
        kinds = {"certificate": str, "robot": str, "call": str, "ordinal": int, "violated": bool}
        for name, kind in kinds.items():
            value = getattr(audit, name)
            if type(value) is not kind:  # True is an int, and would count as ordinal 1
                raise InputError(f"an audit's {name} must be {kind.__name__}, got {value!r}")
        if audit.ordinal < 0:
            raise InputError(f"an audit's ordinal counts from 0, got {audit.ordinal}")
        return audit


def read_audits(path: str | Path) -> list[Audit]:
    """The audits of a log as written; lines cut short are skipped, wrong ones an InputError."""
    return [Audit.from_json(line) for line in read_lines(path) if "ordinal" in line]


def certificate_digest(certificate: Certificate) -> str:
    """Short content hash that tells one certificate from another, recalibrations included."""
    promised = {
        name: getattr(certificate, name)
        for name in (
            "identity", "reference", "member", "tolerance", "tolerance_name", "risk", "confidence",
            "unit", "loop", "metric", "counts", "seed", "realised",
        )
    }  # fmt: skip
    promised["family"] = certificate.family.to_json()
    if certificate.outcome is not None:
        promised["outcome"] = certificate.outcome
    state = hashlib.sha256(json.dumps(promised, sort_keys=True).encode())
    state.update(np.ascontiguousarray(certificate.estimates, dtype=np.float64).tobytes())
    return state.hexdigest()[:16]


def evidence_against(certificate: Certificate, level: float) -> RiskEvidence:
    """Evidence against the risk of a certificate, none so far; a marginal one is refused."""
    if certificate.outcome is not None:
        raise InputError(
            "an outcome was promised: what a call deviates by says nothing of it, and harm cannot "
            "be seen without full compute. Report scores to muninn.monitor.outcomes.OutcomeMonitor"
        )
    if certificate.confidence is None:
        raise InputError(
            "a marginal certificate keeps its risk on average over calibrations only, so almost "
            "half of the correct ones would raise an alarm; calibrate with confidence=0.95"
        )
    return RiskEvidence(certificate.risk, level)


@dataclass(eq=False, repr=False)
class Monitor:
    """Tests "the violation rate is at most the certificate's risk" while a robot runs.

    An audit log (JSON lines) that exists is taken up again, alarm included, so that a restart
    forgets nothing; one of another certificate or robot is refused.
    """

    certificate: Certificate  # what is deployed; a confident one
    _: KW_ONLY
    level: float = 0.05  # probability of ever raising a false alarm if the risk is kept
    robot: str = "robot"  # its name, unique in its fleet
    log: InitVar[str | Path | None] = None
    seed: InitVar[int | None] = None  # of tie-breaking in the drift test; None for fresh entropy
    clock: Callable[[], float] = time.time  # for people

    def __post_init__(self, log: str | Path | None, seed: int | None) -> None:
        certificate = self.certificate
        self._evidence = evidence_against(certificate, self.level)
        self.digest = certificate_digest(certificate)
        self.audits: list[Audit] = []  # in order
        self.path: list[float] = []  # log e-value after each of them
        # Why the certificate is no longer to be relied on; cleared by recalibration.
        self.alarm: str | None = None
        # That error estimates have drifted: an early sign, no violated promise.
        self.warning: str | None = None
        # An episode's certificate pools all its calls; one call of an episode is not like them.
        self._drift = Drift(certificate.estimates if certificate.unit == "call" else (), seed)
        self._run = secrets.token_hex(4)
        self._calls = self._estimates = 0
        self._alarmed_at: int | None = None
        self._saved = True
        self._log = None if log is None else JsonLines(log)
        self._unwritten: list[Audit] = []
        for audit in read_audits(log) if log is not None and Path(log).exists() else ():
            if audit.certificate != self.digest or audit.robot != self.robot:
                raise CertificateError(
                    f"{log} belongs to certificate {audit.certificate} on robot {audit.robot!r}; "
                    f"this is {self.digest} on {self.robot!r}. Give each its own log"
                )
            self._count(audit)

    def next_call(self) -> str:
        """An identifier for a call, never used before by this robot."""
        self._calls += 1
        return f"{self._run}-{self._calls}"

    def record(self, call: str, excess: float | None) -> Audit:
        """Take the worst deviation over tolerance of an audited unit; a disk never makes it raise.

        None says that full compute failed. That is a violation: nothing shows a kept promise.
        """
        known = excess if excess is not None and math.isfinite(excess) else None
        violated = known is None or known > 1.0
        ordinal = self.audits[-1].ordinal + 1 if self.audits else 0
        audit = Audit(self.digest, self.robot, call, ordinal, violated, known, self.clock())
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
        if self.warning is None and self._drift.e_value >= 1.0 / self.level:
            self.warning = (
                f"error estimates are no longer like those before (after {self._estimates} "
                f"episodes, level {self.level:g}); the promise may still hold, audits decide"
            )
            log_once(self.warning)

    def _count(self, audit: Audit) -> None:
        self.audits.append(audit)
        self._evidence.add(audit.ordinal, audit.violated)
        self.path.append(self._evidence.log_e_value)
        if self.alarm is None and self.path[-1] >= -math.log(self.level):
            self.alarm = f"monitor {self._evidence.alarm}"
            self._alarmed_at = len(self.audits)
            self._saved = False
            log_once(self.alarm)

    @property
    def e_value(self) -> float:
        """Evidence against the promise now; an alarm stays even if this falls again."""
        return self._evidence.e_value

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
            "audits": [asdict(audit) for audit in self.audits],
        }

    def flush(self) -> bool:
        """Write audits and the evidence of an alarm; whether all are on disk, else try again."""
        if self._log is None:
            self._unwritten.clear()
            return True
        # Only an alarm is worth waiting for the disk: a reboot must not forget it.
        sync = self.alarm is not None
        while self._unwritten and self._log.append(asdict(self._unwritten[0]), sync=sync):
            self._unwritten.pop(0)
        if not self._saved:
            with contextlib.suppress(OSError):
                write_whole(self.evidence_path, json.dumps(self.report(), indent=1))
                self._saved = True
        return self._saved and not self._unwritten

    @property
    def evidence_path(self) -> Path:
        """Where the evidence of an alarm is written: beside the log."""
        if self._log is None:
            raise InputError("this monitor has no log, so evidence is not written; use report()")
        return self._log.path.with_suffix(".alarm.json")

    def samples(self) -> list[Sample]:
        """State for :func:`muninn.monitor.telemetry.serve_metrics`."""
        labels = {"robot": self.robot, "certificate": self.digest}
        violations, log_e_value = self._evidence.violations, self._evidence.log_e_value
        values: list[tuple[str, str, float, str]] = [
            ("audits", "counter", len(self.audits), "Audits against full compute."),
            ("audit_violations", "counter", violations, "Audits beyond tolerance."),
            ("audits_unwritten", "gauge", len(self._unwritten), "Audits not yet on disk."),
            ("log_e_value", "gauge", log_e_value, "Log evidence."),
            ("alarm", "gauge", self.alarm is not None, "1 after an alarm."),
            ("drift_warning", "gauge", self.warning is not None, "1 after a warning."),
        ]
        return [Sample(*value, labels) for value in values]
