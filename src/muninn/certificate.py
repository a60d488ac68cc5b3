"""The certificate: what was promised, for which program, from which calls. One safetensors file."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
import torch

from muninn.arithmetic import Arithmetic
from muninn.errors import CertificateError, MuninnError
from muninn.files import write_whole
from muninn.plan import Family, Program
from muninn.planner import Planner
from muninn.schedule import FloatArray

SCHEMA = 1
_KEY = "muninn_certificate"


def library_versions() -> dict[str, str]:
    """Versions that can change what a program computes."""
    try:
        own = metadata.version("muninn-diffusion")
    except metadata.PackageNotFoundError:
        own = "0.0.0"
    return {"muninn": own, "torch": torch.__version__, "python": platform.python_version()}


@dataclass(frozen=True)
class Bound:
    """Per-call bound on the deviation: ``Dhat = max(m(A) + quantile, 0)``.

    ``m`` is an isotonic fit of the deviation on the accumulated estimate ``A``; ``quantile`` is
    the conformal residual of calls that had no part in the fit or in choosing the member.

    Attributes:
        estimate, deviation: knots of m, both increasing.
        quantile: residual added to it.
    """

    estimate: FloatArray
    deviation: FloatArray
    quantile: float

    def __call__(self, estimate: FloatArray) -> FloatArray:
        """Dhat of calls with the given accumulated estimates."""
        fitted = np.interp(estimate, self.estimate, self.deviation)
        result: FloatArray = np.maximum(fitted + self.quantile, 0.0)
        return result


@dataclass(frozen=True)
class Certificate:
    """A promise about one program, and everything needed to check that it is the one deployed.

    Attributes:
        identity: :meth:`Planner.identity` of the calibrated planner.
        reference: identity of the planner whose full compute is the truth; None if its own.
        family: the frozen family.
        member: which one was certified; 0 is full compute.
        tolerance: in units of the metric; None if it is a function of the context.
        tolerance_name: its name if it is a function.
        risk: share of units that may exceed the tolerance.
        confidence: probability over calibrations that the risk is kept; None is marginal.
        unit: ``call`` or ``episode``.
        loop: ``open`` (contexts were given) or ``closed`` (each member drove its own episodes).
        metric: name of the deviation.
        batch_size: rows per call during calibration.
        counts: units in the tune, certify and bound splits.
        seed: of splits and noise.
        realised: per scanned member: evaluations, deviation and violations on the certify split.
        estimates: sorted accumulated estimates of the certified member on the certify split.
        bound: per-call bound.
        versions: libraries at calibration.
        arithmetic: :func:`muninn.arithmetic.arithmetic` in force at calibration. Compared at every
            call, not when the certificate is loaded: that is done outside of autocast.
    """

    identity: dict[str, Any]
    reference: dict[str, Any] | None
    family: Family
    member: int
    tolerance: float | None
    tolerance_name: str | None
    risk: float
    confidence: float | None
    unit: str
    loop: str
    metric: str
    batch_size: int
    counts: dict[str, int]
    seed: int
    realised: list[dict[str, Any]]
    estimates: FloatArray
    bound: Bound
    versions: dict[str, str]
    arithmetic: Arithmetic = None

    @property
    def program(self) -> Program:
        """The certified program."""
        return self.family.member(self.member)

    def rank(self, estimate: FloatArray) -> FloatArray:
        """Share of calibration calls whose accumulated estimate was smaller."""
        place = np.searchsorted(self.estimates, estimate)
        result: FloatArray = place / max(len(self.estimates), 1)
        return result

    def promise(self) -> str:
        """The promise in one plain sentence."""
        size = (
            f"{self.tolerance:g}"
            if self.tolerance is not None
            else f"{self.tolerance_name}(context)"
        )
        what = "calls" if self.unit == "call" else "episodes (worst call)"
        if self.loop == "closed" and self.unit == "call":
            what = "episodes, looked at in one call drawn at random,"
        certainty = (
            "averaged over calibrations"
            if self.confidence is None
            else f"with confidence {self.confidence:.0%} over the calibration draw"
        )
        return (
            f"At most {self.risk:.1%} of new {what} deviate from full compute by more than {size} "
            f"({self.metric}), {certainty}, for contexts like those calibrated ({self.loop} loop)."
        )

    # -- matching ----------------------------------------------------------------------------

    def mismatches(self, planner: Planner) -> list[str]:
        """Fields in which a planner differs from the calibrated one, readable; [] if none."""
        found = _differences("", self.identity, planner.identity())
        now = library_versions()
        for library in ("muninn", "torch"):
            was, here = self.versions[library], now[library]
            if _major(was) != _major(here):
                found.append(f"versions.{library}: certificate {was}, here {here}")
        return found

    # -- the file ----------------------------------------------------------------------------

    def _json(self) -> dict[str, Any]:
        data = {
            "schema": SCHEMA,
            "identity": self.identity,
            "reference": self.reference,
            "family": self.family.to_json(),
            "member": self.member,
            "tolerance": self.tolerance,
            "tolerance_name": self.tolerance_name,
            "risk": self.risk,
            "confidence": self.confidence,
            "unit": self.unit,
            "loop": self.loop,
            "metric": self.metric,
            "batch_size": self.batch_size,
            "counts": self.counts,
            "seed": self.seed,
            "realised": self.realised,
            "bound_quantile": self.bound.quantile,
            "versions": self.versions,
        }
        # Named only where it is not torch's own, so that older certificates stay what they were.
        return data if self.arithmetic is None else {**data, "arithmetic": self.arithmetic}

    def save(self, path: str | Path) -> Path:
        """Write the certificate; the file appears whole or not at all."""
        path = Path(path)
        arrays = {
            "estimates": self.estimates,
            "bound_estimate": self.bound.estimate,
            "bound_deviation": self.bound.deviation,
        }
        data = self._json()
        document = {"certificate": data, "checksum": _checksum(data, arrays)}
        # One key: safetensors writes several in random order, and equal files should be equal.
        payload = safetensors.numpy.save(arrays, {_KEY: json.dumps(document, sort_keys=True)})
        try:
            return write_whole(path, payload)
        except OSError as error:
            raise CertificateError(
                f"{path}: cannot be written ({error.strerror}); free space or choose another path"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate.

        Raises:
            CertificateError: names the field that is missing, damaged or too new.
        """
        path = Path(path)
        data, checksum, arrays = _read(path)
        schema = data.get("schema")
        if schema != SCHEMA:
            raise CertificateError(
                f"{path}: field 'schema' is {schema}, this version of Muninn reads {SCHEMA}; "
                "upgrade muninn-diffusion or calibrate again"
            )
        if checksum != _checksum(data, arrays):
            raise CertificateError(
                f"{path}: field 'checksum' does not match the content; the file was damaged or "
                "edited. Calibrate again or restore a copy"
            )
        try:
            return cls(
                family=Family.from_json(data["family"]),
                bound=Bound(
                    arrays["bound_estimate"], arrays["bound_deviation"], data["bound_quantile"]
                ),
                estimates=arrays["estimates"],
                arithmetic=data.get("arithmetic"),
                **{name: data[name] for name in _PLAIN},
            )
        except (KeyError, TypeError, MuninnError) as error:
            raise CertificateError(f"{path}: field {error} is missing or malformed") from error


