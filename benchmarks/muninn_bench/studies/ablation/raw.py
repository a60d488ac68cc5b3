"""The raw folder of one teacher: everything the tables and plots are functions of.

A cell is one program measured on the calls of one stream, in a file of its own. A cell that is
there is not measured again, so an interrupted study goes on where it stopped. The page needs
``study.json`` and cells; whatever else is missing leaves its columns empty.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.paper.ghost import GhostPairs
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE

CALIBRATE, TEST = "calibrate", "test"


@dataclass(frozen=True)
class Key:
    """What a cell measures; settings are JSON-ready and say all else that defines the program."""

    method: str  # static-0.05, fewsteps, paper, ...
    order: int  # in the method's family, 0 is the most conservative
    stream: str  # calibrate or test
    settings: dict[str, Any] = field(default_factory=dict)

    def filename(self) -> str:
        """A readable name that changes with the settings."""
        content = json.dumps([self.method, self.order, self.settings], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        return f"{self.stream}-{self.method}-{self.order:02d}-{digest}.safetensors"


@dataclass(frozen=True)
class Cell:
    """What a program did on the calls of a stream, at least one.

    The estimate is the accumulated one of the error; of the paper's budget, its ``Dhat``. Plans are
    states of the first calls in world units, every second frame; kept until they are driven.
    """

    key: Key
    device: str
    deviation: FloatArray  # from full compute, metric rms_step, (calls,)
    evaluations: FloatArray  # of the network's core, (calls,)
    estimate: FloatArray  # (calls,)
    collided: npt.NDArray[np.bool_]  # with a wall inflated by the ball's radius, (calls,)
    success: npt.NDArray[np.bool_]  # as the environment says, (driven,); empty before
    evaluated: FloatArray  # share of calls evaluated at each step, (steps,)
    charged: FloatArray  # mean part of the estimate charged to each step, (steps,)
    plans: npt.NDArray[np.float16]


_ARRAYS = tuple(entry.name for entry in fields(Cell))[2:]


def save_cell(folder: Path, cell: Cell) -> Path:
    """Write a cell; half a file is never left behind."""
    arrays = {name: np.ascontiguousarray(getattr(cell, name)) for name in _ARRAYS}
    described = json.dumps({**asdict(cell.key), "device": cell.device})
    return write_whole(folder / cell.key.filename(), save(arrays, metadata={"cell": described}))


def load_cell(path: Path) -> Cell:
    """Read a cell."""
    with safe_open(path, framework="np") as stored:
        metadata = stored.metadata() or {}
        if "cell" not in metadata:
            raise InputError(f"{path} is not a cell of a study; remove it or choose another folder")
        arrays = {name: stored.get_tensor(name) for name in _ARRAYS}
    described = json.loads(metadata["cell"])
    device = described.pop("device")
    return Cell(Key(**described), device, **arrays)


def settings_text(settings: dict[str, Any]) -> str:
    """Settings in one short line.

    >>> settings_text({"threshold": 0.1, "look_back": True})
    'threshold 0.1, look_back True'
    """
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
        if not isinstance(value, dict | list)
    )


_PAPER_KEYS = ("sensitivity", "longest_age", "prefix", "suffix", "calls", "depth", "score")


def ghost_path(folder: Path, prefix: int, suffix: int, depth: str, score: str) -> Path:
    """Where the pairs of a probe lie that were collected with a forbidden prefix and suffix."""
    return folder / "ghost" / f"ghost-p{prefix}-s{suffix}-{depth}-{score}.safetensors"


class Raw:
    """A raw folder, read; timing and overhead are empty, clearance is None, where not measured.

    Raises:
        InputError: the folder holds no cells, or no word of what they are of.
    """

    def __init__(self, folder: Path) -> None:
        paths = sorted((folder / "cells").glob("*.safetensors"))
        files = [folder / name for name in ("study.json", "timing.json", "overhead.json")]
        if not paths or not files[0].is_file():
            raise InputError(
                f"{folder} holds no measured cell (cells/*.safetensors) or no study.json; run the "
                "study first, or give the folder it wrote"
            )
        self.folder, self.cells = folder, [load_cell(path) for path in paths]
        read = [json.loads(file.read_text()) if file.is_file() else {} for file in files]
        self.info, self.timing, self.overhead = read
        self.steps: int = self.info["steps"]
        self.confidence: float = self.info["confidence"]
        self.tolerances: list[float] = sorted(self.info["tolerances"])
        self.risks: list[float] = sorted(self.info["risks"])
        # Smallest distance of each full test plan to a wall, metres, (calls,).
        path = folder / "clearance.npy"
        self.clearance: FloatArray | None = np.load(path).astype(float) if path.is_file() else None

    @cached_property
    def methods(self) -> list[str]:
        """Names of the methods, sorted."""
        return sorted({cell.key.method for cell in self.cells})

    def family(self, method: str, stream: str = TEST) -> list[Cell]:
        """Members of a method on one stream, conservative first."""
        found = [c for c in self.cells if c.key.method == method and c.key.stream == stream]
        found.sort(key=lambda cell: cell.key.order)
        if len({cell.key.order for cell in found}) < len(found):
            raise InputError(
                f"the folder holds cells of two families for {method!r}; measure into an empty "
                "folder, or remove the older cells"
            )
        return found

    def find(self, method: str, **settings: Any) -> Cell | None:
        """The test cell of a method whose settings agree with those given."""
        found = (c for c in self.family(method) if settings.items() <= c.key.settings.items())
        return next(found, None)

    @cached_property
    def full(self) -> Cell | None:
        """Full compute on the test stream."""
        return self.find("full")

    def tolerances_of(self, kind: str) -> list[float]:
        """Tolerances for which a family ``{kind}-{tolerance}`` was measured."""
        return [value for value in self.tolerances if f"{kind}-{value:g}" in self.methods]

    def words(self) -> dict[str, Any]:
        """What the texts of tables and pictures name in braces."""
        usual = f" Unless said otherwise, the paper's method has {settings_text(self.published)}."
        return {
            "risk": RISK,
            "kept": 1.0 - RISK,
            "tolerance": TOLERANCE,
            "confidence": self.confidence,
            "doubt": 1.0 - self.confidence,
            "usual": usual if self.published else "",
            "hardware": self.timing.get("hardware"),
        }

    # -- times -------------------------------------------------------------------------------

    def timed(self, cell: Cell) -> dict[str, Any]:
        """What ``timing.json`` says about a cell's program; empty if it was not timed."""
        if cell.key.method == "full":
            return {"seconds": self.timing.get("full_seconds")}
        asked = (cell.key.method, cell.key.order, cell.key.settings)
        rows: list[dict[str, Any]] = self.timing.get("rows", [])
        same = (row for row in rows if (row["method"], row["order"], row["settings"]) == asked)
        return next(same, {})

    def milliseconds(self, cell: Cell | None) -> float | None:
        """Median time of a batch-1 call of a cell's program; None if it was not timed."""
        seconds = None if cell is None else self.timed(cell).get("seconds")
        return 1e3 * float(np.median(seconds)) if seconds else None

    def speed_up(self, cell: Cell) -> float | None:
        """Median time of full compute over that of a cell's program."""
        full, own = self.milliseconds(self.full), self.milliseconds(cell)
        return full / own if full and own else None

    # -- the published method ----------------------------------------------------------------

    @cached_property
    def published(self) -> dict[str, Any]:
        """Settings of the published method that a table does not vary: what most cells share."""
        seen = [cell.key.settings for cell in self.family("paper")]
        return {
            name: Counter(settings.get(name) for settings in seen).most_common(1)[0][0]
            for name in (_PAPER_KEYS if seen else ())
        }

    def paper(self, tolerance: float, risk: float, units: str, **settings: Any) -> Cell | None:
        """The published method at its usual settings, except those given."""
        wanted = {**self.published, **settings}
        return self.find("paper", tolerance=tolerance, risk=risk, units=units, **wanted)

    @cached_property
    def risk_tolerances(self) -> list[float]:
        """Tolerances at which the published method was run for more than one risk."""
        asked = [cell.key.settings for cell in self.family("paper")]
        risks = Counter(value for value, _ in {(own["tolerance"], own["risk"]) for own in asked})
        return sorted(value for value, count in risks.items() if count > 1) or [TOLERANCE]

    def sweep(self, *varied: str) -> list[Cell]:
        """Cells of the published method in which only ``varied`` leave their usual value.

        Tolerance, risk and units stay free, but combinations of them in which nothing was varied
        are left out. Ordered by tolerance, risk, units and then by what is varied.
        """
        groups: dict[tuple[Any, ...], list[Cell]] = {}
        for cell in self.family("paper"):
            own = cell.key.settings
            if all(own[name] == self.published[name] for name in _PAPER_KEYS if name not in varied):
                groups.setdefault((own["tolerance"], own["risk"], own["units"]), []).append(cell)
        return [
            cell
            for group in sorted(groups)
            if len(groups[group]) > 1
            for cell in sorted(groups[group], key=lambda c: [c.key.settings[n] for n in varied])
        ]

    def ghosts(self) -> Iterator[tuple[str, str, GhostPairs]]:
        """Depth, score and pairs of every probe at the usual forbidden steps, in a fixed order."""
        prefix, suffix = (self.published.get(name, "*") for name in ("prefix", "suffix"))
        pattern = ghost_path(self.folder, prefix, suffix, "*", "*")
        for path in sorted(pattern.parent.glob(pattern.name)):
            depth, score = path.stem.split("-", 3)[3].rsplit("-", 1)
            yield depth, score, GhostPairs.load(path)

    def probe_share(self, depth: str) -> float | None:
        """Time of a probe over that of the whole network."""
        stem, full = self.overhead.get("stem_ms", {}).get(depth), self.overhead.get("full_ms")
        return stem / full if stem is not None and full else None
