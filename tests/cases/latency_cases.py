"""Tiny planners, stand-ins for graphs and rows that the tests of the latency benchmark share."""

from __future__ import annotations

import math
from typing import Any

import torch

from muninn_bench.networks.unet import UnetConfig
from muninn_bench.studies.latency.results import Row
from muninn_bench.studies.latency.variants import Settings, TimedVariant, random_variant

DEVICE = torch.device("cpu")
CONFIG = UnetConfig(widths=(8, 8), time_width=8, heads=1)
TINY = Settings(
    evaluations=5,
    warm_up=1,
    timed=4,
    calls=2,
    turn_seconds=math.inf,
    batches=(3,),
    batch_timed=1,
    growth={"horizon": (16,), "steps": (10, 20), "dim": (6,), "batch": (1,), "width": (8,)},
    growth_timed=1,
    compile=False,
)


def tiny(name: str = "maze2d-fp32") -> TimedVariant:
    return random_variant(name, "a tiny U-Net", CONFIG, 8, "fp32", DEVICE, 2, steps=16)


def row(method: str, p50: float | None, **changes: Any) -> Row:
    blank = {
        "subject": "unet63m-fp16", "title": "U-Net", "parameters": 10, "precision": "fp16",
        "trained": True, "horizon": 8, "dim": 6, "steps": 100, "method": method,
        "method_title": method, "engine": "graph", "evaluations": 20.0, "p50_ms": p50,
        "p99_ms": p50, "max_ms": p50, "calls": 3, "warm_up": 1, "deviation_p95": 0.1,
        "memory_mb": None, "over_eager": None, "over_graph": None, "hardware": "a machine",
        "note": None,
    }  # fmt: skip
    assert set(changes) <= set(blank)
    return blank | changes
