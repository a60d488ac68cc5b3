"""A soak: thousands of calls of one planner, watching memory and outputs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.bench.latency.machine import find_device, hardware, release, synchronise
from muninn.bench.latency.methods import run_program
from muninn.bench.latency.programs import Programs
from muninn.bench.latency.subjects import BUILDERS
from muninn.bench.protocol import Run
from muninn.errors import InputError
from muninn.planner import Engine
from muninn.progress import bars

ROWS = (1, 1, 1, 1, 2, 5)
"""Batch sizes that calls run through, so that shapes change all the time."""

DISTINCT = 12
"""Calls of each size; every one is made again and again and must give the same bits."""

SAMPLES = 40
EVALUATIONS = 6


@dataclass(frozen=True)
class Soak:
    """What a soak saw of one program.

    Attributes:
        program: ``static`` or ``gated``; engine: what ran it.
        calls: made.
        distinct: calls that differ; changed: results that were not those of the first time.
        allocated_mb: memory held by tensors after 10% of the calls, and at the end (CUDA), else
            the process's resident memory.
        process_mb: resident memory of the process at the same two moments.
        growth_mb_per_1000: slope of ``allocated_mb`` over the last 90% of the calls.
    """

    program: str
    engine: str
    calls: int
    distinct: int
    changed: int
    allocated_mb: tuple[float, float]
    process_mb: tuple[float, float]
    growth_mb_per_1000: float


def run_soak(
    out: Path,
    device: str,
    calls: int,
    command: str,
    progress: bool = True,
) -> list[Soak]:
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
    # Of all calls, for each program. Eager calls on a GPU are slow: a few must do.
    shares: dict[Engine, float] = {"graph": 0.48, "eager": 0.02}
    if device == "cpu":
        shares = {"eager": 0.5}
    if calls < 40 * len(ROWS):
        raise InputError(f"a soak needs at least {40 * len(ROWS)} calls, got {calls}")
    built = BUILDERS[subject](place, DISTINCT)
    programs = Programs(built, EVALUATIONS)
    for name in ("static", "gated"):
        getattr(programs, name)  # tuned before memory is looked at
    release(place)
    before = _allocated(place)
    found = []
    with bars(progress) as task, torch.no_grad():
        for engine, share in shares.items():
            for name in ("static", "gated"):
                count = round(calls * share)
                run = run_program(built.planner, getattr(programs, name), engine)
                advance = task(f"{name}, {engine}", count)
                found.append(_soak(run, built.batch, place, name, engine, count, advance))
                del run
                release(place)
    document = {
        "command": command,
        "hardware": hardware(place),
        "subject": subject,
        "rows_of_calls": ROWS,
        "before_mb": before,
        "left_after_release_mb": _allocated(place),
        "runs": [asdict(one) for one in found],
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"soak_{device}.json").write_text(json.dumps(document, indent=1) + "\n")
    return found


def _soak(
    run: Run,
    batch: Callable[[int, int], Any],
    device: torch.device,
    name: str,
    engine: str,
    calls: int,
    advance: Callable[[int], None],
) -> Soak:
    inputs = [batch(rows, 7 * place) for place, rows in enumerate(ROWS * (DISTINCT // len(ROWS)))]
    first: dict[int, str] = {}
    changed = 0
    settled = max(calls // 10, len(inputs))
    every = max((calls - settled) // SAMPLES, 1)
    moments: list[tuple[int, float, float]] = []
    for number in range(calls):
        place = number % len(inputs)
        digest = _digest(run(*inputs[place])[0])
        changed += first.setdefault(place, digest) != digest
        if number >= settled and (number - settled) % every == 0:
            synchronise(device)
            moments.append((number, _allocated(device), _resident()))
        advance(1)
    at, allocated, resident = np.array(moments, dtype=float).T
    slope = float(np.polyfit(at, allocated, 1)[0]) if len(at) > 1 else 0.0
    return Soak(
        name,
        engine,
        calls,
        len(inputs),
        changed,
        (float(allocated[0]), float(allocated[-1])),
        (float(resident[0]), float(resident[-1])),
        1e3 * slope,
    )


def _digest(trajectory: Tensor) -> str:
    return hashlib.sha256(trajectory.cpu().numpy().tobytes()).hexdigest()


def _allocated(device: torch.device) -> float:
    """MB held by tensors on a GPU; on a CPU, what the process holds."""
    if device.type == "cuda":
        return float(torch.cuda.memory_allocated(device)) / 2**20
    return _resident()


def _resident() -> float:
    """Resident memory of this process in MB; 0 where the system does not tell."""
    statistics = Path("/proc/self/statm")
    if not statistics.is_file():
        return 0.0
    pages = int(statistics.read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
