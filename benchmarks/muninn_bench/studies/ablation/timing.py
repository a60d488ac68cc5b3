"""Batch-1 times of every program, interleaved; and what the parts of a step cost."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from muninn.files import write_whole
from muninn.paper.score import SCORES
from muninn.paper.split import DEPTHS, split_of
from muninn_bench.studies.ablation.cells import TEST
from muninn_bench.studies.ablation.workbench import Member, Workbench

REPEATS = 40


def hardware() -> str:
    """The machine, in words."""
    if torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def time_members(workbench: Workbench, members: list[Member]) -> None:
    """Time single calls, all programs in every round, so that a slow minute is shared by all."""
    path = workbench.folder / "timing.json"
    asked = [[member.method, member.order, dict(member.settings)] for member in members]
    if path.is_file() and json.loads(path.read_text()).get("members") == asked:
        return
    rounds, paired = workbench.sizes.rounds, workbench.calls(TEST)
    seconds: list[list[float]] = [[] for _ in members]
    evaluations: list[list[int]] = [[] for _ in members]
    advance = workbench.task("time single calls", rounds * len(members))
    for turn in range(-1, rounds):  # one round to warm up
        call = [max(turn, 0) % paired.count]
        context, noise = paired.contexts(call), paired.noise(call)
        for place, member in enumerate(members):
            _wait(workbench)
            began = time.perf_counter()
            _, record = member.run(context, noise)
            _wait(workbench)
            if turn >= 0:
                seconds[place].append(time.perf_counter() - began)
                evaluations[place].append(int(record.evaluations[0]))
                advance(1)
    rows = [
        {
            "method": member.method,
            "order": member.order,
            "settings": member.settings,
            "evaluations": float(np.mean(evaluations[place])),
            "seconds": seconds[place],
        }
        for place, member in enumerate(members)
    ]
    full = next(row["seconds"] for row in rows if row["method"] == "full")
    document = {
        "hardware": hardware(),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "members": asked,
        "full_seconds": full,
        "rows": [row for row in rows if row["method"] != "full"],
    }
    write_whole(path, json.dumps(document) + "\n")


def time_parts(workbench: Workbench) -> None:
    """Median milliseconds of stem, core, whole network, sampler step and bookkeeping, batch 1."""
    path = workbench.folder / "overhead.json"
    if path.is_file():
        return
    planner = workbench.planner
    middle = len(planner.sampler) // 2
    x, told = planner.draw_noise(1, generator=None).initial, planner.timestep(middle, 1)
    context = workbench.calls(TEST).contexts([0])
    document: dict[str, Any] = {"stem_ms": {}, "core_ms": {}, "networks": {}}

    def timed(action: Callable[[], object]) -> float:
        # A processor is faster in a burst than in the long run, in which whole calls are timed.
        until = time.perf_counter() + workbench.sizes.rounds / 6
        while time.perf_counter() < until:
            planner.denoiser(x, told, context)
        return _median_ms(action, workbench)

    with torch.no_grad():
        prediction = planner.denoiser(x, told, context)
        document["full_ms"] = timed(lambda: planner.denoiser(x, told, context))
        document["step_ms"] = timed(lambda: planner.advance(x, prediction, middle, None, context))
        for depth in DEPTHS:
            split = split_of(planner.denoiser, depth)
            hidden = split.stem(x, told, context)
            document["stem_ms"][depth] = timed(
                lambda split=split: split.feature(split.stem(x, told, context), x)  # type: ignore[misc]
            )
            document["core_ms"][depth] = timed(
                lambda split=split, hidden=hidden: split.core(hidden, x, told, context)  # type: ignore[misc]
            )
            if depth == "stem-1":
                feature = split.feature(hidden, x)
                document["bookkeeping_ms"] = timed(
                    lambda feature=feature: _bookkeep(feature)  # type: ignore[misc]
                )
        name = type(workbench.teacher.network).__name__
        document["networks"][name] = {
            "full_ms": document["full_ms"],
            "stem_ms": document["stem_ms"],
        }
    write_whole(path, json.dumps(document, indent=1) + "\n")


def _bookkeep(feature: torch.Tensor) -> torch.Tensor:
    """What a gate does besides the stem: a score, a look-up, a comparison read by the host."""
    score = SCORES["relative_l1"](feature, feature)
    table = torch.linspace(0.0, 1.0, 256, device=feature.device)
    cost = table[torch.searchsorted(table, score).clamp_max(255)]
    (cost <= score).nonzero()
    return cost


def _median_ms(action: Callable[[], object], workbench: Workbench) -> float:
    times = []
    for turn in range(REPEATS + 5):
        _wait(workbench)
        began = time.perf_counter()
        action()
        _wait(workbench)
        if turn >= 5:
            times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


def _wait(workbench: Workbench) -> None:
    if workbench.device.type == "cuda":
        torch.cuda.synchronize()
