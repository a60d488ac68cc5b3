"""What the checks of a certificate cost: calls of six evaluations with and without, in turns."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.certificate import Bound, Certificate, library_versions
from muninn.certify.examine import CALLS, examine
from muninn.context import Context, form
from muninn.engines.layout import channels_last
from muninn.model.planner import Engine, Planner
from muninn.programs.anchors import spread_steps
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.measure.machine import hardware
from muninn_bench.measure.turns import take_turns
from muninn_bench.studies.latency.subjects import BUILDERS, Subject
from muninn_bench.tasks.maze2d.planner import InpaintedDenoiser

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


def deployed(planner: Planner, subject: Subject) -> CachedPlanner:
    """A planner as a certificate lets it run; the certificate's figures mean nothing."""
    anchors = spread_steps(len(planner.sampler), EVALUATIONS)
    context, noise = subject.batch(CALLS)
    examined = examine(replace(planner, engine="eager"), context, noise, CALLS)
    certificate = Certificate(
        identity=planner.identity(),
        reference=None,
        family=Family(Forecast("sample", 1), (Everywhere(), Static(anchors)), "static"),
        member=1,
        tolerance=1.0,
        tolerance_name=None,
        risk=0.05,
        confidence=0.95,
        unit="call",
        loop="open",
        metric="rms_step",
        batch_size=CALLS,
        counts={"tune": 0, "certify": 0, "bound": 0},
        seed=0,
        realised=[],
        estimates=np.zeros(1),
        bound=Bound(np.zeros(1), np.zeros(1), 0.0),
        versions=library_versions(),
        form=form(context),
        questions=examined.questions,
    )
    return cache(planner, certificate)


def measure_checks(subject: Subject, engine: Engine, layout: bool, timed: int) -> dict[str, Any]:
    """Milliseconds of calls with and without checks, and microseconds that the checks take."""
    planner = replace(subject.planner, engine=engine)
    if layout:
        planner = replace(planner, denoiser=InpaintedDenoiser(channels_last(subject.network)))
    fast = deployed(planner, subject)
    plain = Unchecked(planner, fast.certificate)
    calls = [subject.call(index) for index in range(4)]

    def run(way: Callable[..., Any]) -> Callable[[int], Any]:
        return lambda number: way(calls[number % 4][0], noise=calls[number % 4][1])[0]

    turns = take_turns([run(plain), run(fast)], warm_up=10, timed=timed, device=planner.device)
    without, checked = (1e3 * np.array([turn.seconds for turn in each]) for each in turns)
    seconds = []
    for _ in range(timed):
        began = time.perf_counter()
        fast.misfit(calls[0][0], 1)
        assert fast.reason is None
        seconds.append(time.perf_counter() - began)
    return {
        "planner": subject.name,
        "engine": engine + (", channels last" if layout else ""),
        "evaluations": EVALUATIONS,
        "calls": timed,
        "without_ms_p50": float(np.median(without)),
        "checked_ms_p50": float(np.median(checked)),
        "cost_share": float(np.median(checked) / np.median(without) - 1.0),
        "paired_us_p50": float(1e3 * np.median(checked - without)),
        "checks_alone_us_p50": float(1e6 * np.median(seconds)),
        "hardware": hardware(planner.device),
    }


def run_checks(out: Path, device: str, timed: int, command: str) -> list[dict[str, Any]]:
    """Measure every case of a device into ``checks_DEVICE.csv``."""
    rows = []
    for name, engine, layout in CASES[device]:
        subject = BUILDERS[name](torch.device(device), CALLS)
        rows.append({**measure_checks(subject, engine, layout, timed), "command": command})
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"checks_{device}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows
