"""The raw folder of one teacher: everything the tables and plots are functions of.

Only the cells are needed; whatever else is missing leaves its columns empty.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn.paper.ghost import GhostPairs
from muninn_bench.studies.ablation.cells import TEST, Cell, Key, Study

RISK = 0.05
TOLERANCE = 0.05
RISKS = (0.01, 0.05, 0.10, 0.20)
CONFIDENCE = 0.95
UNITS = ("algorithm", "appendix", "mended")
_GHOST = re.compile(r"ghost-p(\d+)-s(\d+)-(stem-1|stem-2|input)-(\w+)\.safetensors")
_PAPER_KEYS = ("sensitivity", "longest_age", "prefix", "suffix", "calls", "depth", "score")


@dataclass(frozen=True)
class Ghost:
    """Where the pairs of one probe lie."""

    prefix: int
    suffix: int
    depth: str
    score: str
    path: Path

    def pairs(self) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
        """Scores and errors at the eligible steps, both (calls, eligible), and these steps."""
        pairs = GhostPairs.load(self.path)
        return pairs.scores[:, pairs.eligible], pairs.errors[:, pairs.eligible], pairs.eligible


@dataclass(frozen=True, eq=False)
class Raw:
    """A raw folder, read.

    Attributes:
        folder: where it lies.
        info: ``study.json``; empty if missing.
        study: all cells.
        timing: ``timing.json``; empty if nothing was timed.
        overhead: ``overhead.json``; empty if not measured.
        clearance: smallest distance of each full test plan to a wall, metres, (calls,), or None.
    """

    folder: Path
    info: dict[str, Any]
    study: Study
    timing: dict[str, Any]
    overhead: dict[str, Any]
    clearance: FloatArray | None

    @classmethod
    def load(cls, folder: Path) -> Raw:
        """Read a folder.

        Raises:
            InputError: it holds no cells.
        """
        study = Study.load(folder / "cells")
        if not study.cells:
            raise InputError(
                f"{folder / 'cells'} holds no measured cell (*.safetensors); run the study first, "
                "or give the folder it wrote"
            )
        clearance = folder / "clearance.npy"
        return cls(
            folder,
            _read_json(folder / "study.json"),
            study,
            _read_json(folder / "timing.json"),
            _read_json(folder / "overhead.json"),
            np.load(clearance).astype(np.float64) if clearance.is_file() else None,
        )

    @cached_property
    def steps(self) -> int:
        """T, the sampler's steps."""
        return int(self.info.get("steps") or len(self.study.cells[0].evaluated))

    @cached_property
    def tolerances(self) -> list[float]:
        """Tolerances of the study, ascending."""
        given = self.info.get("tolerances")
        if given is None:
            given = [*self.tolerances_of("static"), *self.tolerances_of("adaptive")]
            given += [
                cell.key.settings.get("tolerance") for cell in self.study.family("paper", TEST)
            ]
        found = sorted({float(value) for value in given if value is not None})
        return found or [TOLERANCE]

    @property
    def risks(self) -> list[float]:
        """Risks of the study, ascending."""
        return sorted(float(risk) for risk in self.info.get("risks") or RISKS)

    @property
    def confidence(self) -> float:
        """Of every certificate."""
        return float(self.info.get("confidence") or CONFIDENCE)

    @cached_property
    def tolerance(self) -> float:
        """The tolerance of tables that have one: 0.05, or the nearest there is."""
        return min(self.tolerances, key=lambda value: abs(np.log(value / TOLERANCE)))

    @cached_property
    def risk_tolerances(self) -> list[float]:
        """Tolerances at which the published method was run for more than one risk."""
        risks: dict[float, set[float]] = {}
        for cell in self.study.family("paper", TEST):
            asked = cell.key.settings
            risks.setdefault(float(asked["tolerance"]), set()).add(float(asked["risk"]))
        return sorted(one for one, seen in risks.items() if len(seen) > 1) or [self.tolerance]

    def tolerances_of(self, prefix: str) -> list[float]:
        """Tolerances for which a family ``{prefix}-{tolerance}`` was measured."""
        found = [re.fullmatch(rf"{prefix}-([0-9.e-]+)", name) for name in self.study.methods()]
        return sorted(float(match.group(1)) for match in found if match)

    def full(self, calls: int = 0) -> Cell:
        """Full compute on the test stream; without its cell, what is known without measuring."""
        measured = self.study.family("full", TEST)
        if measured:
            return measured[0]
        zeros, nothing = np.zeros(calls), np.zeros(0, dtype=bool)
        spent = np.full(calls, float(self.steps))
        every, none = np.ones(self.steps), np.zeros(self.steps)
        plans = np.zeros((0,), dtype=np.float16)
        return Cell(
            Key("full", 0, TEST), "", zeros, spent, zeros, nothing, nothing, every, none, plans
        )

    def seconds(self, cell: Cell) -> float | None:
        """Median time of a batch-1 call of a cell's program; None if it was not timed."""
        if cell.key.method == "full":
            return _median(self.timing.get("full_seconds"))
        row = self.timed(cell)
        return None if row is None else _median(row.get("seconds"))

    def timed(self, cell: Cell) -> dict[str, Any] | None:
        """The row of ``timing.json`` about a cell's program."""
        for row in self.timing.get("rows", []):
            if row.get("method") == cell.key.method and _same(row, cell.key):
                return dict(row)
        return None

    def speed_up(self, cell: Cell) -> float | None:
        """Median time of full compute over that of a cell's program."""
        full, own = _median(self.timing.get("full_seconds")), self.seconds(cell)
        return None if full is None or not own else full / own

    def ghosts(self) -> Iterator[Ghost]:
        """Files of probe scores and reuse errors, in a fixed order."""
        for path in sorted((self.folder / "ghost").glob("*.safetensors")):
            if match := _GHOST.fullmatch(path.name):
                prefix, suffix, depth, score = match.groups()
                yield Ghost(int(prefix), int(suffix), depth, score, path)

    def probe_share(self, depth: str = "stem-1") -> float | None:
        """Time of a probe over that of the whole network."""
        stem = self.overhead.get("stem_ms", {}).get(depth)
        full = self.overhead.get("full_ms")
        return None if stem is None or not full else float(stem) / float(full)

    @cached_property
    def published(self) -> dict[str, Any]:
        """Settings of the published method that a table does not vary."""
        tenth = -(-self.steps // 10)
        usual = {
            "sensitivity": True, "longest_age": None, "prefix": tenth, "suffix": tenth,
            "calls": None, "depth": "stem-1", "score": "relative_l1",
        }  # fmt: skip
        for name, value in usual.items():
            seen = Counter(cell.key.settings.get(name) for cell in self.study.family("paper", TEST))
            if seen and value not in seen:
                # A small study may use other numbers throughout: what most cells share.
                usual[name] = max(seen, key=lambda option: (seen[option], _sortable(option)))
        return usual

    def paper(self, tolerance: float, risk: float, units: str, **settings: Any) -> Cell | None:
        """The published method at its usual settings, except those given."""
        wanted = {**self.published, **settings}
        return self.study.find("paper", tolerance=tolerance, risk=risk, units=units, **wanted)

    def sweep(self, *varied: str) -> list[Cell]:
        """Cells of the published method in which only ``varied`` leave their usual value.

        Tolerance, risk and units stay free, but combinations of them in which nothing was varied
        are left out. Ordered by tolerance, risk, units and then by what is varied.
        """
        fixed = [name for name in _PAPER_KEYS if name not in varied]
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in self.study.family("paper", TEST):
            settings = cell.key.settings
            if all(settings.get(name) == self.published[name] for name in fixed):
                group = tuple(settings.get(name) for name in ("tolerance", "risk", "units"))
                groups.setdefault(group, []).append(cell)
        found: list[Cell] = []
        for group in sorted(groups, key=lambda values: [_sortable(value) for value in values]):
            own = groups[group]
            if len(own) > 1:
                own.sort(key=lambda cell: [_sortable(cell.key.settings.get(n)) for n in varied])
                found += own
        return found


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _median(values: Any) -> float | None:
    return float(np.median(values)) if values else None


def _same(row: dict[str, Any], key: Key) -> bool:
    """Whether a timed row is about a program: by its place in the family, else by settings."""
    settings = row.get("settings") or {}
    if key.method == "paper" or row.get("order") is None:
        return bool(settings == key.settings)  # the paper's cells have no place in a family
    shared = [name for name in settings if name in key.settings]
    return row["order"] == key.order and all(settings[n] == key.settings[n] for n in shared)


def _sortable(value: Any) -> tuple[bool, Any]:
    """Numbers before words, so that mixed settings have an order."""
    return (True, value) if isinstance(value, str) else (False, float(value or 0))
