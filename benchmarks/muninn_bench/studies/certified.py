"""A task's planner with its certificate: the calls it is made from, and what is tuned beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from muninn.certify.alternatives import allowed_share
from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric, resolve
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.tune import tune
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.parallel import Workers
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn.programs.spacing import spread_steps
from muninn.progress import bars
from muninn_bench.measure.alternatives import TAYLOR, Alternative, AlternativeSearch, available
from muninn_bench.measure.matched import tuning_calls
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.measure.rollout import Drive, random_contexts, roll_out
from muninn_bench.models import model_file
from muninn_bench.task import Stream, Task, context_rows


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        calibration: episodes that give one call each.
        episodes: held-out episodes that every method drives.
        timed: single calls timed of every method.
        tuning: calls on which the alternatives are tuned where the family came ready.
        confidence: of the certificate.
    """

    calibration: int = 600
    episodes: int = 150
    timed: int = 60
    tuning: int = 96
    confidence: float | None = 0.95


SMOKE = Sizes(calibration=24, episodes=3, timed=2, tuning=3, confidence=None)


class Certified:
    """One variant of a task, the calls it is certified and tested on, and where results go.

    Args:
        task, variant: what is compared.
        out: run folder.
        sizes: how much.
        tolerance: the task's if None.
        risk: share of calls that may exceed it.
        seed: of problems, noise and splits.
        family: frozen programs; tuned anew if None.
        workers: who measures programs while the planner is certified.
        progress: show progress bars.
    """

    def __init__(
        self,
        task: Task,
        variant: str,
        out: Path,
        sizes: Sizes,
        *,
        tolerance: float | None = None,
        risk: float = 0.05,
        seed: int = 0,
        family: Family | None = None,
        workers: Workers = None,
        progress: bool = True,
    ) -> None:
        self.task, self.variant, self.out, self.sizes = task, variant, out, sizes
        self.tolerance = task.tolerance if tolerance is None else tolerance
        self.risk, self.seed, self.family, self.progress = risk, seed, family, progress
        self.workers = workers
        self.planner = task.planner(variant)
        self.metric: str | Metric = task.metric(variant)
        self.measure: Metric = resolve(self.metric)[1]

    def shrink(self) -> None:
        """Become a miniature: every step is taken, and neither promise nor figures mean anything.

        A family that has to be tuned is one even member, because tuning takes minutes on a CPU.
        """
        self.sizes, self.risk, self.tolerance = SMOKE, 0.25, 1e3
        if self.family is None:
            sampler = self.planner.sampler
            anchors = spread_steps(len(sampler), max(3, len(sampler) // 10))
            held = Forecast("velocity" if sampler.flow else "sample", 1)
            self.family = Family.of(held, (Everywhere(), Static(anchors)), "smoke")

    # -- calls ---------------------------------------------------------------------------------

    def drive(self, name: str, run: Run, stream: Stream, count: int, **options: Any) -> list[Drive]:
        """Episodes that a method drives; certified calls have other noise than tested ones."""
        seed = self.seed + (stream is Stream.CERTIFY)
        with bars(self.progress) as bar:
            advance = bar(f"drive {name}", count)
            return roll_out(
                self.task,
                self.variant,
                run,
                stream,
                count,
                seed=seed,
                world=self.seed,
                advance=advance,
                **options,
            )

    @cached_property
    def certify_contexts(self) -> Tensor:
        """One random call of each episode that Full drives; kept in a file, for a stopped run."""
        count = self.sizes.calibration
        if not self.task.replans:
            return context_rows(self.task, self.variant, Stream.CERTIFY, count, self.seed)
        weights = self.planner.identity()["model"]["weights"]  # other weights, other contexts
        path = self.out / f"contexts-{weights}-{count}-seed{self.seed}.safetensors"
        if not path.is_file():
            drives = self.drive("full", plain(self.planner), Stream.CERTIFY, count)
            found = random_contexts(drives, self.seed + 1)
            write_whole(path, safetensors.torch.save({"contexts": found}))
        return safetensors.torch.load_file(path)["contexts"]

    def paired(self, stream: Stream, contexts: Tensor) -> PairedCalls:
        """Calls of a stream with their noise."""
        seed = call_seed(self.seed, stream, 1)
        return PairedCalls(self.planner, contexts, len(contexts), self.measure, seed)

    # -- the certificate -----------------------------------------------------------------------

    def certify(self) -> Certificate:
        """The run folder's certificate; made, or resumed, where there is none.

        Raises:
            InputError: the folder holds a certificate of another promise.
        """
        path = self.out / "certificate.muninn.safetensors"
        wanted = (self.tolerance, self.risk, self.sizes.confidence)
        if path.is_file():
            certificate = Certificate.load(path)
            promised = (certificate.tolerance, certificate.risk, certificate.confidence)
            if promised != wanted:
                raise InputError(
                    f"{path} promises tolerance, risk, confidence {promised}, wanted are {wanted}; "
                    "delete it or choose another folder"
                )
            return certificate
        self.out.mkdir(parents=True, exist_ok=True)
        journal = self.out / "calibration.jsonl"
        certificate = calibrate(
            self.planner,
            self.certify_contexts,
            tolerance=self.tolerance,
            risk=self.risk,
            confidence=self.sizes.confidence,
            metric=self.metric,
            family=self.family,
            seed=self.seed,
            batch_size=50,
            resume=journal,
            workers=self.workers,
            progress=self.progress,
        )
        certificate.save(path)
        journal.unlink()
        return certificate

    def alternatives(self, count: int, certificate: Certificate) -> dict[str, Alternative]:
        """Every alternative at ``count`` evaluations, tuned for the risk."""
        planner = self.planner
        if certificate.counts["tune"]:
            contexts = self.certify_contexts
            calls = tuning_calls(planner, contexts, self.measure, certificate)
        else:
            tuning = min(self.sizes.tuning, self.sizes.episodes)
            rows = context_rows(self.task, self.variant, Stream.TUNE, tuning, self.seed)
            calls = self.paired(Stream.TUNE, rows)
        search = AlternativeSearch(calls, self.tolerance, allowed_share(certificate))
        names = [n for n in available(planner) if n != TAYLOR or not self.task.replans]
        return search.best(max(2, min(count, len(planner.sampler))), names)


FITTING_SEED = 1000
"""Of the problems that shipped families are fitted on; no certificate may use it."""


def fit_family(task: Task, variant: str, calls: int, tolerance: float, command: str) -> Path:
    """Fit a family for a task on problems of their own and store it among the models."""
    contexts = context_rows(task, variant, Stream.TUNE, calls, FITTING_SEED)
    family = tune(
        task.planner(variant),
        contexts,
        tolerance=tolerance,
        share=0.03,  # of 5%: a certificate from a thousand calls leaves 3.7%
        metric=task.metric(variant),
        seed=FITTING_SEED,
    )
    document = {"command": command, "seed": FITTING_SEED, "family": family.to_json()}
    path = model_file(task.name) / "family.json"
    return write_whole(path, json.dumps(document) + "\n")


def load_family(name: str, seed: int) -> Family:
    """A frozen family among the models, for certification with problems of ``seed``.

    Raises:
        InputError: no such file, or the family was tuned on problems of the same seed: a family
            must be certified on calls that had no part in choosing it.
    """
    document = json.loads(model_file(name).read_text())
    if document["seed"] == seed:
        raise InputError(
            f"models/{name} was tuned on problems of seed {seed}; certify it with another seed, so "
            "that no call serves both"
        )
    return Family.from_json(document["family"])
