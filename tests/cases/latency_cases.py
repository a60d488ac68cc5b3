"""Tiny planners, stand-ins for graphs and rows that the tests of the latency benchmark share."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from muninn_bench.networks.unet import UnetConfig
from muninn_bench.studies.latency.rows import Row
from muninn_bench.studies.latency.settings import Cell, Settings, grid
from muninn_bench.studies.latency.subjects import Subject, random_subject

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
    growth=grid(Cell(horizon=16, steps=10, width=8), steps=(20,)),
    growth_timed=1,
    compile=False,
)


def tiny(name: str = "maze2d-fp32") -> Subject:
    return random_subject(name, "a tiny U-Net", CONFIG, 8, DEVICE, "fp32", 2, steps=16)


def row(method: str, p50: float | None, **changes: Any) -> Row:
    blank = Row(
        "unet63m-fp16", "U-Net", 10, "fp16", True, 8, 6, 100, method, method, "graph", 20.0, p50,
        p50, p50, 3, 1, 0.1, None, None, None, "a machine", "",
    )  # fmt: skip
    return replace(blank, **changes)
