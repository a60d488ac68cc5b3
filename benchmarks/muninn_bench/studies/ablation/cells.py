"""Cells: one program measured on the calls of one stream, kept in a file of its own.

A study is a folder of cells. A cell that is there is not measured again, so an interrupted study
goes on where it stopped, and tables and plots are functions of the folder alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray

CALIBRATE, TEST = "calibrate", "test"


@dataclass(frozen=True)
class Key:
    """What a cell measures.

    Attributes:
        method: ``static-0.05``, ``fewsteps``, ``paper``, ...
        order: position in the method's family, 0 is the most conservative.
        stream: ``calibrate`` or ``test``.
        settings: everything else that defines the program, JSON-ready.
    """

    method: str
    order: int
    stream: str
    settings: dict[str, Any] = field(default_factory=dict)

    def filename(self) -> str:
        """A readable name that changes with the settings."""
        content = json.dumps([self.method, self.order, self.settings], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        return f"{self.stream}-{self.method}-{self.order:02d}-{digest}.safetensors"


@dataclass(frozen=True)
class Cell:
    """What a program did on the calls of a stream.

    Attributes:
        key: what was measured.
        device: where.
        deviation: from full compute, metric ``rms_step``, (calls,).
        evaluations: of the network's core, (calls,).
        estimate: accumulated error estimate; the paper's ``Dhat`` for its budget, (calls,).
        collided: whether the plan enters a wall inflated by the ball's radius, (calls,).
        success: environment's own signal when the plan is followed, (driven,); empty before.
        evaluated: share of calls evaluated at each step, (steps,).
        charged: mean part of the estimate charged to each step, (steps,).
        plans: states of the first calls' plans in world units, every second frame, float16;
            kept until they are driven.
    """

    key: Key
    device: str
    deviation: FloatArray
    evaluations: FloatArray
    estimate: FloatArray
    collided: npt.NDArray[np.bool_]
    success: npt.NDArray[np.bool_]
    evaluated: FloatArray
    charged: FloatArray
    plans: npt.NDArray[np.float16]

    def violations(self, tolerance: float) -> int:
        """Calls beyond a tolerance."""
        return int((self.deviation > tolerance).sum())


_ARRAYS = (
    "deviation", "evaluations", "estimate", "collided", "success", "evaluated", "charged", "plans",
)  # fmt: skip


def save_cell(folder: Path, cell: Cell) -> Path:
    """Write a cell; half a file is never left behind."""
    path = folder / cell.key.filename()
    arrays = {name: np.ascontiguousarray(getattr(cell, name)) for name in _ARRAYS}
    described = {
        "method": cell.key.method,
        "order": cell.key.order,
        "stream": cell.key.stream,
        "settings": cell.key.settings,
        "device": cell.device,
    }
    return write_whole(path, save(arrays, metadata={"cell": json.dumps(described)}))


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


@dataclass(frozen=True)
class Study:
    """All cells of one teacher."""

    cells: tuple[Cell, ...]

    @classmethod
    def load(cls, folder: Path) -> Study:
        """Every cell in a folder, in a fixed order."""
        return cls(tuple(load_cell(path) for path in sorted(folder.glob("*.safetensors"))))

    def methods(self) -> list[str]:
        """Names of the methods, sorted."""
        return sorted({cell.key.method for cell in self.cells})

    def family(self, method: str, stream: str) -> list[Cell]:
        """Members of a method on one stream, conservative first."""
        found = [c for c in self.cells if c.key.method == method and c.key.stream == stream]
        found.sort(key=lambda cell: cell.key.order)
        if len({cell.key.order for cell in found}) < len(found):
            raise InputError(
                f"the folder holds cells of two families for {method!r}; measure into an empty "
                "folder, or remove the older cells"
            )
        return found

    def find(self, method: str, stream: str = TEST, **settings: Any) -> Cell | None:
        """The cell of a method whose settings agree with those given."""
        for cell in self.family(method, stream):
            if all(cell.key.settings.get(name) == value for name, value in settings.items()):
                return cell
        return None
