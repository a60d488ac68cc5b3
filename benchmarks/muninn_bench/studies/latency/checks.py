"""What the checks of a certificate cost: calls of six evaluations with and without, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.examine import CALLS, examine
from muninn.context import Context
from muninn.engines.layout import channels_last
from muninn.model.planner import Engine
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.measure.machine import find_device, hardware
from muninn_bench.measure.turns import take_turns
from muninn_bench.measure.uncalibrated import uncalibrated
from muninn_bench.planners.diffuser import InpaintedDenoiser
from muninn_bench.report.table import write_csv
from muninn_bench.studies.latency.results import Row
from muninn_bench.studies.latency.variants import VARIANTS, TimedVariant

EVALUATIONS = 6
CASES: dict[str, tuple[tuple[str, Engine, bool], ...]] = {
    "cpu": (("maze2d-fp32", "eager", False),),
    "cuda": (("unet63m-fp16", "graph", False), ("unet63m-fp16", "compile", True)),
}
"""Planner, engine, and whether its network is stored channels last; the fastest engine last."""


class Unchecked(CachedPlanner):
    """A cached planner that takes everything for granted."""

    other_arithmetic = None

    def misfit(self, context: Context, rows: int) -> None:
        """Nothing is compared."""

    def _look(self, since: Any = None) -> Callable[[], None]:
        return lambda: None


def measure_checks(variant: TimedVariant, engine: Engine, layout: bool, timed: int) -> Row:
    """Milliseconds of calls with and without checks, and microseconds that the checks take."""
    planner = variant.planner
    if layout:
        planner = replace(planner, denoiser=InpaintedDenoiser(channels_last(variant.network)))
    context, noise = variant.batch(CALLS)
    asked = examine(planner, context, noise, CALLS).questions
    planner = replace(planner, engine=engine)
    program = Alternative.untuned("fewsteps", planner, EVALUATIONS).table
    certificate = uncalibrated(planner, program, context)
    fast = cache(planner, replace(certificate, questions=asked))
    plain = Unchecked(planner, fast.certificate)
    calls = [variant.call(number) for number in range(4)]

    def run(way: CachedPlanner) -> Callable[[int], object]:
        return lambda number: way(calls[number % 4][0], noise=calls[number % 4][1])[0]

    def check(number: int) -> None:
        fast.misfit(calls[0][0], 1)
        assert fast.reason is None

    turns = take_turns([run(plain), run(fast)], warm_up=10, timed=timed, device=planner.device)
    host = torch.device("cpu")  # nobody waits for the device between the checks
    turns += take_turns([check], warm_up=0, timed=timed, device=host)
    without, checked, alone = (np.array([turn.seconds for turn in own]) for own in turns)
    return {
        "planner": variant.name,
        "engine": engine + (", channels last" if layout else ""),
        "evaluations": EVALUATIONS,
        "calls": timed,
        "without_ms_p50": float(1e3 * np.median(without)),
        "checked_ms_p50": float(1e3 * np.median(checked)),
        "cost_share": float(np.median(checked) / np.median(without) - 1.0),
        "paired_us_p50": float(1e6 * np.median(checked - without)),
        "checks_alone_us_p50": float(1e6 * np.median(alone)),
        "hardware": hardware(planner.device),
    }


def run_checks(out: Path, device: str, timed: int, command: str) -> list[Row]:
    """Measure every case of a device into ``checks_DEVICE.csv``."""
    place = find_device(device)
    rows = [
        measure_checks(VARIANTS[name](place, CALLS), engine, layout, timed) | {"command": command}
        for name, engine, layout in CASES[device]
    ]
    write_csv(out / f"checks_{device}.csv", rows)
    return rows
