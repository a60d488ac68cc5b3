"""The whole benchmark: every planner in every way, batches, growth, profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.progress import bars
from muninn_bench.measure.machine import find_device, release
from muninn_bench.studies.latency.measure import measure_batch, measure_growth, measure_variant
from muninn_bench.studies.latency.page import KINDS, write_latency
from muninn_bench.studies.latency.profile import profile_variant
from muninn_bench.studies.latency.programs import TunedPrograms
from muninn_bench.studies.latency.results import OVER_GRAPH, Row, Target
from muninn_bench.studies.latency.variants import VARIANTS, sizes, variant_names
from muninn_bench.studies.latency.ways import EVERY, ways_for


def run_latency(
    out: Path,
    device: str,
    smoke: bool,
    profile: bool,
    command: str,
    progress: bool = True,
    *,
    subjects: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    compiled: bool = True,
    growth: bool = True,
    batches: bool = True,
    evaluations: int | None = None,
) -> list[Target]:
    """Time planners in all ways on this machine, write the tables, and return the targets.

    Written after every planner, so that an interrupted run keeps what it measured. On a GPU the
    planners that no target names get fewer rounds, no compiled networks, batches or profile.
    ``subjects`` and ``methods`` name planners and ways, all by default; Full eager always runs.
    ``evaluations`` of a call replace those of the settings.
    ``command`` is what was typed, for the page.

    Raises:
        InputError: an unknown device, planner or way.
    """
    place = find_device(device)
    chosen = variant_names(device, subjects)
    unknown = [name for name in methods or () if name not in EVERY]
    if unknown:
        raise InputError(f"no method {', '.join(unknown)}; choose from {', '.join(EVERY)}")
    wanted = EVERY if methods is None else ("full-eager", *methods)
    settings = sizes(device, smoke)
    settings = replace(settings, compile=settings.compile and compiled)
    settings = replace(settings, evaluations=evaluations or settings.evaluations)
    graphed = device == "cuda"
    found: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    with bars(progress) as task, torch.no_grad():
        for name in chosen:
            variant = VARIANTS[name](place, settings.calls)
            light = graphed and name not in OVER_GRAPH
            own = settings.lighter() if light else settings
            programs = TunedPrograms(variant, own.evaluations, own.tuning)
            ways = ways_for(programs, graphed=graphed, compiled=own.compile)
            ways = [way for way in ways if way.name in wanted]
            together = own.batches_of(variant.parameters, variant.planner.shape[0])
            try:
                rows, calls = measure_variant(variant, ways, own, task)
                found[""] += rows
                found["calls"] += calls
                for batch in together if batches and not light else ():
                    found["batch"] += measure_batch(programs, batch, own, task, graphed=graphed)
                    release(place)
                if profile and not light:
                    parts, text = profile_variant(variant, ways, task)
                    found["profile"] += parts
                    write_whole(out / f"{device}_profile_{name}.txt", text)
            finally:  # a profile that fails must not cost the times before it
                write_latency(out, device, found, command, picture=False)
            del variant, programs, ways
            release(place)
        if growth:
            found["growth"] = measure_growth(settings, place, task, graphed=graphed)
    return write_latency(out, device, found, command)
