"""One planner at batch 1: all ways in one run, taking turns, against Full eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import measure, rms_step
from muninn.errors import InputError
from muninn.model.planner import Noise
from muninn.progress import Task
from muninn.record import Record
from muninn_bench.measure.machine import hardware, peak_memory
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.turns import Spread, Turn, take_turns, time_call
from muninn_bench.studies.latency.rows import LatencyRow, TimedCall
from muninn_bench.studies.latency.settings import Settings
from muninn_bench.studies.latency.variants import TimedVariant
from muninn_bench.studies.latency.ways import FULL_EAGER, FULL_GRAPH, Way

Outcome = tuple[Tensor, Record]


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
        with peak_memory(device) as peak:
            run(*call)
            seconds, _ = time_call(lambda: run(*call), device)
    except Exception as error:  # a compiler or a library that is missing must not cost the rest
        first_line = str(error).strip().partition("\n")[0]
        reason = f"{type(error).__name__}: {first_line}"
        return Prepared(way, None, note=f"skipped ({reason[:160]})")
    return Prepared(way, run, seconds, peak.megabytes)


def measure_variant(
    variant: TimedVariant, ways: Sequence[Way], settings: Settings, task: Task
) -> tuple[list[LatencyRow], list[TimedCall]]:
    """Rows of all ways, Full eager first, and every timed call.

    Full eager plans every distinct call once before, which warms it up and gives the plans that
    deviations are measured from.
    """
    if not ways or ways[0].name != FULL_EAGER:
        raise InputError(f"the first method is {FULL_EAGER}, the reference of all others")
    device, count = variant.planner.device, settings.calls
    calls = [variant.call(number) for number in range(count)]
    advance = task(f"{variant.name}: references", count)
    full, references = ways[0].make(), []
    for call in calls:
        references.append(full(*call)[0])
        advance(1)
    advance = task(f"{variant.name}: prepare", len(ways))
    prepared = []
    for way in ways:
        prepared.append(prepare(way, calls[0], device))
        advance(1)
    if prepared[0].run is None:
        raise InputError(f"full compute of {variant.name} does not run: {prepared[0].note}")
    warm_up = Counter({FULL_EAGER: count})

    def at(name: str, run: Run) -> Callable[[int], Outcome]:
        def turn(number: int) -> Outcome:
            warm_up[name] += number < 0
            return run(*calls[number % count])

        return turn

    runs = {each.way.name: at(each.way.name, each.run) for each in prepared if each.run}
    able = [each for each in prepared if each.run]
    turns = take_turns(
        list(runs.values()),
        warm_up=settings.warm_up,
        timed=settings.timed,
        device=device,
        strides=[settings.stride(each.seconds) for each in able],
        # A graph or a compiled network is slow to settle and quick to run; eager calls are neither.
        warm_strides=[
            settings.stride(each.seconds) if each.way.engine == "eager" else 1 for each in able
        ],
        advance=task(f"{variant.name}: time", settings.warm_up + settings.timed),
    )

    def timed_call(way: Way, turn: Turn[Outcome]) -> TimedCall:
        (trajectory, record), number = turn.result, turn.round % count
        deviation = float(measure(rms_step, references[number], trajectory)[0])
        spent = (1e3 * turn.seconds, int(record.evaluations[0]), deviation if way.plans else None)
        return TimedCall(variant.name, way.name, turn.round, number, *spent)

    kept = {
        each.way.name: [timed_call(each.way, turn) for turn in own]
        for each, own in zip(able, turns, strict=True)
    }
    rows = [
        _row(variant, each, kept.get(each.way.name, []), warm_up[each.way.name])
        for each in prepared
    ]
    return add_ratios(rows), [call for own in kept.values() for call in own]


def _row(
    variant: TimedVariant, prepared: Prepared, calls: Sequence[TimedCall], warm_up: int
) -> LatencyRow:
    spread = Spread.of([1e-3 * call.ms for call in calls]) if calls else None
    deviations = [call.deviation for call in calls if call.deviation is not None]
    horizon, dim = variant.planner.shape
    return LatencyRow(
        subject=variant.name,
        title=variant.title,
        parameters=variant.parameters,
        precision=variant.precision,
        trained=variant.trained,
        horizon=horizon,
        dim=dim,
        steps=len(variant.planner.sampler),
        method=prepared.way.name,
        method_title=prepared.way.title,
        engine=prepared.way.engine,
        evaluations=float(np.mean([call.evaluations for call in calls])) if calls else None,
        p50_ms=spread.p50 if spread else None,
        p99_ms=spread.p99 if spread else None,
        max_ms=spread.max if spread else None,
        calls=len(calls),
        warm_up=warm_up,
        deviation_p95=float(np.quantile(deviations, 0.95)) if deviations else None,
        memory_mb=prepared.memory,
        over_eager=None,
        over_graph=None,
        hardware=hardware(variant.planner.device),
        note=prepared.note,
    )


def add_ratios(rows: Sequence[LatencyRow]) -> list[LatencyRow]:
    """The rows of one planner with their speed-ups: ratios of medians."""
    by_name = {row.method: row.p50_ms for row in rows}

    def over(name: str, row: LatencyRow) -> float | None:
        full, own = by_name.get(name), row.p50_ms
        return None if full is None or own is None else full / own

    return [
        replace(row, over_eager=over(FULL_EAGER, row), over_graph=over(FULL_GRAPH, row))
        for row in rows
    ]
