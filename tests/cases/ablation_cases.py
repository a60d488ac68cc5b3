"""A raw folder of the ablation study whose numbers are known by construction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from muninn.paper.ghost import GhostPairs
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, save_cell

STEPS = 40
CALLS = {CALIBRATE: 400, TEST: 300}
DRIVEN = 60
COUNTS = (30, 20, 14, 10, 7, 5)
# Deviation of a method with n evaluations is scale / n**2 times the call's own difficulty.
SCALES = {
    "static-0.05": 2.0, "static-0.002": 1.0, "adaptive-0.05": 1.8, "probegate-0.05": 3.0,
    "fewsteps": 40.0, "unipc": 12.0, "fixedskip": 45.0, "probethresh": 30.0,
    "variant-epsilon-1-plain": 9.0, "variant-sample-2-lookback": 2.2,
}  # fmt: skip
UNITS = {"algorithm": 0.5, "appendix": 0.3, "mended": 0.15}
BASE: dict[str, Any] = {
    "tolerance": 0.05, "risk": 0.05, "units": "algorithm", "sensitivity": True,
    "longest_age": None, "prefix": 4, "suffix": 4, "calls": 1000, "depth": "stem-1",
    "score": "relative_l1", "void": False,
}  # fmt: skip
PUBLISHED = {k: v for k, v in BASE.items() if k not in ("tolerance", "risk", "units", "void")}


def difficulty(stream: str) -> np.ndarray:
    """Lognormal and the same for all methods, as paired calls are."""
    return np.random.default_rng(len(stream)).lognormal(0.0, 0.5, CALLS[stream])


Name = tuple[str, int, dict[str, Any], str]
"""Method, order, settings and stream of a cell."""


def name_of(cell: Cell) -> Name:
    return cell.method, cell.order, cell.settings, cell.stream


def make_cell(
    name: Name, deviation: np.ndarray, evaluations: np.ndarray | float, **more: Any
) -> Cell:
    calls = len(deviation)
    spent = np.broadcast_to(np.asarray(evaluations, dtype=np.int16), calls)
    driven = min(DRIVEN, calls) if name[-1] == TEST else 0
    timed = name[-1] == TEST and not name[0].startswith("full")
    fields: dict[str, Any] = {
        "estimate": deviation * np.random.default_rng(calls).lognormal(0.0, 0.3, calls),
        "clearance": np.where(deviation > 0.3, 0.0, 1.0),  # below the ball's radius, and above
        "success": deviation[:driven] < 0.5,
        "charged": np.full(STEPS, 0.3),
        "seconds": 0.001 * (spent[: 5 if timed else 0] + 2.0),
        **more,
    }
    fields["estimate"] = fields["estimate"].astype(np.float32)
    return Cell(
        *name, "cpu", deviation=deviation.astype(np.float32), evaluations=spent,
        evaluated=np.ones(STEPS), plans=np.zeros((0, 4, 2), np.float16), **fields,
    )  # fmt: skip


def family_cells(method: str, scale: float) -> list[Cell]:
    return [
        make_cell(
            (method, order, {"evaluations": count}, stream),
            scale / count**2 * difficulty(stream),
            count,
        )
        for stream in (CALIBRATE, TEST)
        for order, count in enumerate(COUNTS)
    ]


def paper_cell(order: int, **settings: Any) -> Cell:
    described = {**BASE, **settings}
    hard = difficulty(TEST)
    spent = np.clip(20 + 6 * np.log(hard) - 20 * described["tolerance"], 5, STEPS).round()
    deviation = UNITS[described["units"]] * described["tolerance"] * hard * 4
    estimate = np.full(len(hard), described["tolerance"] * 0.9)
    slope = np.linspace(2.0, 0.0, STEPS)
    return make_cell(
        ("paper", order, described, TEST), deviation, spent, estimate=estimate, charged=slope
    )


def paper_settings() -> list[dict[str, Any]]:
    found = [{"units": u, "tolerance": t} for u in UNITS for t in (0.002, 0.05)]
    found += [{"units": u, "risk": r} for u in UNITS for r in (0.01, 0.2)]
    found += [{"units": "algorithm", "longest_age": 4, "risk": r} for r in (0.01, 0.05)]
    found += [{"sensitivity": False}, {"depth": "input"}, {"score": "l2"}]
    found += [{"prefix": 0, "suffix": 0}, {"prefix": 2, "suffix": 0}]
    return [*found, {"calls": 20, "void": True}, {"calls": 100, "void": True}]


def write_folder(folder: Path) -> Path:
    cells = [cell for method, scale in SCALES.items() for cell in family_cells(method, scale)]
    near, times = 1.0 / difficulty(TEST), np.array([0.03, 0.04, 0.05])
    full = make_cell(
        ("full", 0, {}, TEST), np.zeros(CALLS[TEST]), STEPS, clearance=near, seconds=times
    )
    cells += [full, *(paper_cell(order, **given) for order, given in enumerate(paper_settings()))]
    for cell in cells:
        save_cell(folder / "cells", cell)
    documents: dict[str, Any] = {
        "timing.json": {"hardware": "a test", "rounds": 5, "network": "Net",
                        "full_ms": 1.0, "core_ms": {"stem-1": 0.9, "input": 1.0},
                        "stem_ms": {"stem-1": 0.1, "input": 0.02}, "bookkeeping_ms": 0.01,
                        "step_ms": 0.02},
        "study.json": {"teacher": "synthetic", "steps": STEPS, "horizon": 4, "width": 2,
                       "calls": {"test": CALLS[TEST]}, "seed": 3, "tolerances": [0.002, 0.05],
                       "risks": [0.01, 0.05, 0.2], "risk_tolerances": [0.05],
                       "confidence": 0.95, "published": PUBLISHED, "command": "none",
                       "versions": {"muninn": "0"}, "quick": False},
    }  # fmt: skip
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "ghost").mkdir()
    for depth, score in (("stem-1", "relative_l1"), ("input", "relative_l1"), ("stem-1", "l2")):
        pooled_only(200, 5).save(folder / "ghost" / f"ghost-p4-s4-{depth}-{score}.safetensors")
    return folder


def pooled_only(calls: int, seed: int) -> GhostPairs:
    """Score and error both grow along the chain and are independent within each step."""
    random = np.random.default_rng(seed)
    trend = np.linspace(0.0, 10.0, STEPS)
    scores, errors = trend + random.uniform(size=(2, calls, STEPS))
    return GhostPairs(scores, errors, tuple(range(4, STEPS - 4)))
