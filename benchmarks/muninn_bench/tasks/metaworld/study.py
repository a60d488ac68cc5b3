"""`muninn-bench metaworld`: certify each variant of the policy, then compare on held-out episodes.

Files of a result folder: ``VARIANT.json`` (schema: docs/architecture.md), the certificate, and
``summary.csv`` with one row per variant and method.
"""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.progress import bars
from muninn_bench.tasks.metaworld.comparison import compare
from muninn_bench.tasks.metaworld.rollout import random_contexts, roll_out
from muninn_bench.tasks.metaworld.subjects import VARIANTS, Subject
from muninn_bench.tasks.metaworld.world import CALIBRATE


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        calibration: episodes that give one context each.
        episodes: held-out episodes a method drives.
        timed: batch-1 calls timed per method.
        confidence: of the certificate.
    """

    calibration: int = 600
    episodes: int = 150
    timed: int = 60
    confidence: float | None = 0.95


QUICK = Sizes(calibration=60, episodes=4, timed=3, confidence=None)


def run_study(
    models: Path,
    out: Path,
    raw: Path,
    *,
    variant: str,
    sizes: Sizes,
    tolerance: float,
    risk: float,
    seed: int,
    command: str,
    progress: bool = True,
) -> dict[str, Any]:
    """Study one variant; a certificate that is there already is used, so that a stop costs little.

    The certificate is *open loop*: its contexts are one random call of each of Full's own
    episodes. What that means for episodes that Muninn drives is measured (``closed_loop``).

    Args:
        models: folder with the policies.
        out: result folder.
        raw: folder for what a resumed study takes up again.
        variant: one of :data:`muninn_bench.tasks.metaworld.subjects.VARIANTS`.
        sizes: how much is run.
        tolerance: in units of the limits of the actions.
        risk: share of calls that may exceed it.
        seed: of noise and splits.
        command: recorded with the result.
        progress: show progress bars.
    """
    subject = Subject.load(models, variant)
    contexts = calibration_contexts(subject, raw, sizes.calibration, seed, progress=progress)
    path = out / f"{variant}.muninn.safetensors"
    if path.is_file():
        certificate = Certificate.load(path)
        promised = (certificate.tolerance, certificate.risk, certificate.confidence)
        if promised != (tolerance, risk, sizes.confidence):
            raise InputError(
                f"{path} promises tolerance, risk, confidence {promised}, wanted are "
                f"{(tolerance, risk, sizes.confidence)}; delete it or choose another folder"
            )
    else:
        certificate = calibrate(
            subject.planner,
            contexts,
            tolerance=tolerance,
            risk=risk,
            confidence=sizes.confidence,
            metric=subject.metric(),
            seed=seed,
            batch_size=50,
            resume=raw / f"{variant}.calibration.jsonl",
            progress=progress,
        )
        certificate.save(path)
    with bars(progress) as task:
        result = compare(
            subject,
            certificate,
            contexts,
            tolerance,
            episodes=sizes.episodes,
            timed=sizes.timed,
            seed=seed,
            command=command,
            task=task,
        )
    (out / f"{variant}.json").write_text(json.dumps(result, indent=1) + "\n")
    write_summary(out)
    return result


def calibration_contexts(
    subject: Subject, raw: Path, count: int, seed: int, *, progress: bool
) -> Tensor:
    """One random call of each of ``count`` episodes that Full drives; kept in a file."""
    weights = subject.planner.identity()["model"]["weights"]  # other weights, other contexts
    path = raw / f"{subject.name}-{weights}-{count}-seed{seed}.safetensors"
    if path.is_file():
        return safetensors.torch.load_file(path)["contexts"]
    with bars(progress) as task:
        episodes = roll_out(
            subject,
            subject.full(),
            CALIBRATE,
            count,
            seed=seed + 1,  # not the noise of the test episodes
            advance=task("contexts: full drives", count),
        )
    contexts = random_contexts(episodes, seed + 1)
    write_whole(path, safetensors.torch.save({"contexts": contexts}))
    return contexts


def write_summary(out: Path) -> Path:
    """One row per variant and method, from the results in the folder."""
    rows: list[dict[str, Any]] = []
    for variant in VARIANTS:
        path = out / f"{variant}.json"
        if path.is_file():
            result = json.loads(path.read_text())
            for method in result["methods"]:
                ends = method.pop("task_success_ci95"), method.pop("violation_ci95")
                del method["deviation_mean_ci95"]
                method.pop("tuned", None)  # in the file of the variant
                rows.append(
                    {"variant": variant}
                    | method
                    | dict(zip(("success_low", "success_high"), ends[0], strict=True))
                    | dict(zip(("violation_low", "violation_high"), ends[1], strict=True))
                )
    path = out / "summary.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
