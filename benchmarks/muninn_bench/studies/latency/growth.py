"""How the cost of a call grows: with the batch, and with horizon, steps, dimensions, parameters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from muninn.engines.rounds import RoundRuntime
from muninn.model.planner import Engine
from muninn.progress import Advance, Task
from muninn_bench.measure.machine import hardware, release
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.measure.turns import Spread, take_turns
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.studies.latency.programs import TunedPrograms
from muninn_bench.studies.latency.rows import BatchRow, GrowthRow
from muninn_bench.studies.latency.settings import Settings
from muninn_bench.studies.latency.variants import TimedVariant, random_variant
from muninn_bench.studies.latency.ways import as_run, run_program

WARM_UP = 2  # the first call captures
SHARE = 5  # one evaluation for so many steps
CAPS = {"gated": 1.5, "gated, loose cap": 2.0}
"""Gates by the ratio of their cap to the static plan's evaluations: a batch lasts as long as its
slowest row, so the cap decides what a batch costs."""


def measure_batch(
    programs: TunedPrograms, batch: int, settings: Settings, task: Task, *, graphed: bool
) -> list[BatchRow]:
    """Full and Muninn on one batch, taking turns; each row of a gate decides for itself."""
    variant, planner = programs.variant, programs.planner
    engine: Engine = "graph" if graphed else "eager"
    runs: dict[tuple[str, str], Run] = {("full", "eager"): plain(planner)}
    if graphed:
        runs["full", engine] = run_program(planner, programs.full, engine)
    runs["static", engine] = run_program(planner, programs.static, engine)
    for name, ratio in CAPS.items():
        gate = programs.capped(ratio)
        rounds = as_run(RoundRuntime(planner, gate, on_failure="error"))
        runs[name, engine] = run_program(planner, gate, engine) if graphed else rounds
    advance = task(f"{variant.name}: batch of {batch}", WARM_UP + settings.batch_timed)
    times = _times(runs.values(), variant, batch, settings.batch_timed, advance)
    found = dict(zip(runs, times, strict=True))
    fastest = min(ms for (method, _), (ms, _) in found.items() if method == "full")
    whose, machine = (variant.name, variant.title, batch), hardware(planner.device)
    rows = []
    for key, (ms, evaluations) in found.items():
        speeds = (ms, 1e3 * batch / ms, fastest / ms, len(planner.sampler) / evaluations)
        rows.append(BatchRow(*whose, *key, evaluations, *speeds, machine))
    return rows


def _times(
    runs: Iterable[Run],
    variant: TimedVariant,
    batch: int,
    timed: int,
    advance: Advance = lambda steps: None,
) -> list[tuple[float, float]]:
    """Median milliseconds and mean evaluations of every run on one batch, taking turns."""
    call = variant.batch(batch)
    turns = take_turns(
        [lambda number, run=run: run(*call)[1].evaluations for run in runs],  # type: ignore[misc]
        warm_up=WARM_UP,
        timed=timed,
        device=variant.planner.device,
        advance=advance,
    )
    medians = [Spread.of([turn.seconds for turn in own]).p50 for own in turns]
    means = [float(np.mean([turn.result for turn in own])) for own in turns]
    return list(zip(medians, means, strict=True))


def measure_growth(
    settings: Settings, device: torch.device, task: Task, *, graphed: bool
) -> list[GrowthRow]:
    """Full and Muninn static on U-Nets with random weights, one cell after the other."""
    base = {size: values[0] for size, values in settings.growth.items()}
    cells = [("base", 0)]
    cells += [(size, value) for size, values in settings.growth.items() for value in values[1:]]
    rows, advance = [], task("growth of cost", len(cells))
    for axis, value in cells:
        rows.append(_cell(axis, value, base | {axis: value}, settings, device, graphed))
        release(device)
        advance(1)
    return rows


def _cell(
    axis: str,
    value: int,
    size: dict[str, int],
    settings: Settings,
    device: torch.device,
    graphed: bool,
) -> GrowthRow:
    horizon, steps, dim, batch = (size[name] for name in ("horizon", "steps", "dim", "batch"))
    config = UnetConfig(dim, tuple(size["width"] * factor for factor in (1, 2, 4, 8)), heads=8)
    precision = "fp16" if device.type == "cuda" else "fp32"
    variant = random_variant("growth", axis, config, horizon, precision, device, batch, steps)
    programs, planner = TunedPrograms(variant, max(2, steps // SHARE)), variant.planner
    engine: Engine = "graph" if graphed else "eager"
    full = run_program(planner, programs.full, engine) if graphed else plain(planner)
    runs = (full, run_program(planner, programs.static, engine))
    (full_ms, _), (muninn_ms, _) = _times(runs, variant, batch, settings.growth_timed)
    speeds, sizes = (full_ms, muninn_ms, full_ms / muninn_ms), (horizon, steps, dim, batch)
    what = (variant.parameters, engine, programs.count)
    return GrowthRow("growth", axis, value, *sizes, *what, *speeds, hardware(device))
