"""The raw folder of one teacher: everything the tables and plots are functions of.

A cell is one program measured on the calls of one stream, in a file of its own. A cell that is
there is not measured again, so an interrupted study goes on where it stopped. The page needs
``study.json`` and cells; whatever else is missing leaves its columns empty.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from muninn_bench.tasks.maze2d.maze import BALL_RADIUS

CALIBRATE, TEST = "calibrate", "test"


@dataclass(frozen=True)
class Named:
    """What a program is; settings are JSON-ready and say all that method and order do not."""

    method: str  # static-0.05, fewsteps, paper, ...
    order: int  # in the method's family, 0 is the most conservative
    settings: dict[str, Any]

    def filename(self, stream: str) -> str:
        """Of its cell on a stream: a readable name that changes with the settings."""
        content = json.dumps([self.method, self.order, self.settings], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        return f"{stream}-{self.method}-{self.order:02d}-{digest}.safetensors"


@dataclass(frozen=True)
class Cell(Named):
    """What a program did on the calls of a stream, at least one.

    The estimate is the accumulated one of the error; of the paper's budget, its ``Dhat``. Plans are
    states of the first calls in world units, every second frame; kept until they are driven.
    """

    stream: str  # calibrate or test
    device: str
    deviation: FloatArray  # from full compute, metric rms_step, (calls,)
    evaluations: FloatArray  # of the network's core, (calls,)
    estimate: FloatArray  # (calls,)
    clearance: FloatArray  # smallest distance of the plan to a wall, metres, (calls,)
    evaluated: FloatArray  # share of calls evaluated at each step, (steps,)
    charged: FloatArray  # mean part of the estimate charged to each step, (steps,)
    success: npt.NDArray[np.bool_]  # as the environment says, (driven,); empty before
    plans: npt.NDArray[np.float16]
    # Of the first calls, one at a time; empty before they are timed.
    seconds: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def collided(self) -> npt.NDArray[np.bool_]:
        """Whether each plan meets a wall inflated by the ball's radius, (calls,)."""
        return self.clearance < BALL_RADIUS

    @property
    def milliseconds(self) -> float | None:
        """Median time of a batch-1 call; None if it was not timed."""
        return 1e3 * float(np.median(self.seconds)) if len(self.seconds) else None


def save_cell(folder: Path, cell: Cell) -> Path:
    """Write a cell; half a file is never left behind."""
    parts = vars(cell).items()
    arrays = {k: np.ascontiguousarray(v) for k, v in parts if isinstance(v, np.ndarray)}
    described = json.dumps({name: value for name, value in parts if name not in arrays})
    path = folder / cell.filename(cell.stream)
    return write_whole(path, save(arrays, metadata={"cell": described}))


def load_cell(path: Path) -> Cell:
    """Read a cell.

    Raises:
        InputError: it is another file, or was written by another version.
    """
    with safe_open(path, framework="np") as stored:
        described = json.loads((stored.metadata() or {}).get("cell", "{}"))
        arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    try:
        return Cell(**described, **arrays)
    except TypeError as error:
        raise InputError(
            f"{path} is not a cell of this study; remove it or choose another folder"
        ) from error


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


def ghost_path(folder: Path, prefix: int, suffix: int, depth: str, score: str) -> Path:
    """Where the pairs of a probe lie that were collected with a forbidden prefix and suffix."""
    return folder / "ghost" / f"ghost-p{prefix}-s{suffix}-{depth}-{score}.safetensors"


class Raw:
    """A raw folder, read; ``timing`` is empty where nothing was timed.

    Raises:
        InputError: the folder holds no cells, or no word of what they are of.
    """

    def __init__(self, folder: Path) -> None:
        paths = sorted((folder / "cells").glob("*.safetensors"))
        files = [folder / name for name in ("study.json", "timing.json")]
        if not paths or not files[0].is_file():
            raise InputError(
                f"{folder} holds no measured cell (cells/*.safetensors) or no study.json; run the "
                "study first, or give the folder it wrote"
            )
        self.folder, self.cells = folder, [load_cell(path) for path in paths]
        self.info, self.timing = (json.loads(f.read_text()) if f.is_file() else {} for f in files)
        self.steps: int = self.info["steps"]
        self.confidence: float = self.info["confidence"]
        self.tolerances: list[float] = sorted(self.info["tolerances"])
        self.risks: list[float] = sorted(self.info["risks"])
        # Settings of the published method that a table does not vary.
        self.published: dict[str, Any] = self.info["published"]
        self.methods = sorted({cell.method for cell in self.cells})

    def family(self, method: str, stream: str = TEST) -> list[Cell]:
        """Members of a method on one stream, conservative first."""
        found = [c for c in self.cells if c.method == method and c.stream == stream]
        found.sort(key=lambda cell: cell.order)
        if len({cell.order for cell in found}) < len(found):
            raise InputError(
                f"the folder holds cells of two families for {method!r}; measure into an empty "
                "folder, or remove the older cells"
            )
        return found

    def find(self, method: str, **settings: Any) -> Cell | None:
        """The test cell of a method whose settings agree with those given."""
        found = (c for c in self.family(method) if settings.items() <= c.settings.items())
        return next(found, None)

    @cached_property
    def full(self) -> Cell | None:
        """Full compute on the test stream."""
        return self.find("full")

    def tolerances_of(self, kind: str) -> list[float]:
        """Tolerances for which a family ``{kind}-{tolerance}`` was measured."""
        return [value for value in self.tolerances if f"{kind}-{value:g}" in self.methods]

    def speed_up(self, cell: Cell) -> float | None:
        """Median time of full compute over that of a cell's program."""
        full, own = self.full and self.full.milliseconds, cell.milliseconds
        return full / own if full and own else None

    def probe_share(self, depth: str) -> float | None:
        """Time of a probe over that of the whole network."""
        stem = self.timing.get("stem_ms", {}).get(depth)
        return None if stem is None else stem / self.timing["full_ms"]

    def own_settings(self, cell: Cell) -> str:
        """A program's settings; of the paper's method, those that are not the usual ones."""
        usual = self.published if cell.method == "paper" else {}
        own = cell.settings.items()
        return settings_text({k: v for k, v in own if k not in usual or usual[k] != v})

    # -- the published method ----------------------------------------------------------------

    def paper(self, tolerance: float, risk: float, units: str, **settings: Any) -> Cell | None:
        """The published method at its usual settings, except those given."""
        wanted = {**self.published, **settings}
        return self.find("paper", tolerance=tolerance, risk=risk, units=units, **wanted)

    def sweep(self, *varied: str) -> list[Cell]:
        """Cells of the published method in which only ``varied`` leave their usual value.

        Tolerance, risk and units stay free, but combinations of them in which nothing was varied
        are left out. Ordered by tolerance, risk, units and then by what is varied.
        """
        fixed = {name: value for name, value in self.published.items() if name not in varied}
        asked = ("tolerance", "risk", "units")
        found = [c for c in self.family("paper") if fixed.items() <= c.settings.items()]
        found.sort(key=lambda cell: [cell.settings[name] for name in (*asked, *varied)])
        groups = [[cell.settings[name] for name in asked] for cell in found]
        return [cell for cell, own in zip(found, groups, strict=True) if groups.count(own) > 1]

    def ghosts(self) -> Iterator[tuple[str, str, GhostPairs]]:
        """Depth, score and pairs of every probe at the usual forbidden steps, in a fixed order."""
        usual = self.published["prefix"], self.published["suffix"]
        pattern = ghost_path(self.folder, *usual, "*", "*")
        for path in sorted(pattern.parent.glob(pattern.name)):
            depth, score = path.stem.split("-", 3)[3].rsplit("-", 1)
            yield depth, score, GhostPairs.load(path)
