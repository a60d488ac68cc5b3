"""One subject at batch 1: all methods in one run, taking turns, against Full eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
from muninn_bench.studies.latency.methods import FULL_EAGER, FULL_GRAPH, Method
from muninn_bench.studies.latency.rows import Call, Row
from muninn_bench.studies.latency.settings import Settings
from muninn_bench.studies.latency.subjects import Subject

Outcome = tuple[Tensor, Record]


@dataclass(frozen=True)
class Prepared:
    """A method that has run, or why it cannot.

    Attributes:
        run: the method, or None.
        seconds: of its second call.
        memory: most memory of its first two calls beyond what was there, MB.
        note: why there is no ``run``.
    """

    method: Method
    run: Run | None
    seconds: float = 0.0
    memory: float | None = None
    note: str = ""


def prepare(method: Method, call: tuple[Tensor, Noise], device: torch.device) -> Prepared:
    """Build a method and run it twice: the first call compiles or captures."""
    try:
        run = method.make()
        with peak_memory(device) as peak:
            run(*call)
            seconds, _ = time_call(lambda: run(*call), device)
    except Exception as error:  # a compiler or a library that is missing must not cost the rest
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        return Prepared(method, None, note=f"skipped ({reason[:160]})")
    return Prepared(method, run, seconds, peak.megabytes)


def measure_subject(
    subject: Subject, methods: Sequence[Method], settings: Settings, task: Task
) -> tuple[list[Row], list[Call]]:
    """Rows of all methods and every timed call.

    Full eager plans every distinct call once before, which warms it up and gives the plans that
    deviations are measured from.

    Args:
        subject: the planner and its calls.
        methods: Full eager first.
        settings: how much.
        task: progress bars.
    """
    if not methods or methods[0].name != FULL_EAGER:
        raise InputError(f"the first method is {FULL_EAGER}, the reference of all others")
    device = subject.planner.device
    calls = [subject.call(index) for index in range(settings.calls)]
    advance = task(f"{subject.name}: references", settings.calls)
    full = methods[0].make()
    references = []
    for call in calls:
        references.append(full(*call)[0])
        advance(1)
    advance = task(f"{subject.name}: prepare", len(methods))
    prepared = []
    for method in methods:
        prepared.append(prepare(method, calls[0], device))
        advance(1)
    if prepared[0].run is None:
        raise InputError(f"full compute of {subject.name} does not run: {prepared[0].note}")
    able = [entry for entry in prepared if entry.run is not None]
    strides = [settings.stride(entry.seconds) for entry in able]
    # A graph or a compiled network is slow to settle and quick to run; eager calls are neither.
    warm = [
        stride if entry.method.engine == "eager" else 1
        for entry, stride in zip(able, strides, strict=True)
    ]
    turns = take_turns(
        [_at(entry, calls) for entry in able],
        warm_up=settings.warm_up,
        timed=settings.timed,
        device=device,
        strides=strides,
        warm_strides=warm,
        advance=task(f"{subject.name}: time", settings.warm_up + settings.timed),
    )
    rows, kept = [], []
    for entry in prepared:
        own: list[Turn[Outcome]] = []
        warm_up = 0
        if entry.run is not None:
            place = able.index(entry)
            own = turns[place]
            warm_up = sum(
                (number + place) % warm[place] == 0 for number in range(-settings.warm_up, 0)
            )
        found = _calls(subject, entry.method, own, references)
        extra = settings.calls if entry.method.name == FULL_EAGER else 0
        rows.append(_row(subject, entry, found, warm_up + extra))
        kept += found
    return add_ratios(rows), kept


def _at(entry: Prepared, calls: list[tuple[Tensor, Noise]]) -> Callable[[int], Outcome]:
    run = entry.run
    assert run is not None
    return lambda number: run(*calls[number % len(calls)])


def _calls(
    subject: Subject, method: Method, turns: list[Turn[Outcome]], references: list[Tensor]
) -> list[Call]:
    kept = []
    for turn in turns:
        trajectory, record = turn.result
        at = turn.round % len(references)
        deviation = None
        if method.plans:
            deviation = float(measure(rms_step, references[at], trajectory)[0])
        kept.append(
            Call(
                subject.name,
                method.name,
                turn.round,
                at,
                1e3 * turn.seconds,
                int(record.evaluations[0]),
                deviation,
            )
        )
    return kept


def _row(subject: Subject, entry: Prepared, calls: list[Call], warm_up: int) -> Row:
    spread = Spread.of([1e-3 * call.ms for call in calls]) if calls else None
    deviations = [call.deviation for call in calls if call.deviation is not None]
    horizon, dim = subject.planner.shape
    return Row(
        subject=subject.name,
        title=subject.title,
        parameters=subject.parameters,
        precision=subject.precision,
        trained=subject.trained,
        horizon=horizon,
        dim=dim,
        steps=len(subject.planner.sampler),
        method=entry.method.name,
        method_title=entry.method.title,
        engine=entry.method.engine,
        evaluations=float(np.mean([call.evaluations for call in calls])) if calls else None,
        p50_ms=spread.p50 if spread else None,
        p99_ms=spread.p99 if spread else None,
        max_ms=spread.max if spread else None,
        calls=len(calls),
        warm_up=warm_up,
        deviation_p95=float(np.quantile(deviations, 0.95)) if deviations else None,
        memory_mb=entry.memory,
        over_eager=None,
        over_graph=None,
        hardware=hardware(subject.planner.device),
        note=entry.note,
    )


def add_ratios(rows: list[Row]) -> list[Row]:
    """The rows of one subject with their speed-ups: ratios of medians."""
    by_name = {row.method: row.p50_ms for row in rows}
    eager, graph = by_name.get(FULL_EAGER), by_name.get(FULL_GRAPH)
    return [
        replace(row, over_eager=_ratio(eager, row.p50_ms), over_graph=_ratio(graph, row.p50_ms))
        for row in rows
    ]


def _ratio(reference: float | None, own: float | None) -> float | None:
    return None if reference is None or own is None else reference / own
