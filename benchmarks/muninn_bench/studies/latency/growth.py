"""How the cost of a call grows: with horizon, steps, dimensions, batch and parameters."""

from __future__ import annotations

import torch

from muninn.progress import Task
from muninn_bench.measure.machine import hardware, release
from muninn_bench.measure.protocol import plain
from muninn_bench.measure.turns import Spread, take_turns
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.studies.latency.methods import run_program
from muninn_bench.studies.latency.programs import Programs
from muninn_bench.studies.latency.rows import GrowthRow
from muninn_bench.studies.latency.settings import Cell, Settings
from muninn_bench.studies.latency.subjects import Precision, random_subject

WARM_UP = 2  # the first call captures
SHARE = 5  # one evaluation for so many steps


def measure_growth(
    settings: Settings, device: torch.device, task: Task, *, graphed: bool
) -> list[GrowthRow]:
    """Full and Muninn static on U-Nets with random weights, one cell after the other."""
    rows = []
    advance = task("growth of cost", len(settings.growth))
    for cell in settings.growth:
        rows.append(_cell(cell, settings.growth_timed, device, graphed))
        release(device)
        advance(1)
    return rows


def _cell(cell: Cell, timed: int, device: torch.device, graphed: bool) -> GrowthRow:
    config = UnetConfig(
        channels=cell.dim, widths=tuple(cell.width * factor for factor in (1, 2, 4, 8)), heads=8
    )
    precision: Precision = "fp16" if device.type == "cuda" else "fp32"
    subject = random_subject(
        "growth", cell.axis, config, cell.horizon, device, precision, cell.batch, cell.steps
    )
    count = max(2, cell.steps // SHARE)
    programs = Programs(subject, count)
    if graphed:
        full = run_program(subject.planner, programs.full, "graph")
        muninn = run_program(subject.planner, programs.static, "graph")
    else:
        full = plain(subject.planner)
        muninn = run_program(subject.planner, programs.static, "eager")
    call = subject.batch(cell.batch)
    turns = take_turns(
        [lambda number: full(*call), lambda number: muninn(*call)],
        warm_up=WARM_UP,
        timed=timed,
        device=device,
    )
    full_ms, muninn_ms = (Spread.of([turn.seconds for turn in own]).p50 for own in turns)
    return GrowthRow(
        "growth",
        cell.axis,
        cell.value(),
        cell.horizon,
        cell.steps,
        cell.dim,
        cell.batch,
        subject.parameters,
        "graph" if graphed else "eager",
        count,
        full_ms,
        muninn_ms,
        full_ms / muninn_ms,
        hardware(device),
    )
