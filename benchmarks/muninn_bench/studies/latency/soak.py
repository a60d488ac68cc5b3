"""A soak: thousands of calls of one planner, watching memory and outputs."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.planner import Engine
from muninn.model.schedule import FloatArray
from muninn.progress import Advance, bars
from muninn_bench.measure.machine import find_device, hardware, release, synchronise
from muninn_bench.measure.protocol import Run
from muninn_bench.studies.latency.programs import TunedPrograms
from muninn_bench.studies.latency.variants import VARIANTS
from muninn_bench.studies.latency.ways import run_program

COMMON = (1, 1, 1, 1, 2, 5)
"""Batch sizes that calls run through, so that shapes change all the time."""

RARE = (3, 4, 6, 7, 8, 9)
"""One call in :data:`RARE_EVERY` has the next of these sizes. With the common ones they are nine,
one more than the graph runtimes keep: every rare call drops a captured shape and captures another."""

RARE_EVERY = 40
DISTINCT = 12
"""Calls of common sizes that differ; each is made again and again and must give the same bits."""

EVALUATIONS = 6

SHARES: dict[str, tuple[tuple[str, Engine, float], ...]] = {
    "cpu": (("static", "eager", 0.5), ("gated", "eager", 0.5)),
    "cuda": (
        ("static", "graph", 0.42),
        ("gated", "graph", 0.42),
        ("static", "eager", 0.05),
        ("gated", "eager", 0.05),
        ("static", "compile", 0.06),
    ),
}
"""Of all calls, the share of each program on each engine. Eager calls on a GPU are slow: few must
do. Compiled ones have common sizes only: each new size takes most of a minute."""


@dataclass(frozen=True)
class Soak:
    """What a soak saw of one program; memory in MB, at the end of the first sweep and of the last.

    A sweep is the calls in which every rare size comes once, so that the same shapes are held at
    the end of each.

    Attributes:
        program: ``static`` or ``gated``; engine: what ran it.
        calls: made.
        distinct: calls that differ; changed: results that were not those of the first time.
        allocated_mb: memory held by tensors (CUDA), else the process's resident memory.
        reserved_mb: memory that PyTorch holds for tensors (CUDA), else the process's.
        process_mb: resident memory of the process.
        growth_mb_per_1000: slope of ``allocated_mb`` over all sweeps.
        late_growth_mb_per_1000: over the second half of them.
        sweeps: calls made, allocated, reserved and process memory at the end of each.
    """

    program: str
    engine: str
    calls: int
    distinct: int
    changed: int
    allocated_mb: tuple[float, float]
    reserved_mb: tuple[float, float]
    process_mb: tuple[float, float]
    growth_mb_per_1000: float
    late_growth_mb_per_1000: float
    sweeps: list[list[float]]


def run_soak(out: Path, device: str, calls: int, command: str, progress: bool = True) -> list[Soak]:
    """Soak a static and a gated program on every engine of the device; writes ``soak_DEVICE.json``.

    Args:
        out: folder of the result.
        device: ``cpu`` or ``cuda``.
        calls: in all, divided among programs and engines.
        command: that was typed.
        progress: show progress bars.

    Raises:
        InputError: too few calls to see anything.
    """
    place = find_device(device)
    subject = "maze2d-fp16" if device == "cuda" else "maze2d-fp32"
    fewest = math.ceil(2 * _sweep() / min(share for _, _, share in SHARES[device]))
    if calls < fewest:
        raise InputError(
            f"a soak on {device} needs at least {fewest} calls, two sweeps through all batch "
            f"sizes for each program; got {calls}"
        )
    variant = VARIANTS[subject](place, DISTINCT)
    tuned = TunedPrograms(variant, EVALUATIONS)
    programs = {"static": tuned.static, "gated": tuned.gated}  # before memory is looked at
    release(place)
    before = _memory(place)[0]
    found = []
    with bars(progress) as task, torch.no_grad():
        for name, engine, share in SHARES[device]:
            count = round(calls * share)
            run = run_program(variant.planner, programs[name], engine)
            advance = task(f"{name}, {engine}", count)
            found.append(_soak(run, variant.batch, place, name, engine, count, advance))
            del run
            if engine == "compile":
                torch.compiler.reset()
            release(place)
    document = {
        "command": command,
        "hardware": hardware(place),
        "subject": subject,
        "rows_of_calls": COMMON,
        "rows_of_rare_calls": RARE,
        "rare_every": RARE_EVERY,
        "before_mb": before,
        "left_after_release_mb": _memory(place)[0],
        "runs": [asdict(one) for one in found],
    }
    write_whole(out / f"soak_{device}.json", json.dumps(document, indent=1) + "\n")
    return found


def _soak(
    run: Run,
    batch: Callable[[int, int], Any],
    device: torch.device,
    name: str,
    engine: str,
    calls: int,
    advance: Advance,
) -> Soak:
    inputs = [batch(rows, 7 * at) for at, rows in enumerate(COMMON * (DISTINCT // len(COMMON)))]
    common = len(inputs)
    rare = engine != "compile"  # the compiler, unlike the graphs, keeps every shape
    if rare:
        inputs += [batch(rows, 5 * at) for at, rows in enumerate(RARE)]
    first: dict[int, str] = {}
    changed = 0
    sweeps: list[list[float]] = []
    for number in range(calls):
        place = number % common
        if rare and (number + 1) % RARE_EVERY == 0:
            place = common + number // RARE_EVERY % len(RARE)
        trajectory = run(*inputs[place])[0]
        digest = hashlib.sha256(trajectory.cpu().numpy().tobytes()).hexdigest()
        changed += first.setdefault(place, digest) != digest
        if (number + 1) % _sweep() == 0:
            synchronise(device)
            sweeps.append([number + 1, *_memory(device)])
        advance(1)
    table = np.array(sweeps, dtype=float)
    allocated, reserved, process = ((float(column[0]), float(column[-1])) for column in table.T[1:])
    slopes = _slope(table), _slope(table[len(table) // 2 :])
    return Soak(
        name, engine, calls, len(first), changed, allocated, reserved, process, *slopes, sweeps
    )


def _sweep() -> int:
    return RARE_EVERY * len(RARE)


def _slope(sweeps: FloatArray) -> float:
    """MB allocated per 1,000 calls; 0 where there is one moment only."""
    return 1e3 * float(np.polyfit(sweeps[:, 0], sweeps[:, 1], 1)[0]) if len(sweeps) > 1 else 0.0


def _memory(device: torch.device) -> tuple[float, float, float]:
    """MB held by tensors, held by PyTorch (graphs' pools included), and resident in the process.

    On a CPU all are the last one, which is 0 where the system does not tell.
    """
    statistics, resident = Path("/proc/self/statm"), 0.0
    if statistics.is_file():
        pages = int(statistics.read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    if device.type != "cuda":
        return resident, resident, resident
    allocated = torch.cuda.memory_allocated(device) / 2**20
    return allocated, torch.cuda.memory_reserved(device) / 2**20, resident
