"""Audits: one unit of a deployed program compared with full compute, and logs of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import Certificate
from muninn.errors import InputError
from muninn.monitor.telemetry import read_lines


@dataclass(frozen=True)
class Audit:
    """One unit compared with full compute.

    Attributes:
        certificate: digest of the certificate that was deployed.
        robot, call: who and which call (for an episode: its last one); unique together.
        ordinal: number of the audit in the robot's own sequence, from 0.
        violated: whether the unit exceeded its tolerance.
        excess: worst deviation over tolerance; None where full compute failed.
        time: wall clock, seconds since the epoch; for people, never used for order.
    """

    certificate: str
    robot: str
    call: str
    ordinal: int
    violated: bool
    excess: float | None
    time: float

    def to_json(self) -> dict[str, Any]:
        """Plain values for a log."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Audit:
        """The audit that :meth:`to_json` described.

        Raises:
            InputError: a field is missing or has another type.
        """
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
    state = hashlib.sha256(json.dumps(promised, sort_keys=True).encode())
    state.update(np.ascontiguousarray(certificate.estimates, dtype=np.float64).tobytes())
    return state.hexdigest()[:16]


def watchable(certificate: Certificate) -> Certificate:
    """The certificate, if its risk can be tested.

    Raises:
        InputError: it is marginal: then nothing is promised about this one calibration.
    """
    if certificate.confidence is None:
        raise InputError(
            "a marginal certificate keeps its risk on average over calibrations only, so almost "
            "half of the correct ones would raise an alarm; calibrate with confidence=0.95"
        )
    return certificate


def read_audits(path: str | Path) -> list[Audit]:
    """The audits of a log in the order they were written; broken lines are skipped.

    Raises:
        InputError: a whole line is not an audit.
        OSError: the file cannot be read.
    """
    return [Audit.from_json(line) for line in read_lines(path) if "ordinal" in line]
