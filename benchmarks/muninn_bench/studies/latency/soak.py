"""A soak: thousands of calls of one planner, watching memory and outputs."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.planner import Engine
from muninn.model.schedule import FloatArray
from muninn.progress import Advance, bars
from muninn_bench.measure.machine import find_device, hardware, memory, release, synchronise
from muninn_bench.measure.protocol import Run
from muninn_bench.studies.latency.programs import TunedPrograms
from muninn_bench.studies.latency.results import Row
from muninn_bench.studies.latency.variants import TUNING_CALLS, VARIANTS
from muninn_bench.studies.latency.ways import run_program

COMMON = (1, 1, 1, 1, 2, 5)
"""Batch sizes that calls run through, so that shapes change all the time."""

RARE = (3, 4, 6, 7, 8, 9)
"""One call in :data:`RARE_EVERY` has the next of these sizes. With the common ones they are nine,
one more than the graph runtimes keep: every rare call drops a captured shape for another."""

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


def run_soak(
    out: Path, device: str, calls: int, command: str, progress: bool = True, smoke: bool = False
) -> list[Row]:
    """Soak a static and a gated program on every engine of the device; writes ``soak_DEVICE.json``.

    A smoke test makes as few calls as show two sweeps, whatever ``calls`` says.

    Raises:
        InputError: too few calls, divided among programs and engines, to see anything.
    """
    place = find_device(device)
    subject = "maze2d-fp16" if device == "cuda" else "maze2d-fp32"
    every, tuning = (2, 4) if smoke else (RARE_EVERY, TUNING_CALLS)
    fewest = math.ceil(2 * every * len(RARE) / min(share for _, _, share in SHARES[device]))
    calls = fewest if smoke else calls
    if calls < fewest:
        raise InputError(
            f"a soak on {device} needs at least {fewest} calls, two sweeps through all batch "
            f"sizes for each program; got {calls}"
        )
    variant = VARIANTS[subject](place, DISTINCT)
    tuned = TunedPrograms(variant, EVALUATIONS, tuning)
    programs = {"static": tuned.static, "gated": tuned.gated}  # before memory is looked at
    release(place)
    document: Row = {
        "command": command,
        "hardware": hardware(place),
        "subject": subject,
        "rows_of_calls": COMMON,
        "rows_of_rare_calls": RARE,
        "rare_every": every,
        "before_mb": memory(place)[0],
    }
    runs = []
    with bars(progress) as task, torch.no_grad():
        for name, engine, share in SHARES[device]:
            count = round(calls * share)
            run = run_program(variant.planner, programs[name], engine)
            advance = task(f"{name}, {engine}", count)
            rare = () if engine == "compile" else RARE
            seen = soak(run, variant.batch, place, count, rare, every, advance)
            runs.append({"program": name, "engine": engine, **seen})
            del run
            if engine == "compile":
                torch.compiler.reset()
            release(place)
    document |= {"left_after_release_mb": memory(place)[0], "runs": runs}
    write_whole(out / f"soak_{device}.json", json.dumps(document, indent=1) + "\n")
    return runs


def soak(
    run: Run,
    batch: Callable[[int, int], Any],
    device: torch.device,
    calls: int,
    rare: Sequence[int],
    every: int,
    advance: Advance,
) -> Row:
    """What many calls of one program show; memory in MB, at the end of the first and last sweep.

    A sweep is the calls in which every rare size comes once, so that the same shapes are held at
    the end of each. The compiler, unlike the graphs, keeps every shape: it gets no ``rare`` ones.
    One call in ``every`` is rare.
    ``changed`` counts results that were not those of the first time; ``sweeps`` has calls made and
    :func:`memory` at the end of each; growth is the slope of allocated memory over all sweeps, and
    over the second half of them.
    """
    inputs = [batch(rows, 7 * at) for at, rows in enumerate(COMMON * (DISTINCT // len(COMMON)))]
    common, sweep = len(inputs), every * len(RARE)
    inputs += [batch(rows, 5 * at) for at, rows in enumerate(rare)]
    first: dict[int, str] = {}
    changed = 0
    sweeps: list[list[float]] = []
    for number in range(calls):
        place = number % common
        if rare and (number + 1) % every == 0:
            place = common + number // every % len(rare)
        digest = hashlib.sha256(run(*inputs[place])[0].cpu().numpy().tobytes()).hexdigest()
        changed += first.setdefault(place, digest) != digest
        if (number + 1) % sweep == 0:
            synchronise(device)
            sweeps.append([number + 1, *memory(device)])
        advance(1)
    ends = list(zip(sweeps[0], sweeps[-1], strict=True))
    return {
        "calls": calls,
        "distinct": len(first),
        "changed": changed,
        "allocated_mb": ends[1],
        "reserved_mb": ends[2],
        "process_mb": ends[3],
        "growth_mb_per_1000": _slope(np.array(sweeps)),
        "late_growth_mb_per_1000": _slope(np.array(sweeps[len(sweeps) // 2 :])),
        "sweeps": sweeps,
    }


def _slope(sweeps: FloatArray) -> float:
    """MB allocated per 1,000 calls; 0 where there is one moment only."""
    return 1e3 * float(np.polyfit(sweeps[:, 0], sweeps[:, 1], 1)[0]) if len(sweeps) > 1 else 0.0
