"""The whole benchmark: every subject with every method, batches, growth, profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from muninn.errors import InputError
from muninn.progress import Task, bars
from muninn_bench.measure.machine import find_device, release
from muninn_bench.studies.latency.batches import measure_batch
from muninn_bench.studies.latency.growth import measure_growth
from muninn_bench.studies.latency.measure import measure_subject
from muninn_bench.studies.latency.methods import EVERY, FULL_EAGER, Method, methods_for
from muninn_bench.studies.latency.profile import profile_subject
from muninn_bench.studies.latency.programs import Programs
from muninn_bench.studies.latency.settings import Settings, sizes
from muninn_bench.studies.latency.subjects import BUILDERS, Subject, subject_names
from muninn_bench.studies.latency.targets import OVER_GRAPH, Target
from muninn_bench.studies.latency.write import Results, write_latency


def run_latency(
    out: Path,
    device: str,
    quick: bool,
    profile: bool,
    command: str,
    progress: bool = True,
    *,
    subjects: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    compiled: bool = True,
    growth: bool = True,
    batches: bool = True,
) -> list[Target]:
    """Time planners and methods on this machine and write the tables; minutes.

    Written after every subject, so that an interrupted run keeps what it measured. On a GPU the
    subjects that no target names get fewer rounds, no compiled methods, batches or profile.

    Args:
        out: folder of the results.
        device: ``cpu`` or ``cuda``.
        quick: a smoke test of the whole run, its figures worth nothing.
        profile: also measure where the time goes.
        command: that was typed, for the page.
        progress: show progress bars.
        subjects: names of those to measure; all by default.
        methods: names of those to measure; all by default. Full eager always is.
        compiled, growth, batches: whether to measure these parts; compiling takes most of a
            minute a subject.

    Returns:
        The targets of the device, with what is known of them after this run.

    Raises:
        InputError: an unknown device, subject or method.
    """
    place = find_device(device)
    chosen = subject_names(device, None if subjects is None else tuple(subjects))
    unknown = [name for name in methods or () if name not in EVERY]
    if unknown:
        raise InputError(f"no method {', '.join(unknown)}; choose from {', '.join(EVERY)}")
    settings = sizes(device, quick)
    settings = replace(settings, compile=settings.compile and compiled)
    graphed = device == "cuda"
    results = Results()
    with bars(progress) as task:
        for name in chosen:
            subject = BUILDERS[name](place, settings.calls)
            light = graphed and name not in OVER_GRAPH
            own = settings.lighter() if light else settings
            try:
                _measure(
                    subject,
                    own,
                    results,
                    task,
                    methods,
                    graphed,
                    profile and not light,
                    batches and not light,
                )
            finally:  # a profile that fails must not cost the times before it
                write_latency(out, device, results, command, picture=False)
            del subject
            release(place)
        if growth:
            results.growth = measure_growth(settings, place, task, graphed=graphed)
    return write_latency(out, device, results, command)


@torch.no_grad()
def _measure(
    subject: Subject,
    settings: Settings,
    results: Results,
    task: Task,
    wanted: Sequence[str] | None,
    graphed: bool,
    profile: bool,
    batches: bool,
) -> None:
    """Everything about one subject, added to the results."""
    programs = Programs(subject, settings.evaluations, settings.tuning)
    methods = choose(methods_for(programs, graphed=graphed, compiled=settings.compile), wanted)
    rows, calls = measure_subject(subject, methods, settings, task)
    results.rows += rows
    results.calls += calls
    if batches:
        for rows_together in settings.batches_of(subject.parameters, subject.planner.shape[0]):
            results.batches += measure_batch(
                programs, rows_together, settings, task, graphed=graphed
            )
            release(subject.planner.device)
    if profile:
        parts, text = profile_subject(subject, methods, task)
        results.profile += parts
        results.profile_text[subject.name] = text


def choose(methods: Sequence[Method], wanted: Sequence[str] | None) -> list[Method]:
    """The wanted methods among those that are offered, and Full eager; all by default."""
    if wanted is None:
        return list(methods)
    return [method for method in methods if method.name in (FULL_EAGER, *wanted)]
