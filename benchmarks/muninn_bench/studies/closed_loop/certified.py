"""The certificate of a platform's planner, from contexts met in closed loop.

Few-step planning drives scouting episodes, which cost a tenth of full compute's, and of each one
call is drawn at random. On those calls the cache is tuned and certified, in metres: the largest
distance between two plans' positions. Contexts are given, so the promise is an open-loop one, for a
random call of a random episode; the study then checks it on episodes that Muninn itself drives.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric
from muninn.certify.paired import PairedCalls, call_seed
from muninn.errors import CertificateError
from muninn.files import write_whole
from muninn.progress import bars
from muninn_bench.measure.alternatives import TAYLOR, Alternative, AlternativeSearch, available
from muninn_bench.measure.baselines import few_steps
from muninn_bench.measure.matched import allowed_share, mean_evaluations
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.platform import Platform
from muninn_bench.studies.closed_loop.on_gpu import evaluate_on_gpu
from muninn_bench.studies.closed_loop.processes import end_with_parent
from muninn_bench.studies.closed_loop.settings import Settings
from muninn_bench.tasks.maze2d.planner import find_models

SCOUTS = 2_000_000
"""First seed of the scouting episodes; none of a study's."""

TUNED_ON = 96
"""Scouting episodes that give the calls on which fewer steps are tuned: the first two groups."""


def certificate_path(platform: str) -> Path:
    """Where a platform's certificate is kept: beside its teacher."""
    return find_models() / platform / "closed_loop.muninn.safetensors"


def position_metric(platform: Platform) -> Metric:
    """Largest distance in metres between the positions of two plans at the same frame."""

    def largest_distance_m(full: Tensor, cached: Tensor) -> Tensor:
        apart = [
            np.linalg.norm(platform.path(one) - platform.path(other), axis=1).max()
            for one, other in zip(full.cpu(), cached.cpu(), strict=True)
        ]
        return torch.tensor(np.array(apart))

    largest_distance_m.__qualname__ = "largest_distance_m"
    return largest_distance_m


def scout(build: Callable[[], Platform], settings: Settings, work: Path) -> Tensor:
    """One random context of each scouting episode, (episodes, ...).

    Episodes are flown in groups, shared between processes; finished groups are kept in ``work``.
    """
    firsts = range(0, settings.scouts, settings.live)
    groups = [range(first, min(first + settings.live, settings.scouts)) for first in firsts]
    files = [work / f"scouts{group[0]:04d}-{group[-1]:04d}.safetensors" for group in groups]
    work.mkdir(parents=True, exist_ok=True)
    missing = [job for job in zip(groups, files, strict=True) if not job[1].exists()]
    with bars(True) as task:
        advance = task("scouting episodes", settings.scouts)
        advance(settings.scouts - sum(len(group) for group, _ in missing))
        fly = partial(_scout_group, build)
        if settings.processes == 1:
            for job in missing:
                advance(fly(job))
        elif missing:
            context = multiprocessing.get_context("spawn")
            with context.Pool(settings.processes, initializer=end_with_parent) as pool:
                for count in pool.imap_unordered(fly, missing):
                    advance(count)
    return torch.cat([load_file(file)["contexts"] for file in files])


def _scout_group(build: Callable[[], Platform], job: tuple[range, Path]) -> int:
    """Fly one group of episodes and keep its contexts; returns how many."""
    group, file = job
    platform = build()
    evaluate_on_gpu(platform.planner)
    steps = max(2, round(len(platform.planner.sampler) / 10))
    run = plain(few_steps(platform.planner, steps))
    contexts = torch.cat(_scouted(platform, [SCOUTS + seed for seed in group], run))
    write_whole(file, save({"contexts": contexts}))
    return len(group)


def _scouted(platform: Platform, seeds: list[int], run: Run) -> list[Tensor]:
    """Episodes in lockstep: planning takes no time here, so all plan at the same instants."""
    episodes = [platform.begin(seed) for seed in seeds]
    met: list[list[Tensor]] = [[] for _ in seeds]
    live = list(range(len(seeds)))
    while live:
        now = [episodes[place].context().clone() for place in live]
        calls = [call_seed(seeds[place], len(met[place])) for place in live]
        plans, _ = run(torch.cat(now), platform.planner.draw_noise(seeds=calls))
        for row, place in enumerate(live):
            met[place].append(now[row])
            episode = episodes[place]
            if platform.screen(plans[row], now[row]):
                episode.follow(plans[row], episode.time)
            else:
                episode.hold()
            episode.advance(len(met[place]) * platform.period - episode.time)
        live = [place for place in live if episodes[place].outcome is None]
    draws = np.random.default_rng(seeds[0]).random(len(seeds))
    return [calls[int(draw * len(calls))] for draw, calls in zip(draws, met, strict=True)]


def certify(platform: Platform, settings: Settings, contexts: Tensor, journal: Path) -> Certificate:
    """Tune and certify on scouted contexts; resumes from the journal."""
    return calibrate(
        platform.planner,
        contexts,
        tolerance=settings.tolerance,
        risk=settings.risk,
        metric=position_metric(platform),
        seed=settings.seed,
        resume=journal,
    )


def tune_fewer(
    platform: Platform, fast: CachedPlanner, contexts: Tensor, settings: Settings
) -> Alternative:
    """The best alternative with no fewer evaluations than the certified program has in the mean.

    Tuned on scouted contexts, by the deviation that was certified; none of them is of a studied
    episode.
    """
    certificate = fast.certificate
    if certificate is None:
        raise CertificateError(f"the certificate cannot be used: {fast.reason}")
    metric, seed = position_metric(platform), call_seed(settings.seed, 2)
    calls = PairedCalls(platform.planner, contexts, len(contexts), metric, seed)
    search = AlternativeSearch(calls, settings.tolerance, allowed_share(certificate))
    names = [name for name in available(platform.planner) if name != TAYLOR]
    found = search.best(mean_evaluations(certificate), names)
    return min(found.values(), key=lambda alternative: alternative.excess)


def load_fast(platform: Platform, path: Path) -> CachedPlanner:
    """The certified planner.

    Raises:
        CertificateError: the file cannot be used; says how to make it anew.
    """
    try:
        return cache(platform.planner, path)
    except CertificateError as error:
        raise CertificateError(
            f"{error}. Or make it anew: muninn-bench fly --platform {platform.name} --calibrate"
        ) from error
