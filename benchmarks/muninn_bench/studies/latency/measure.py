"""Time planners, everything in turns: at batch 1 in all ways, on batches, and on growing sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import measure, rms_step
from muninn.engines.rounds import RoundRuntime
from muninn.model.planner import Engine, Noise
from muninn.progress import Advance, Task
from muninn.record import Record
from muninn_bench.measure.machine import hardware, peak_memory, release
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.measure.turns import spread, take_turns, time_call
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.studies.latency.programs import TunedPrograms
from muninn_bench.studies.latency.results import CAPS, Row
from muninn_bench.studies.latency.variants import Precision, Settings, TimedVariant, random_variant
from muninn_bench.studies.latency.ways import Way, as_run, run_program

WARM_UP = 2  # of batches and growth: the first call captures
SHARE = 5  # one evaluation for so many steps


class Prepared(NamedTuple):
    """A way that has run, or a note why it cannot."""

    way: Way
    run: Run | None
    seconds: float = 0.0  # of the second call
    memory: float | None = None  # most of the first two calls beyond what was there, MB
    note: str = ""


def prepare(way: Way, call: tuple[Tensor, Noise], device: torch.device) -> Prepared:
    """Build a way and run it twice: the first call compiles or captures."""
    try:
        run = way.make()

        def twice() -> float:
            run(*call)
            return time_call(lambda: run(*call), device)[0]

        seconds, memory = peak_memory(twice, device)
    except Exception as error:  # a compiler or a library that is missing must not cost the rest
        reason = f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]
        return Prepared(way, None, note=f"skipped ({reason[:160]})")
    return Prepared(way, run, seconds, memory)


def measure_variant(
    variant: TimedVariant, ways: Sequence[Way], settings: Settings, task: Task
) -> tuple[list[Row], list[Row]]:
    """Rows of all ways at batch 1, Full eager first, and of every timed call.

    Full eager plans every distinct call once before, which warms it up and gives the plans that
    deviations are measured from.
    """
    device, count = variant.planner.device, settings.calls
    calls = [variant.call(number) for number in range(count)]
    advance = task(f"{variant.name}: prepare", count + len(ways))
    run, references, prepared = ways[0].make(), [], []
    for call in calls:
        references.append(run(*call)[0])
        advance(1)
    for way in ways:
        prepared.append(prepare(way, calls[0], device))
        advance(1)
    warm_up = Counter({"full-eager": count})

    def at(name: str, run: Run) -> Callable[[int], tuple[Tensor, Record]]:
        def turn(number: int) -> tuple[Tensor, Record]:
            warm_up[name] += number < 0
            return run(*calls[number % count])

        return turn

    able = [each for each in prepared if each.run]
    strides = {each.way: settings.stride(each.seconds) for each in able}
    turns = take_turns(
        [at(each.way.name, each.run) for each in able if each.run],
        warm_up=settings.warm_up,
        timed=settings.timed,
        device=device,
        strides=list(strides.values()),
        # A graph or a compiled network is slow to settle and quick to run; eager calls are neither.
        warm_strides=[stride if way.engine == "eager" else 1 for way, stride in strides.items()],
        advance=task(f"{variant.name}: time", settings.warm_up + settings.timed),
    )
    made = [
        {
            "subject": variant.name,
            "method": each.way.name,
            "round": turn.round,
            "call": turn.round % count,
            "ms": 1e3 * turn.seconds,
            "evaluations": int(turn.result[1].evaluations[0]),
            "deviation": None
            if each.way.name.startswith("network-")  # evaluations that make no plan
            else float(measure(rms_step, references[turn.round % count], turn.result[0])[0]),
        }
        for each, own in zip(able, turns, strict=True)
        for turn in own
    ]
    rows = [_row(variant, each, made, warm_up[each.way.name]) for each in prepared]
    return add_ratios(rows), made


def _row(variant: TimedVariant, prepared: Prepared, made: Sequence[Row], warm_up: int) -> Row:
    calls = [call for call in made if call["method"] == prepared.way.name]
    p50, p99, longest = spread([1e-3 * call["ms"] for call in calls]) if calls else [None] * 3
    deviations = [call["deviation"] for call in calls if call["deviation"] is not None]
    horizon, dim = variant.planner.shape
    return {
        "subject": variant.name,
        "title": variant.title,
        "parameters": variant.parameters,
        "precision": variant.precision,
        "trained": variant.trained,
        "horizon": horizon,
        "dim": dim,
        "steps": len(variant.planner.sampler),
        "method": prepared.way.name,
        "method_title": prepared.way.title,
        "engine": prepared.way.engine,
        "evaluations": float(np.mean([call["evaluations"] for call in calls])) if calls else None,
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": longest,
        "calls": len(calls),
        "warm_up": warm_up,
        "deviation_p95": float(np.quantile(deviations, 0.95)) if deviations else None,
        "memory_mb": prepared.memory,
        "over_eager": None,
        "over_graph": None,
        "hardware": hardware(variant.planner.device),
        "note": prepared.note,
    }


def add_ratios(rows: Sequence[Row]) -> list[Row]:
    """The rows of one planner with their speed-ups over Full eager and over Full in one graph."""
    medians = {row["method"]: row["p50_ms"] for row in rows}

    def over(engine: str, row: Row) -> float | None:
        full, own = medians.get(f"full-{engine}"), row["p50_ms"]
        return None if full is None or own is None else float(full / own)

    return [row | {f"over_{on}": over(on, row) for on in ("eager", "graph")} for row in rows]


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
    return [
        (spread([turn.seconds for turn in own])[0], float(np.mean([turn.result for turn in own])))
        for own in turns
    ]


def measure_batch(
    programs: TunedPrograms, batch: int, settings: Settings, task: Task, *, graphed: bool
) -> list[Row]:
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
    fastest = min(ms for (name, _), (ms, _) in zip(runs, times, strict=True) if name == "full")
    return [
        {
            "subject": variant.name,
            "title": variant.title,
            "batch": batch,
            "method": method,
            "engine": on,
            "evaluations": evaluations,
            "p50_ms": ms,
            "plans_per_second": 1e3 * batch / ms,
            "over_full": fastest / ms,
            "ideal": len(planner.sampler) / evaluations,
            "hardware": hardware(planner.device),
        }
        for (method, on), (ms, evaluations) in zip(runs, times, strict=True)
    ]


def measure_growth(
    settings: Settings, device: torch.device, task: Task, *, graphed: bool
) -> list[Row]:
    """Full and Muninn static on U-Nets with random weights, one size varied at a time."""
    engine: Engine = "graph" if graphed else "eager"
    precision: Precision = "fp16" if device.type == "cuda" else "fp32"
    cells = [("base", 0)]
    cells += [(size, value) for size, values in settings.growth.items() for value in values[1:]]
    rows, advance = [], task("growth of cost", len(cells))
    for axis, value in cells:
        sizes = {size: value if size == axis else own[0] for size, own in settings.growth.items()}
        width = sizes.pop("width")
        horizon, steps, dim, batch = sizes.values()
        config = UnetConfig(dim, tuple(width * factor for factor in (1, 2, 4, 8)), heads=8)
        variant = random_variant("growth", axis, config, horizon, precision, device, batch, steps)
        programs, planner = TunedPrograms(variant, max(2, steps // SHARE)), variant.planner
        full = run_program(planner, programs.full, engine) if graphed else plain(planner)
        runs = (full, run_program(planner, programs.static, engine))
        (full_ms, _), (muninn_ms, _) = _times(runs, variant, batch, settings.growth_timed)
        row: Row = {"subject": "growth", "axis": axis, "value": value, **sizes}
        row |= {"parameters": variant.parameters, "engine": engine, "evaluations": programs.count}
        row |= {"full_ms": full_ms, "muninn_ms": muninn_ms, "over_full": full_ms / muninn_ms}
        rows.append({**row, "hardware": hardware(device)})
        del variant, programs, planner, full, runs  # before memory is given back
        release(device)
        advance(1)
    return rows