_PLAIN = (
    "identity", "reference", "member", "tolerance", "tolerance_name", "risk", "confidence",
    "unit", "loop", "metric", "batch_size", "counts", "seed", "realised", "versions",
)  # fmt: skip


def _read(path: Path) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Plain fields, stored checksum and arrays of a file."""
    if not path.is_file():
        raise CertificateError(f"{path}: no such file; calibrate first or check the path")
    try:
        with safetensors.safe_open(str(path), "numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise CertificateError(
            f"{path}: field 'file' cannot be read ({error}); it is truncated or not a certificate. "
            "Calibrate again or restore a copy"
        ) from error
    if _KEY not in header:
        raise CertificateError(
            f"{path}: field '{_KEY}' is missing; this is a safetensors file, but not a Muninn "
            "certificate"
        )
    try:
        document = json.loads(header[_KEY])
        return dict(document["certificate"]), str(document["checksum"]), arrays
    except (ValueError, KeyError, TypeError) as error:
        raise CertificateError(
            f"{path}: field '{_KEY}' is damaged ({error}). Calibrate again or restore a copy"
        ) from error


def _major(version: str) -> list[str]:
    """The part of a version within which nothing that matters changes; 0.x counts x."""
    parts = version.split(".")
    return parts[:2] if parts[0] == "0" else parts[:1]


def _checksum(data: dict[str, Any], arrays: dict[str, Any]) -> str:
    state = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    for name in sorted(arrays):
        state.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        state.update(np.ascontiguousarray(arrays[name]).tobytes())
    return state.hexdigest()


def _differences(prefix: str, was: Any, now: Any) -> list[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for key in sorted(was.keys() | now.keys()):
            found += _differences(f"{prefix}.{key}".lstrip("."), was.get(key), now.get(key))
        return found
    return [] if was == now else [f"{prefix}: certificate {was}, planner {now}"]
