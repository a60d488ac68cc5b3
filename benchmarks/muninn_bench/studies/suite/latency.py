"""Single calls of every entrant, taking turns; each machine's times are a file of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.files import write_whole
from muninn.progress import Task as Bars
from muninn_bench.measure.machine import hardware
from muninn_bench.measure.protocol import WARM_UP, Run
from muninn_bench.measure.turns import take_turns
from muninn_bench.studies.suite.entrants import Entrant, Site

DEVICES = {"cpu": "latency_ms_cpu", "cuda": "latency_ms_gpu"}
"""Columns of the rows."""


def times(folder: Path, device: str) -> dict[str, Any]:
    """Milliseconds of single calls by key of their entrant, as far as a device was timed."""
    path = folder / f"latency-{device}.json"
    found: dict[str, Any] = (
        json.loads(path.read_text()) if path.is_file() else {"ms": {}, "median_ms": {}}
    )
    return found


def time_entrants(
    site: Site, entrants: Sequence[Entrant], contexts: Tensor, timed: int, bar: Bars
) -> None:
    """Time calls of one row on test contexts, unless every entrant was timed on this device.

    All of them are timed together: times of one round can be compared.
    """
    wanted = {each.key: each for each in entrants}
    if wanted.keys() <= times(site.folder, site.device)["ms"].keys():
        return
    planner = site.single
    noises = [planner.draw_noise(seeds=[call_seed(0, place)]) for place in range(len(contexts))]
    rows = [row[None] for row in contexts.to(planner.device)]

    def call(run: Run, number: int) -> Tensor:
        place = number % len(rows)
        return run(rows[place], noises[place])[0]

    runs: list[Callable[[int], Tensor]] = [
        partial(call, each.run(site, single=True)) for each in wanted.values()
    ]
    advance = bar("time single calls", timed + WARM_UP)
    turns = take_turns(runs, warm_up=WARM_UP, timed=timed, device=planner.device, advance=advance)
    spent = {
        key: [round(1e3 * turn.seconds, 4) for turn in own]
        for key, own in zip(wanted, turns, strict=True)
    }
    found = {
        "hardware": hardware(planner.device),
        "threads": torch.get_num_threads(),
        "median_ms": {key: float(np.median(own)) for key, own in spent.items()},
        "ms": spent,
    }
    write_whole(site.folder / f"latency-{site.device}.json", json.dumps(found) + "\n")
