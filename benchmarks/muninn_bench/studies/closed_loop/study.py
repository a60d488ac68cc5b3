"""The study of one platform: scouts, certificate, latencies, then episodes of every method.

Few-step planning drives scouting episodes, which cost a tenth of full compute's, and one call of
each is drawn at random. On those calls the cache is tuned and certified, in metres: the largest
distance between two plans' positions. Contexts are given, so the promise is an open-loop one, for a
random call of a random episode; the study then checks it on episodes that Muninn itself drives.

Everything measured is kept at once, each episode in a journal as soon as it is over. Started again,
the study goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from muninn.certify.alternatives import allowed_share
from muninn.certify.cached import cache as cached
from muninn.certify.calibrate import calibrate
from muninn.certify.journal import Journal
from muninn.certify.paired import PairedCalls, call_seed
from muninn.errors import CertificateError
from muninn.files import write_whole
from muninn.parallel import Workers, workers_of
from muninn.progress import bars
from muninn_bench.measure.alternatives import TAYLOR, Alternative, AlternativeSearch, available
from muninn_bench.measure.matched import mean_evaluations
from muninn_bench.measure.protocol import Run
from muninn_bench.models import model_file
from muninn_bench.networks.on_gpu import evaluate_on_gpu
from muninn_bench.platform import SCOUTED, STUDIED, Platform, position_metric
from muninn_bench.studies.closed_loop import methods
from muninn_bench.studies.closed_loop.batched import Ticket, fly_all
from muninn_bench.studies.closed_loop.loop import Flight
from muninn_bench.studies.closed_loop.methods import METHODS, ClosedLoopPrograms, find_method
from muninn_bench.studies.closed_loop.traces import Trace
from muninn_bench.tasks.flown import FlownEpisode

Build = Callable[[], Platform]
"""A fresh platform; sent to other processes."""

TUNED_ON = 96
"""Scouting episodes that give the calls on which fewer steps are tuned: the first two groups."""


@dataclass(frozen=True)
class Settings:
    """How much a study runs."""

    risk: float = 0.05  # share of calls that may exceed the platform's tolerance
    scouts: int = 400  # episodes to draw calibration calls from, one each
    timed: int = 200  # single jobs timed for each program
    episodes: int = 150  # of each method
    methods: tuple[str, ...] = tuple(METHODS)
    live: int = 48  # episodes flown at once, by each worker
    workers: Workers = field(default_factory=lambda: os.cpu_count() or 2)
    seed: int = 0  # of the calibration; episodes have seeds of their own


SMOKE = Settings(scouts=120, timed=12, episodes=8, live=8, workers=1)


def scout(build: Build, settings: Settings, work: Path) -> Tensor:
    """One random context of each scouting episode, (episodes, ...).

    Episodes are flown in groups, shared between processes; finished groups are kept in ``work``.
    """
    firsts = range(0, settings.scouts, settings.live)
    groups = [range(first, min(first + settings.live, settings.scouts)) for first in firsts]
    scouted = partial(_scout_group, build, work)
    contexts = []
    with bars(True) as task, workers_of(settings.workers) as crew:
        advance = task("scouting episodes", settings.scouts)
        for file in crew.map(scouted, groups):
            contexts.append(load_file(file)["contexts"])
            advance(len(contexts[-1]))
    return torch.cat(contexts)


def _scout_group(build: Build, work: Path, group: range) -> Path:
    """The file with the contexts of one group of episodes; flown if there is none."""
    file = work / f"scouts{group[0]:04d}-{group[-1]:04d}.safetensors"
    if not file.exists():
        platform = build()
        evaluate_on_gpu(platform.planner)
        steps = max(2, round(len(platform.planner.sampler) / 10))
        run = Alternative.untuned("fewsteps", platform.planner, steps).run(platform.planner)
        contexts = torch.cat(_scouted(platform, [SCOUTED + seed for seed in group], run))
        write_whole(file, save({"contexts": contexts}))
    return file


def _scouted(platform: Platform, seeds: list[int], run: Run) -> list[Tensor]:
    """Episodes in lockstep: planning takes no time here, so all plan at the same instants."""
    episodes = [FlownEpisode(platform, seed) for seed in seeds]
    met: list[list[Tensor]] = [[] for _ in seeds]
    while live := [place for place, episode in enumerate(episodes) if not episode.done]:
        calls = [call_seed(seeds[place], len(met[place])) for place in live]
        for place in live:
            met[place].append(episodes[place].context())
        contexts = torch.cat([met[place][-1] for place in live])
        plans, _ = run(contexts, platform.planner.draw_noise(seeds=calls))
        for plan, place in zip(plans, live, strict=True):
            episodes[place].follow(plan)
    draws = np.random.default_rng(seeds[0]).random(len(seeds))
    return [calls[int(draw * len(calls))] for draw, calls in zip(draws, met, strict=True)]


def tune_fewer(programs: ClosedLoopPrograms, contexts: Tensor, seed: int) -> Alternative:
    """The best alternative with no fewer evaluations than the certified program has in the mean.

    Tuned on scouted contexts, by the deviation that was certified; none of them is of a studied
    episode.
    """
    platform, certificate = programs.platform, programs.certificate
    metric = position_metric(platform)
    calls = PairedCalls(platform.planner, contexts, len(contexts), metric, call_seed(seed, 2))
    search = AlternativeSearch(calls, platform.tolerance, allowed_share(certificate))
    names = [name for name in available(platform.planner) if name != TAYLOR]
    found = search.best(mean_evaluations(certificate), names)
    return min(found.values(), key=lambda alternative: alternative.excess)


@dataclass(frozen=True)
class Paths:
    """The certificate, single-job latencies, and a folder of scouts and journals, not committed."""

    certificate: Path
    trace: Path
    work: Path

    @classmethod
    def of(cls, platform: str, smoke: bool) -> Paths:
        """Where the files of a platform lie; those of a smoke test are apart."""
        if smoke:
            folder = Path("runs/fly-smoke") / platform
            return cls(folder / "certificate.safetensors", folder / "latency.jsonl", folder)
        teacher = model_file(f"{platform}/teacher.safetensors")
        return cls(
            teacher.with_name("closed_loop.muninn.safetensors"),
            Path("results/closed-loop") / platform / "latency.jsonl",
            Path("runs/closed-loop") / platform,
        )

    @property
    def fewer(self) -> Path:
        """The tuned alternative: beside the latencies, which are its own too."""
        return self.trace.with_name("fewer.json")


def load_programs(platform: Platform, paths: Paths) -> ClosedLoopPrograms:
    """The platform with its certified planner, and fewer steps: tuned ones, else evenly spread.

    Raises:
        CertificateError: the certificate cannot be used; says how to make it again.
    """
    try:
        fast = cached(platform.planner, paths.certificate)
    except CertificateError as error:
        raise CertificateError(
            f"{error}. Or make it again: `muninn-bench fly` with --calibrate"
        ) from error
    fewer = None
    if paths.fewer.exists():
        fewer = Alternative.from_json(json.loads(paths.fewer.read_text()))
    return ClosedLoopPrograms(platform, fast, fewer)


def prepare(
    build: Build, settings: Settings, paths: Paths, *, tune: bool = True
) -> ClosedLoopPrograms:
    """What is flown; certifies first where there is no certificate.

    ``tune`` says whether fewer steps are tuned, where they are not yet: that takes minutes.
    """
    platform = build()
    if not paths.certificate.exists():
        journal = paths.work / "calibration.jsonl"
        calibrate(
            platform.planner,
            scout(build, settings, paths.work),
            tolerance=platform.tolerance,
            risk=settings.risk,
            metric=position_metric(platform),
            seed=settings.seed,
            resume=journal,
        ).save(paths.certificate)
        journal.unlink()
    programs = load_programs(platform, paths)
    if tune and not paths.fewer.exists():
        known = scout(build, replace(settings, scouts=min(settings.scouts, TUNED_ON)), paths.work)
        found = tune_fewer(programs, known, settings.seed)
        write_whole(paths.fewer, json.dumps(found.to_json()) + "\n")
        programs = load_programs(platform, paths)
    return programs


def run_study(
    build: Build, programs: ClosedLoopPrograms, settings: Settings, paths: Paths
) -> tuple[list[Flight], Trace]:
    """Fly every episode of every method that the journals do not hold yet.

    Programs are those of :func:`prepare`; every process builds a platform of its own.
    """
    if not paths.trace.exists():
        contexts = scout(build, settings, paths.work)
        methods.measure_trace(programs, contexts, settings.timed).save(paths.trace)
    files = [file for file in (paths.certificate, paths.trace, paths.fewer) if file.exists()]
    identity = {
        "platform": programs.platform.name,
        "period": programs.platform.period,
        "planner": programs.platform.planner.identity(),
        **{file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files},
    }
    numbers = range(STUDIED, STUDIED + settings.episodes)
    tickets = [Ticket(find_method(name), seed) for name in settings.methods for seed in numbers]
    parts = [tickets[at : at + settings.live] for at in range(0, len(tickets), settings.live)]
    flights: list[Flight] = []
    with bars(True) as task, workers_of(settings.workers) as crew:
        advance = task("episodes", len(tickets))
        for flown in crew.map(partial(_fly_part, build, paths, identity), parts):
            flights += flown
            advance(len(flown))
    return flights, Trace.load(paths.trace)


@cache
def _programs(build: Build, paths: Paths) -> ClosedLoopPrograms:
    """What this process plans with."""
    platform = build()
    evaluate_on_gpu(platform.planner)  # first: a planner that changes once cached runs full
    return load_programs(platform, paths)


def _fly_part(
    build: Build, paths: Paths, identity: dict[str, Any], tickets: list[Ticket]
) -> list[Flight]:
    """Flights of some tickets, all flown at once, from their journal or into it."""
    keys = [f"{ticket.method.name}/{ticket.seed}" for ticket in tickets]
    name = f"episodes-{keys[0]}-{len(keys)}.jsonl".replace("/", "-")
    journal = Journal(paths.work / name, identity)
    missing = [one for one, key in zip(tickets, keys, strict=True) if journal.get(key) is None]
    if missing:
        programs = _programs(build, paths)
        fly_all(
            programs,
            missing,
            Trace.load(paths.trace),
            position_metric(programs.platform),
            lambda flight: journal.put(f"{flight.method}/{flight.seed}", asdict(flight)),
        )
    return [Flight.from_json(journal.get(key) or {}) for key in keys]
