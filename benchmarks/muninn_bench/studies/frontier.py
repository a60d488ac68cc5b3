"""How few evaluations each method needs for the same promise: Muninn's frontier, and every
published method alone, tuned, certified and tested on the same calls.

A run folder holds ``run.json`` (planner, seed and sizes), ``contexts.safetensors`` (rows ``tune``,
``certify``, ``test``: with it a machine without the simulator can go on), ``tune.jsonl`` (every
score of tuning) and ``cells.csv``, one line a method and tolerance; all are kept when the study is
started again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from muninn.certify.certificate import library_versions
from muninn.certify.frontier import Frontier
from muninn.certify.journal import Journal, code_digest
from muninn.certify.metrics import resolve
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import require_units
from muninn.certify.scores import Entry
from muninn.certify.tune import frontier_family
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.identity.digest import digest
from muninn.model.planner import Planner
from muninn.model.solvers import ddpm
from muninn.parallel import Map, Workers, workers_of
from muninn.programs.methods import methods
from muninn.programs.plan import Family
from muninn.progress import Task as Bars
from muninn.progress import bars
from muninn_bench.measure.alternatives import NAMES, OF_FLOWS, Alternative
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.remembered import Remembered, certified_member
from muninn_bench.measure.rollout import LANES, on_device, random_contexts, roll_out
from muninn_bench.measure.run_folder import require_same_run
from muninn_bench.networks.on_gpu import moved
from muninn_bench.report.table import read_csv, write_csv
from muninn_bench.task import SideBySide, Stream, Task, Timed, context_rows

OURS = "frontier"
ALTERNATIVES = (*NAMES, *OF_FLOWS)
RISK, CONFIDENCE = 0.05, 0.95

FACTORS = (0.2, 0.5, 1.0, 2.0, 5.0)
TOLERANCES = {"maze2d": (0.002, 0.005, 0.01, 0.02, 0.05, 0.15)}
"""Of tasks that do not take their own tolerance times :data:`FACTORS`."""

PARTS = {"tune": Stream.TUNE, "certify": Stream.CERTIFY, "test": Stream.TEST}
DRIVEN = 12
"""Evaluations of the program that drives the episodes of tasks that replan."""


@dataclass(frozen=True)
class Sizes:
    """Calls of each purpose."""

    tune: int = 512
    certify: int = 1024
    test: int = 2048


class Rescaled(Frontier):
    """A frontier of deviations, which any tolerance can be held against: the search is done once.

    ``limit`` is the tolerance in force; programs are ranked in the same order under any.
    """

    def __init__(
        self,
        paired: PairedCalls,
        share: float,
        journal: Journal,
        advance: Callable[[int], None],
        workers: Map,
        group: str | None,
        first: Frontier | None,
    ) -> None:
        groups = None if group is None else {group}
        super().__init__(paired, 1.0, share, journal, advance, workers, groups=groups)
        if first is not None:
            self.share_with(first)

    def best(self, count: int, move: bool = True) -> Entry:
        """The same; an entry that was found for another limit is judged again."""
        return self.judged(super().best(count, move))

    def published(self, count: int) -> list[Entry]:
        """The same; a method that evaluates twice a step gets one more than an even number."""
        return super().published(count | all(method.twice for method in self.methods.values()))


def contexts_of(
    task: Task, variant: str, sizes: Sizes, folder: Path, seed: int, device: str = "cpu"
) -> list[Tensor]:
    """Contexts to tune, certify and test on, from the folder as far as they are there.

    Of a task that replans: one random call of each episode, driven by a fast program on the device
    and kept after every lockstep; of a robot that flies, whose episodes take seconds each, the
    first call.
    """
    path = folder / "contexts.safetensors"
    stored = safetensors.torch.load_file(path) if path.is_file() else {}
    missing = any(len(stored.get(part, ())) < getattr(sizes, part) for part in PARTS)
    driven = task.replans and not isinstance(task, Timed) and missing
    run = _fast_run(task, variant, device) if driven else None
    with bars(run is not None) as bar:
        for part, stream in PARTS.items():
            count, parts = getattr(sizes, part), [stored[part]] if part in stored else []
            advance = bar(f"drive {task.name}, {part}", count)
            while (there := sum(map(len, parts))) < count:
                if run is None:
                    parts = [context_rows(task, variant, stream, count, seed)]
                else:
                    parts.append(_driven(task, variant, run, stream, there, count, seed))
                    advance(len(parts[-1]))
                stored[part] = torch.cat(parts)
                write_whole(path, safetensors.torch.save(stored))
    return [stored[part][: getattr(sizes, part)] for part in PARTS]


def _fast_run(task: Task, variant: str, device: str) -> Run:
    """What drives episodes whose contexts are wanted."""
    planner = moved(task.planner(variant), device)
    name = "fewsteps" if planner.sampler.flow else "dpmsolver"
    fast = Alternative.untuned(name, planner, min(DRIVEN, len(planner.sampler)))
    return on_device(fast.run(planner), planner.device)


def _driven(
    task: Task, variant: str, run: Run, stream: Stream, first: int, last: int, seed: int
) -> Tensor:
    """A random context of each of the next episodes, as many as run side by side."""
    lanes = task.lanes if isinstance(task, SideBySide) else LANES
    count = min(lanes, last - first)
    drives = roll_out(
        task, variant, run, stream, count, seed=call_seed(seed, stream, 2), world=seed,
        lanes=lanes, first=first,
    )  # fmt: skip
    return random_contexts(drives, seed, first)


def planner_of(task: Task, variant: str, sampler: str | None, device: str) -> Planner:
    """The task's planner with another sampler of the same schedule, on a device.

    Raises:
        InputError: the sampler is unknown, or the planner knows no schedule.
    """
    planner = task.planner(variant)
    if sampler == "ddpm":
        own = planner.sampler
        if own.schedule is None:
            raise InputError(f"{task.name}, {variant} has no noise schedule; leave --sampler out")
        planner = replace(planner, sampler=ddpm(own.schedule, kind=own.kind, clip=own.clip))
    elif sampler is not None:
        raise InputError(f"--sampler is ddpm, or left out for the task's own, got {sampler!r}")
    return moved(planner, device)


def run_frontier(
    task: Task,
    variant: str,
    folder: Path,
    *,
    sampler: str | None = None,
    device: str = "cpu",
    sizes: Sizes,
    tolerances: Sequence[float] | None = None,
    names: Sequence[str] = (OURS, *ALTERNATIVES),
    seed: int = 0,
    workers: Workers = None,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """The lines of ``cells.csv``: for every method and tolerance what is certified, tested.

    Everything but the simulator runs on the device. The sampler is ``ddpm``, or the task's own if
    None; tolerances are the task's if None; of the named methods those are taken that the sampler
    has; the seed is of problems and noise. Workers try and measure programs, tables are fitted
    here.
    """
    planner = planner_of(task, variant, sampler, device)
    known = planner_of(task, variant, sampler, "cpu").identity()
    require_same_run(folder, {"planner": known, "seed": seed, "sizes": vars(sizes)})
    parts = contexts_of(task, variant, sizes, folder, seed, device)
    metric = resolve(task.metric(variant))[1]
    tune, certify, test = (
        kind(
            planner,
            rows.to(planner.device),
            len(rows),
            metric,
            call_seed(seed, stream, 1),
            batch=512 if planner.device.type == "cuda" else 64,
        )
        for kind, rows, stream in zip(
            (PairedCalls, Remembered, Remembered), parts, PARTS.values(), strict=True
        )
    )
    limits = tolerances or TOLERANCES.get(task.name) or [f * task.tolerance for f in FACTORS]
    allowed = require_units(certify.count, RISK, CONFIDENCE, "calls") - 1
    identity = {
        "planner": known,
        "device": device,
        "calls": digest(tune.context, "the contexts"),
        "seed": seed,
        "versions": {**library_versions(), "code": code_digest()},
    }
    journal = Journal(folder / "tune.jsonl", identity)
    path = folder / "cells.csv"
    lines = read_csv(path)
    done = {(line["method"], line["tolerance"]) for line in lines}
    groups = {method.group for method in methods(planner.sampler).values()}
    first: Frontier | None = None
    with workers_of(workers, planner.device) as crew, bars(progress) as bar:
        for name in (name for name in names if name == OURS or name in groups):
            advance, group = bar(f"tune {name}: programs", None), None if name == OURS else name
            share = allowed / certify.count
            frontier = Rescaled(tune, share, journal, advance, crew, group, first)
            for tolerance in limits:
                if (name, tolerance) in done:
                    continue
                frontier.limit = tolerance
                family = frontier_family(frontier, adaptive=name == OURS)
                line = _line(certify, test, family, tolerance, allowed, bar)
                about = {"task": task.name, "variant": variant, "sampler": planner.sampler.name,
                         "steps": len(planner.sampler), "tolerance": tolerance,
                         "unit": task.unit, "method": name}  # fmt: skip
                lines.append(about | line)
                write_csv(path, lines)
            first = first or frontier
    return lines


def _line(
    certify: PairedCalls,
    test: PairedCalls,
    family: Family,
    tolerance: float,
    allowed: int,
    bar: Bars,
) -> dict[str, Any]:
    """A family certified, its program tested."""
    member = certified_member(certify, family, tolerance, allowed, bar)
    program = family.member(member)
    measured = test.measure_in_batches(program, list(range(test.count)))
    return {
        "certified": member > 0,
        "evaluations_mean": float(measured.evaluations.mean()),
        "violation_rate": float((measured.deviation > tolerance).mean()),
        "calls": test.count,
        "certify_calls": certify.count,
        "program": str(program),
    }


def merge(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the lines of several run folders as one ``cells.csv``; returns the summary.

    Raises:
        InputError: there is no line.
    """
    lines = [line for folder in folders for line in read_csv(folder / "cells.csv")]
    write_csv(out / "cells.csv", lines)
    return list(summary(lines))


def summary(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For every cell our evaluations over those of the best alternative, then all together."""

    def cell(line: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(line[key] for key in ("task", "variant", "sampler", "steps", "tolerance"))

    ratios = []
    for where, found in groupby(sorted(lines, key=cell), cell):
        spent = {line["method"]: float(line["evaluations_mean"]) for line in found}
        ours = spent.pop(OURS, None)
        if ours is None or not spent:
            continue
        least, name = min((own, name) for name, own in spent.items())
        ratios.append(ours / least)
        yield (
            f"{' '.join(str(part) for part in where)}: {ours:.2f} against {least:.2f} ({name}), "
            f"ratio {ours / least:.3f}"
        )
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        more = sum(ratio > 1.0 for ratio in ratios)
        yield f"{len(ratios)} cells: geometric mean {mean:.3f}, ours needs more in {more}"
