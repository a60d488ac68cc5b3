"""The certificate: what was promised, for which program, from which calls. One safetensors file."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify import certificate_file
from muninn.certify.metrics import Metric, Tolerance, metric_name, resolve
from muninn.certify.promise import promise_of
from muninn.certify.questions import Questions
from muninn.certify.unchecked import UNCHECKED
from muninn.errors import CertificateError, InputError, MuninnError
from muninn.identity.arithmetic import Arithmetic
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.programs.plan import AnyProgram, Family


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
    """

    estimate: FloatArray  # knots of m, increasing like their deviation
    deviation: FloatArray
    quantile: float

    def fitted(self, estimate: FloatArray) -> FloatArray:
        """``m(A)``; a call whose estimate is missing (NaN) counts as the hardest."""
        known = np.where(np.isnan(estimate), np.inf, estimate)
        return np.asarray(np.interp(known, self.estimate, self.deviation))

    def __call__(self, estimate: FloatArray) -> FloatArray:
        """Dhat of calls with the given accumulated estimates."""
        return np.asarray(np.maximum(self.fitted(estimate) + self.quantile, 0.0))


@dataclass(frozen=True, repr=False)
class Certificate:
    """A promise about one program, and everything needed to check that it is the one deployed."""

    identity: dict[str, Any]  # of the calibrated planner
    reference: dict[str, Any] | None  # identity of the planner that is the truth; None if its own
    family: Family
    member: int  # of the family that was certified; 0 is full compute
    tolerance: float | None  # in units of the metric; None if it is a function of the context
    tolerance_name: str | None  # of that function
    risk: float  # share of units that may exceed the tolerance
    confidence: float | None  # over calibrations, that the risk is kept; None is marginal
    unit: str  # "call" or "episode"
    loop: str  # "open": contexts were given; "closed": each member drove its own episodes
    metric: str
    batch_size: int  # rows per call during calibration
    counts: dict[str, int]  # units in the tune, certify and bound splits
    seed: int  # of splits and noise
    realised: list[dict[str, Any]]  # figures of each scanned member on the certify split
    estimates: FloatArray  # accumulated ones of the certified member on that split, sorted
    bound: Bound | None  # None where an outcome is promised
    versions: dict[str, str]  # of libraries
    arithmetic: Arithmetic = None  # compared at every call: a file is loaded outside of autocast
    form: dict[str, Any] | None = None  # of the calibrated contexts; None in an older file
    together: bool = True  # rows do not influence each other; else calls have one row
    questions: Questions | None = None
    unasked: str | None = None  # why there are no questions
    # The last member that a call may choose by itself; None in an older file: any up to `member`.
    choosable: int | None = None
    # Where an outcome is promised instead of a deviation: what, and what else was seen.
    outcome: dict[str, Any] | None = None
    calibrated_on: str = ""  # marks of the given contexts: they cannot judge it
    schema: int = certificate_file.SCHEMA  # 1 has neither questions nor form

    def choices(self) -> list[int]:
        """Members among which a call may choose by itself, for whatever reason, the certified one
        the last: all up to it where their running maximum keeps the promise, too, else full compute
        and itself. A closed-loop promise is about a member that drives the whole episode."""
        if self.loop == "closed":
            return [self.member]
        # In schemas 3 and 4 the member and the free choice hold one by one, not both together.
        together = self.confidence is None or self.schema not in (3, 4)
        if self.choosable in (None, self.member) and together:
            return list(range(self.member + 1))
        # Full compute that was measured deviates, too, and the two were not counted together.
        measured = any(row["member"] == 0 for row in self.realised)
        return [self.member] if measured else sorted({0, self.member})

    @property
    def program(self) -> AnyProgram:
        """The certified program."""
        return self.family.member(self.member)

    def rank(self, estimate: FloatArray) -> FloatArray:
        """Share of calibration calls whose accumulated estimate was smaller; 1 if it is missing."""
        place = np.searchsorted(self.estimates, estimate) / max(len(self.estimates), 1)
        return np.asarray(np.where(np.isnan(estimate), 1.0, place))

    def promise(self) -> str:
        """The promise in one plain sentence."""
        return promise_of(self)

    def __str__(self) -> str:
        return self.promise()

    def __repr__(self) -> str:
        return f"<Certificate: {self.promise()}>"

    def terms(
        self, metric: str | Metric | None, tolerance: Tolerance | None
    ) -> tuple[Metric, Tolerance]:
        """Metric and tolerance of the promise; functions that are the user's own are given.

        Raises:
            InputError: a function is missing, or is another one.
        """
        try:
            name, deviation = resolve(self.metric if metric is None else metric)
        except InputError as error:
            raise InputError(
                f"{error}; the promise is in {self.metric!r}: pass the function as metric="
            ) from error
        if name != self.metric:
            raise InputError(f"the promise is in {self.metric!r}, got {name!r}")
        limit = self.tolerance if tolerance is None else tolerance
        promised = self.tolerance_name if self.tolerance is None else self.tolerance
        if limit is None or (metric_name(limit) if callable(limit) else limit) != promised:
            raise InputError(
                f"the promise has the tolerance {promised!r}, got {limit!r}; pass the one that it "
                "was calibrated with as tolerance="
            )
        return deviation, limit

    # -- matching ----------------------------------------------------------------------------

    def mismatches(self, planner: Planner) -> list[str]:
        """Fields in which a planner differs from the calibrated one, readable; [] if none.

        The network is asked the stored questions where all else agrees.
        """
        return self.differences(planner) or self.other_answers(planner)

    def differences(self, planner: Planner) -> list[str]:
        """Mismatches that can be seen without running the network: weights, sampler, versions.

        What the calibrated network was seen to rewrite by itself is left out.
        """
        if self.schema == 1:
            here = _older(planner.identity(older=True))
        else:
            here = planner.identity(self.identity["model"].get("left_out", ()))
        found = differences("", self.identity, here)
        now = library_versions()
        for library in ("muninn", "torch"):
            was, is_now = self.versions[library], now[library]
            if _generation(was) != _generation(is_now):
                found.append(f"versions.{library}: certificate {was}, here {is_now}")
        return found

    def other_answers(self, planner: Planner, after: Callable[[], None] | None = None) -> list[str]:
        """Ask the network the stored questions; how its answers differ, or [].

        Its buffers and all random generators are left as they were. ``after`` is called whenever
        the network has answered.
        """
        if self.questions is None:
            return []
        difference = self.questions.difference(planner, self.arithmetic, after)
        return [] if difference is None else [f"network: {difference}"]

    def caveats(self, planner: Planner) -> list[str]:
        """What a user of this certificate should be told, in words."""
        elsewhere = None if self.questions is None else self.questions.elsewhere(planner.device)
        said = [] if elsewhere is None else [elsewhere]
        return said + [f"not checked: {words}" for words in self._own_unchecked()]

    def unchecked(self) -> list[str]:
        """What nobody checks when this certificate is used, in words."""
        return [*self._own_unchecked(), *UNCHECKED]

    def _own_unchecked(self) -> list[str]:
        own = []
        if self.schema == 1:
            own.append(
                "this file is of an older kind: it holds no questions to the network and no form "
                "of its contexts, so that the same weights in another computation are accepted"
            )
        elif self.questions is None:
            own.append(f"this network's answers: {self.unasked or 'none were stored'}")
        if self.identity["model"]["weights"] is None:
            own.append("this network's weights: none were found")
        return own

    # -- the file ----------------------------------------------------------------------------

    def _fields(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Plain fields and arrays."""
        names = [name for name, since in _FIELDS.items() if self.schema >= since]
        data = {name: getattr(self, name) for name in names}
        data["family"] = self.family.to_json()
        data["bound_quantile"] = None if self.bound is None else self.bound.quantile
        # Only where there is one, so that older certificates stay what they were.
        data |= {name: getattr(self, name) for name in _LATER if getattr(self, name)}
        arrays = {"estimates": self.estimates}
        if self.bound is not None:
            arrays["bound_estimate"] = self.bound.estimate
            arrays["bound_deviation"] = self.bound.deviation
        if self.questions is not None:
            data["questions"], asked = self.questions.to_file()
            arrays |= asked
        return data, arrays

    def save(self, path: str | Path) -> Path:
        """Write the certificate; the file appears whole or not at all."""
        return certificate_file.write(Path(path), *self._fields())

    @classmethod
    def load(cls, path: str | Path) -> Certificate:
        """Read a certificate.

        Raises:
            CertificateError: names the field that is missing, damaged or too new.
        """
        path = Path(path)
        data, arrays = certificate_file.read(path)
        asked = data.get("questions")
        try:
            bound = None
            if data["bound_quantile"] is not None:
                knots = arrays["bound_estimate"], arrays["bound_deviation"]
                bound = Bound(*knots, data["bound_quantile"])
            return cls(
                family=Family.from_json(data["family"]),
                bound=bound,
                estimates=arrays["estimates"],
                **{name: data[name] for name in _LATER if name in data},
                questions=None if asked is None else Questions.from_file(asked, arrays),
                **{name: data[name] for name, since in _FIELDS.items() if data["schema"] >= since},
            )
        except (KeyError, TypeError, MuninnError) as error:
            raise CertificateError(f"{path}: field {error} is missing or malformed") from error


_PLAIN = (
    "identity", "reference", "member", "tolerance", "tolerance_name", "risk", "confidence",
    "unit", "loop", "metric", "batch_size", "counts", "seed", "realised", "versions", "schema",
)  # fmt: skip
_FIELDS = {name: 1 for name in _PLAIN} | {name: 2 for name in ("form", "together", "unasked")}
_FIELDS |= {"choosable": 3, "outcome": 4}
"""Fields by the schema that they came with."""

_LATER = ("arithmetic", "calibrated_on")
"""Fields that a file may lack."""


def _generation(version: str) -> list[str]:
    """The part of a version within which nothing that matters changes; 0.x counts x."""
    parts = version.split(".")
    return parts[:2] if parts[0] == "0" else parts[:1]


def differences(prefix: str, was: Any, now: Any, whose: str = "planner") -> list[str]:
    """Places in which two nests of plain values differ, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for key in sorted(was.keys() | now.keys()):
            found += differences(f"{prefix}.{key}".lstrip("."), was.get(key), now.get(key), whose)
        return found
    return [] if was == now else [f"{prefix}: certificate {was}, {whose} {now}"]


def _older(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as schema 1 knew it: samplers without the digest of their table."""
    return {
        key: _older(value) if isinstance(value, dict) else value
        for key, value in identity.items()
        if key not in ("table", "condition_table", "left_out")
    }
