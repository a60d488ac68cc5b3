"""What a run folder knows of every promise: which program keeps it, and what it did on fresh calls.

``lines.json`` and ``judged.safetensors`` are written after every promise.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.programs.plan import AnyProgram
from muninn_bench.measure.alternatives import FEWSTEPS
from muninn_bench.studies.suite.entrants import FULL, Entrant
from muninn_bench.studies.suite.promises import Judged

FULL_LINE = "full"
OURS, CLOSED, MEAN = "muninn", "muninn-episodes", "muninn-mean-score"
"""Our lines: certified on given contexts, on contexts of its own, and for the mean score."""

SOLVER = "dpmsolver"
ALTERNATIVES = (FEWSTEPS, SOLVER)
"""Published methods with tuned spacing, each alone under the same certificate."""

POINTS_UNIT, EVALUATIONS = "points of the mean score", "evaluations"
"""Units of what is neither a deviation nor its tolerance."""

FIDELITY = "fidelity"
"""First part of the names of what only drives episodes: alternatives at given evaluations."""


@dataclass(frozen=True)
class Line:
    """A method under one promise; calls are fresh ones, None where the promise is about episodes.

    ``key`` names its deviations in ``judged.safetensors``; full compute stands in where nothing
    cheaper is certified.
    """

    method: str
    tolerance: float | None = None
    unit: str | None = None
    certified: bool = False
    kind: str = FULL.kind
    told: str = FULL.told
    program: str = ""
    evaluations_mean: float | None = None
    deviation_mean: float | None = None
    violations: int | None = None
    calls: int | None = None
    switched: float | None = None

    @classmethod
    def of(cls, method: str, tolerance: float, unit: str, program: AnyProgram | None) -> Line:
        """The line of a certified program; of full compute where there is none."""
        entrant = FULL if program is None else Entrant.of(program)
        return cls(
            method,
            tolerance,
            unit,
            certified=program is not None,
            kind=entrant.kind,
            told=entrant.told,
            program="full compute" if program is None else str(program),
        )

    @property
    def entrant(self) -> Entrant:
        """Who plans."""
        return Entrant(self.kind, self.told)  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        """Unlike that of any other line."""
        return "/".join(map(str, (self.method, self.tolerance, self.unit)))


class Lines:
    """The lines of a run folder, in the order in which they came."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self._path, self._judged = folder / "lines.json", folder / "judged.safetensors"
        self._identity = json.loads(json.dumps(identity))
        self._lines: dict[str, Line] = {}
        if not self._path.is_file():
            if (folder / "drives").exists():
                raise InputError(
                    f"{folder} holds episodes of another run; delete it, or choose another folder "
                    "with --out"
                )
            self._write()  # episodes that come before the first line are of this planner
            return
        stored = json.loads(self._path.read_text())
        if stored["identity"] != self._identity:
            other = [k for k, v in self._identity.items() if stored["identity"].get(k) != v]
            raise InputError(
                f"{self._path} is of a run with other {', '.join(other)}; delete {folder}, or "
                "choose another folder with --out"
            )
        self._lines = {line.key: line for line in (Line(**own) for own in stored["lines"])}

    def __iter__(self) -> Any:
        return iter(self._lines.values())

    def __contains__(self, line: Line) -> bool:
        return line.key in self._lines

    def find(self, method: str, tolerance: float, unit: str) -> Line | None:
        """The line of a method under a promise, if it is there."""
        return self._lines.get(Line(method, tolerance, unit).key)

    def add(self, line: Line, deviation: FloatArray | None = None) -> None:
        """Keep a line, and the deviations behind it."""
        if deviation is not None:
            arrays = {**self.deviations(), line.key: deviation.astype(np.float32)}
            write_whole(self._judged, safetensors.numpy.save(arrays))
        self._lines[line.key] = line
        self._write()

    def _write(self) -> None:
        lines = [asdict(own) for own in self._lines.values()]
        document = {"identity": self._identity, "lines": lines}
        write_whole(self._path, json.dumps(document, indent=1) + "\n")

    def deviations(self) -> dict[str, Any]:
        """Of every line that was judged on calls, by its key."""
        if not self._judged.is_file():
            return {}
        return safetensors.numpy.load_file(self._judged)


def judged_figures(judged: Judged, tolerance: float) -> dict[str, Any]:
    """The part of a line that fresh calls give."""
    return {
        "evaluations_mean": float(judged.evaluations.mean()),
        "deviation_mean": float(judged.deviation.mean()),
        "violations": int((judged.deviation > tolerance).sum()),
        "calls": len(judged.deviation),
        "switched": judged.switched,
    }
