"""Batch-1 times of every program, interleaved; and what the parts of a step cost."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from muninn.files import write_whole
from muninn.paper.score import SCORES
from muninn.paper.split import DEPTHS, Split, split_of
from muninn_bench.measure.turns import take_turns, time_call
from muninn_bench.studies.ablation.raw import TEST
from muninn_bench.studies.ablation.workbench import Member, Workbench

REPEATS, WARM_UP = 40, 5


def time_members(workbench: Workbench, members: Sequence[Member]) -> None:
    """Time single calls, all programs in every round, so that a slow minute is shared by all."""
    path = workbench.folder / "timing.json"
    asked = [[member.method, member.order, dict(member.settings)] for member in members]
    if path.is_file() and json.loads(path.read_text()).get("members") == asked:
        return
    rounds, paired = workbench.sizes.rounds, workbench.calls(TEST)
    picked = [[turn % paired.count] for turn in range(rounds)]
    calls = [(paired.contexts(call), paired.noise(call)) for call in picked]
    turns = take_turns(
        [
            lambda turn, run=member.run: int(run(*calls[max(turn, 0)])[1].evaluations[0])  # type: ignore[misc]
            for member in members
        ],
        warm_up=1,
        timed=rounds,
        device=workbench.device,
        advance=workbench.task("time single calls", rounds + 1),
    )
    rows = [
        {
            "method": member.method,
            "order": member.order,
            "settings": member.settings,
            "evaluations": float(np.mean([turn.result for turn in own])),
            "seconds": [turn.seconds for turn in own],
        }
        for member, own in zip(members, turns, strict=True)
    ]
    document = {
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "members": asked,
        "full_seconds": next(row["seconds"] for row in rows if row["method"] == "full"),
        "rows": [row for row in rows if row["method"] != "full"],
    }
    write_whole(path, json.dumps(document) + "\n")


@torch.no_grad()
def time_parts(workbench: Workbench) -> None:
    """Median milliseconds of stem, core, whole network, sampler step and bookkeeping, batch 1."""
    path = workbench.folder / "overhead.json"
    if path.is_file():
        return
    planner, device = workbench.planner, workbench.device
    middle = len(planner.sampler) // 2
    x, told = planner.draw_noise(1, generator=None).initial, planner.timestep(middle, 1)
    context = workbench.calls(TEST).contexts([0])

    def timed(action: Callable[[], object]) -> float:
        # A processor is faster in a burst than in the long run, in which whole calls are timed.
        until = time.perf_counter() + workbench.sizes.rounds / 6
        while time.perf_counter() < until:
            planner.denoiser(x, told, context)
        seconds = [time_call(action, device)[0] for _ in range(WARM_UP + REPEATS)]
        return 1e3 * float(np.median(seconds[WARM_UP:]))

    def probe(split: Split) -> object:
        return split.feature(split.stem(x, told, context), x)

    prediction = planner.denoiser(x, told, context)
    document: dict[str, Any] = {
        "full_ms": timed(lambda: planner.denoiser(x, told, context)),
        "step_ms": timed(lambda: planner.advance(x, prediction, middle, None, context)),
        "stem_ms": {},
        "core_ms": {},
    }
    for depth in DEPTHS:
        split = split_of(planner.denoiser, depth)
        hidden = split.stem(x, told, context)
        document["stem_ms"][depth] = timed(partial(probe, split))
        document["core_ms"][depth] = timed(partial(split.core, hidden, x, told, context))
        if depth == "stem-1":
            document["bookkeeping_ms"] = timed(partial(_bookkeep, split.feature(hidden, x)))
    own = {name: document[name] for name in ("full_ms", "stem_ms")}
    document["networks"] = {type(workbench.teacher.network).__name__: own}
    write_whole(path, json.dumps(document, indent=1) + "\n")


def _bookkeep(feature: torch.Tensor) -> torch.Tensor:
    """What a gate does besides the stem: a score, a look-up, a comparison read by the host."""
    score = SCORES["relative_l1"](feature, feature)
    table = torch.linspace(0.0, 1.0, 256, device=feature.device)
    cost = table[torch.searchsorted(table, score).clamp_max(255)]
    (cost <= score).nonzero()
    return cost
