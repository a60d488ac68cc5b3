"""Examine a planner once: a calibration that is resumed goes by what was found before."""

from __future__ import annotations

from typing import Any

from muninn.certify.certificate import library_versions
from muninn.certify.examine import CALLS, Examined, examine
from muninn.certify.journal import Journal, code_digest
from muninn.certify.metrics import Metric
from muninn.certify.scan import other_answers
from muninn.errors import CalibrationError
from muninn.identity.arithmetic import Arithmetic
from muninn.identity.digest import digest
from muninn.model.planner import Planner
from muninn.programs.plan import Family


def calibration_of(
    planner: Planner, in_force: Arithmetic, family: Family | None, metric: Metric
) -> dict[str, Any]:
    """By what a journal knows every calibration, besides its units and settings; JSON-ready."""
    return {
        "planner": planner.identity(),
        "arithmetic": in_force,
        "family": None if family is None else family.to_json(),
        "metric": digest(metric, "metric"),
        "versions": {**library_versions(), "code": code_digest()},
    }


def known_by(
    planner: Planner, examined: Examined, units: Any, in_force: Arithmetic
) -> dict[str, Any]:
    """The fields of a certificate by which it will know its planner again."""
    return {
        "identity": planner.identity(examined.left_out),
        "versions": library_versions(),
        "arithmetic": in_force,
        "form": units.form,
        "together": examined.together,
        "questions": examined.questions,
        "unasked": examined.unasked,
    }


def examined_before(
    name: str, planner: Planner, units: Any, batch: int, journal: Journal
) -> Examined:
    """The examination of a planner; of one that is resumed, the answers it gave before.

    Raises:
        CalibrationError: the network of a resumed calibration is another one.
    """

    def code() -> str | None:
        """Digest of a network that has no answers to be known by, where it must be known again."""
        if examined.questions is not None or not journal.kept:
            return None
        return digest([planner.denoiser, planner.condition], "the planner's denoiser")

    stored = journal.get(f"examined/{name}")
    if stored is None:
        context, noise = units.examples(CALLS)
        examined = examine(planner, context, noise.to(planner.dtype), batch)
        journal.put(f"examined/{name}", [examined.to_json(), units.form, code()])
        return examined
    examined, units.form = Examined.from_json(stored[0]), stored[1]
    known = stored[2] == code()
    other = other_answers(planner, examined.questions) if known else "its code or condition differs"
    if other is not None:
        raise CalibrationError(
            f"the journal belongs to another calibration: the {name}'s network is another one, "
            f"{other}. Delete the journal, or resume with the network it was started with"
        )
    return examined
