"""A raw folder of the ablation study whose numbers are known by construction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from muninn.paper.ghost import GhostPairs
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, Key, save_cell

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


def difficulty(stream: str) -> np.ndarray:
    """Lognormal and the same for all methods, as paired calls are."""
    return np.random.default_rng(len(stream)).lognormal(0.0, 0.5, CALLS[stream])


def make_cell(
    key: Key, deviation: np.ndarray, evaluations: np.ndarray | float, **more: Any
) -> Cell:
    calls = len(deviation)
    spent = np.broadcast_to(np.asarray(evaluations, dtype=np.int16), calls)
    driven = min(DRIVEN, calls) if key.stream == TEST else 0
    fields: dict[str, Any] = {
        "estimate": deviation * np.random.default_rng(calls).lognormal(0.0, 0.3, calls),
        "collided": deviation > 0.3,
        "success": deviation[:driven] < 0.5,
        "charged": np.full(STEPS, 0.3),
        **more,
    }
    return Cell(
        key, "cpu", deviation.astype(np.float32), spent, fields["estimate"].astype(np.float32),
        fields["collided"], fields["success"], np.ones(STEPS), fields["charged"],
        np.zeros((0, 4, 2), np.float16),
    )  # fmt: skip


def family_cells(method: str, scale: float) -> list[Cell]:
    return [
        make_cell(
            Key(method, order, stream, {"evaluations": count}),
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
        Key("paper", order, TEST, described), deviation, spent, estimate=estimate, charged=slope
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
    cells.append(make_cell(Key("full", 0, TEST), np.zeros(CALLS[TEST]), STEPS))
    cells += [paper_cell(order, **given) for order, given in enumerate(paper_settings())]
    for cell in cells:
        save_cell(folder / "cells", cell)
    np.save(folder / "clearance.npy", 1.0 / difficulty(TEST))
    rows = [
        {"method": c.key.method, "order": c.key.order, "settings": c.key.settings,
         "evaluations": float(c.evaluations.mean()),
         "seconds": (0.001 * (c.evaluations[:5] + 2.0)).tolist()}
        for c in cells if c.key.stream == TEST and c.key.method != "full"
    ]  # fmt: skip
    documents: dict[str, Any] = {
        "timing.json": {"hardware": "a test", "threads": 1, "rounds": 5,
                        "full_seconds": [0.03, 0.04, 0.05], "rows": rows},
        "overhead.json": {"full_ms": 1.0, "core_ms": {"stem-1": 0.9, "input": 1.0},
                          "stem_ms": {"stem-1": 0.1, "input": 0.02}, "bookkeeping_ms": 0.01,
                          "step_ms": 0.02, "networks": {"Net": {"full_ms": 1.0, "stem_ms":
                          {"stem-1": 0.1}}}},
        "study.json": {"teacher": "synthetic", "steps": STEPS, "horizon": 4, "width": 2,
                       "calls": {"test": CALLS[TEST]}, "seed": 3, "tolerances": [0.002, 0.05],
                       "risks": [0.01, 0.05, 0.2], "confidence": 0.95, "command": "none",
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
