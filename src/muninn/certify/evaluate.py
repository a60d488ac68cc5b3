"""Evaluate: fresh calls judge whether a certificate's promise is kept."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.calibrate import whole
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric, Tolerance, metric_name, resolve
from muninn.certify.risk import excess_p_value, units_needed, wilson
from muninn.certify.sources import gather
from muninn.certify.stored_context import restore
from muninn.certify.units import Episodes, Units, units_of
from muninn.context import Context, batch_size, select, tensors
from muninn.engines.choose import runtime_for
from muninn.errors import CertificateError, InputError
from muninn.identity.comparison import differences
from muninn.model.planner import Planner
from muninn.progress import bars

LEVEL = 0.05
"""A promise counts as broken where one that is kept gives so many violations more rarely."""

TIMED = 21  # calls of each, after one to warm up


@dataclass(frozen=True)
class Evaluation:
    """What fresh calls say about a promise.

    Attributes:
        promise: :meth:`Certificate.promise`.
        deviates: what counts as a violation, in words.
        units: that were judged, ``what`` they are in words.
        violations: units beyond the tolerance.
        risk: share of them that was promised.
        interval: 95% Wilson interval of the share of violations.
        p_value: exact, that the share is above the risk.
        deviation: quantiles over calls, ``p50``, ``p95``, ``p99`` and ``max``.
        evaluations: of the certified program, in the mean; full compute takes ``steps``.
        seconds: median of a call of one row, ``full`` and ``certified``, on the planner's engine,
            measured in turns. Times include the check that the network matches its certificate.
        coverage: share of units within the per-call bound; 1 - risk was promised on average.
        seed: of the noise.
    """

    promise: str
    deviates: str
    what: str
    units: int
    violations: int
    risk: float
    interval: tuple[float, float]
    p_value: float
    deviation: dict[str, float]
    evaluations: float
    steps: int
    seconds: dict[str, float]
    coverage: float
    seed: int

    @property
    def share(self) -> float:
        """Of units that violate."""
        return self.violations / self.units

    @property
    def kept(self) -> bool:
        """Whether these calls are compatible with the promise, at the level of 5%."""
        return self.p_value >= LEVEL

    def sentence(self) -> str:
        """The judgement in one plain sentence."""
        low, high = self.interval
        return (
            f"{'Kept' if self.kept else 'Not kept'}: {self.share:.1%} of {self.units} new "
            f"{self.what} {self.deviates} ({self.violations}; 95% interval {low:.1%} to "
            f"{high:.1%}), at most {self.risk:.1%} were promised (p = {self.p_value:.2g})."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        judged = {"kept": self.kept, "sentence": self.sentence(), "share": self.share}
        return {**judged, **asdict(self), "interval": list(self.interval)}


def evaluate(
    planner: Planner,
    certificate: Certificate | str | Path,
    contexts: Context | Episodes | int,
    *,
    metric: Metric | None = None,
    tolerance: Tolerance | None = None,
    reference: Planner | None = None,
    episode_of: Sequence[int] | None = None,
    seed: int | None = None,
    progress: bool = True,
) -> Evaluation:
    """Judge a certificate by fresh calls, full compute and its program paired on the same noise.

    Args:
        planner: what is deployed.
        certificate: its certificate, or the path of the file.
        contexts: as in :func:`muninn.calibrate`: contexts like those to come, which calibration
            did not see; :class:`Episodes` for a closed-loop certificate; or a number of calls.
        metric, tolerance: where they are functions: a certificate keeps their names only.
        reference, episode_of: what calibration was given.
        seed: of the noise; by default one more than that of the calibration.
        progress: show a progress bar.

    Raises:
        InputError: too few units (the message says how many are needed), or they are those of
            the calibration; an argument does not fit the certificate.
        CertificateError: the certificate was made for another planner, or other contexts.
    """
    if not isinstance(planner, Planner):
        raise InputError(f"planner is a muninn.Planner, got {type(planner).__name__}")
    fast = cache(planner, certificate)
    made = fast.certificate
    assert made is not None  # a mismatch is an error
    if isinstance(contexts, Iterator):
        contexts = gather(contexts)
    seed = made.seed + 1 if seed is None else whole("seed", seed)
    _require_terms(made, contexts, metric, tolerance, reference, seed)
    units = units_of(
        planner,
        contexts,
        metric=resolve(made.metric if metric is None else metric)[1],
        tolerance=made.tolerance or tolerance or 0.0,
        unit="call" if made.unit == "call" else "episode",
        episode_of=episode_of,
        seed=seed,
        batch=made.batch_size,
        reference=reference,
    )
    needed = units_needed(made.risk, made.confidence or 0.95)
    if units.count < needed:
        raise InputError(
            f"{units.count} {made.unit}s cannot judge a risk of {made.risk:g}: give at least "
            f"{needed} new ones, fewer do not show it even without a violation"
        )
    seconds = _seconds(fast, made, units)
    outcomes = []
    with bars(progress) as task:
        advance = task(f"evaluate {made.unit}s", units.count)
        for at in range(0, units.count, units.chunk):
            chunk = range(at, min(at + units.chunk, units.count))
            outcomes += units.measure(made.program, chunk)
            advance(len(chunk))
    violations = sum(outcome.excess > 1.0 for outcome in outcomes)
    deviation = np.concatenate([outcome.deviation for outcome in outcomes])
    covered = [
        np.all(np.array(outcome.deviation) <= made.bound(np.array(outcome.estimate)))
        for outcome in outcomes
    ]
    size = f"{made.tolerance_name}(context)" if made.tolerance is None else f"{made.tolerance:g}"
    drawn = "episodes (one random call of each)" if made.loop == "closed" else "calls"
    return Evaluation(
        promise=made.promise(),
        deviates=f"deviate from full compute by more than {size} ({made.metric})",
        what=drawn if made.unit == "call" else "episodes (worst call)",
        units=units.count,
        violations=violations,
        risk=made.risk,
        interval=wilson(violations, units.count),
        p_value=excess_p_value(
            violations,
            units.count,
            made.risk,
            made.counts["certify"] if made.confidence is None else None,
        ),
        deviation={f"p{q}": float(np.percentile(deviation, q)) for q in (50, 95, 99)}
        | {"max": float(deviation.max())},
        evaluations=float(np.mean(np.concatenate([each.evaluations for each in outcomes]))),
        steps=len(planner.sampler),
        seconds=seconds,
        coverage=float(np.mean(covered)),
        seed=seed,
    )


def _require_terms(
    made: Certificate,
    contexts: Context | Episodes | int,
    metric: Metric | None,
    tolerance: Tolerance | None,
    reference: Planner | None,
    seed: int,
) -> None:
    """Raise where something is not what the certificate was made with, or not fresh."""
    if metric is not None and resolve(metric)[0] != made.metric:
        raise InputError(f"the promise is in {made.metric}, got the metric {resolve(metric)[0]}")
    if made.tolerance is None and (
        not callable(tolerance) or metric_name(tolerance) != made.tolerance_name
    ):
        raise InputError(f"the tolerance is a function: pass tolerance={made.tolerance_name}")
    truth = None if reference is None else reference.identity()
    if found := differences("", {"reference": made.reference}, {"reference": truth}):
        raise CertificateError(f"reference: {'; '.join(found)}; pass the one of calibration")
    if isinstance(contexts, Episodes) != (made.loop == "closed"):
        wanted = "muninn.Episodes" if made.loop == "closed" else "contexts, or a number of calls"
        raise InputError(f"this is a certificate of the {made.loop} loop: give {wanted}")
    if seed == made.seed:
        raise InputError(f"seed {seed} is that of the calibration; take another for fresh calls")
    if _calibrated(made, contexts):
        raise InputError(
            "these contexts were calibrated on: the certificate holds the first and the last of "
            "them. Only new contexts can judge it"
        )


def _calibrated(made: Certificate, contexts: Context | Episodes | int) -> bool:
    """Whether both calibrated contexts that a certificate holds are rows of the given ones."""
    if made.questions is None or isinstance(contexts, Episodes | int):
        return False
    stored = restore(made.questions.context, made.questions.arrays, torch.device("cpu"))
    held, given = dict(tensors(stored)), dict(tensors(contexts))
    if batch_size(stored) != 2 or {k: v.shape[1:] for k, v in held.items()} != {
        k: v.shape[1:] for k, v in given.items()
    }:
        return False
    same = torch.ones(2, batch_size(contexts) or 0, dtype=torch.bool)
    for path, rows in given.items():
        for place in (0, 1):
            same[place] &= (rows.cpu() == held[path][place]).flatten(1).all(dim=1)
    # Contexts of few kinds are met again by chance, and then often.
    return bool((same.sum(dim=1) == 1).all()) and not bool((same[0] & same[1]).any())


def _seconds(fast: CachedPlanner, made: Certificate, units: Units) -> dict[str, float]:
    """Median seconds of single calls, both in turns, each round beginning with the other.

    Raises:
        CertificateError: calls like these do not fit the certificate.
    """
    full = runtime_for(fast.planner, made.family.member(0))
    context, noise = units.examples(TIMED + 1)
    device = fast.planner.device
    times: dict[str, list[float]] = {"full": [], "certified": []}
    for row in range(TIMED + 1):
        one, drawn = select(context, torch.tensor([row])), noise.select(slice(row, row + 1))
        turns = [("certified", fast), ("full", full)]
        for name, run in turns if row % 2 else turns[::-1]:
            began = time.perf_counter()
            run(one, noise=drawn)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(spent[1:]) for name, spent in times.items()}
