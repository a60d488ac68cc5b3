"""Equal promises: our variants, the baselines under the same certificate, and Holm's test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from muninn_bench.measure.statistics import excess_p_value, holm, proportion
from muninn_bench.report.study_page import table
from muninn_bench.report.table import Row
from muninn_bench.studies.ablation.analysis import HOLM_LEVEL, Choice, certified, deviations
from muninn_bench.studies.ablation.raw import CALIBRATE, Raw
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE
from muninn_bench.studies.ablation.tables import BASELINES, CERTIFIED, TITLES, figures, title_of


@table("vii_ours", "(vii) Our parts")
def our_parts(raw: Raw) -> Iterator[Row]:
    """Every family under the same certificate (risk {risk:g}, confidence {confidence:g}), made from
    the number of calibrate calls given: the evaluations that the named member needs on the test
    calls. Compare rows with the same number. Variants are static plans with another forecast
    (quantity, order, look-back or plain). The probe gate runs a probe at every step; equivalent
    evaluations add T times the probe's share of the network's time.
    """
    names = ("evaluations", "reuse", "speed-up", "violations", "mean deviation", "p95 deviation")
    variants = [name for name in raw.methods if name.startswith("variant-")]
    tuned = {*raw.tolerances_of("adaptive"), *raw.tolerances_of("probegate")} or {TOLERANCE}
    for tolerance in sorted(tuned):
        own = [f"{kind}-{tolerance:g}" for kind in (*CERTIFIED, "probegate")]
        # Gates were measured on more calls than variants; the static plan stands in both groups.
        for group in (own, [own[0], *variants] if variants else []):
            families = {name: raw.family(name, CALIBRATE) for name in group}
            families = {name: family for name, family in families.items() if family}
            calls = min((len(deviations(family)) for family in families.values()), default=0)
            for method in families:
                choice = certified(raw, method, tolerance, RISK, calls)
                yield {
                    "tolerance": tolerance,
                    "family": title_of(method, tuned=False),
                    "calibrate calls": calls,
                    "member": choice.member,
                    **figures(raw, choice, tolerance, names),
                    "equivalent evaluations": _with_probe(raw, method, choice),
                }


def _with_probe(raw: Raw, method: str, choice: Choice) -> float | None:
    """Evaluations of a choice, and those that could be made in the time of its probes."""
    if choice.test is None:
        return None
    evaluations = float(choice.test.evaluations.mean())
    if not method.startswith("probegate") or choice.place < 0:
        return evaluations
    share = raw.probe_share(choice.test.key.settings.get("depth", "stem-1"))
    return None if share is None else evaluations + raw.steps * share


@table("promise", "Evaluations for the same promise")
def promise(raw: Raw) -> Iterator[Row | str]:
    """Every method under the same certificate (risk {risk:g}, confidence {confidence:g}), chosen on
    the calibrate calls; full compute where no member keeps the promise. Evaluations are of the
    network's core: what a probe costs is in the times only.
    """
    names = ("evaluations", "reuse", "median ms", "speed-up", "violations")
    for tolerance in raw.tolerances:
        needed: dict[str, float] = {}
        least: dict[str, float] = {}
        for method in (*(f"{kind}-{tolerance:g}" for kind in CERTIFIED), *BASELINES):
            if not raw.family(method, CALIBRATE):
                continue
            choice = certified(raw, method, tolerance, RISK)
            if choice.test is not None:
                needed[method] = float(choice.test.evaluations.mean())
                least[method] = _least(raw, method, choice, needed[method])
            yield {
                "tolerance": tolerance,
                "program": title_of(method, tuned=False),
                "member": choice.member,
                **figures(raw, choice, tolerance, names),
            }
        yield from half_notes(tolerance, needed, least)


def _least(raw: Raw, method: str, choice: Choice, needed: float) -> float:
    """Fewest evaluations with which a baseline might keep the promise: one more than was rejected.

    A baseline is measured at a few numbers of evaluations only; what lies between the last one
    accepted and the first one rejected is counted in its favour.
    """
    family = raw.family(method, CALIBRATE)
    if choice.place + 1 >= len(family):
        return needed
    rejected = family[choice.place + 1].key.settings.get("evaluations")
    return needed if rejected is None else min(needed, float(rejected) + 1.0)


def half_notes(
    tolerance: float, needed: dict[str, float], least: dict[str, float]
) -> Iterator[str]:
    """For each cache: does it need at most half the evaluations of the best baseline?

    Judged by what the baselines might need at least.
    """
    baselines = {method: least[method] for method in BASELINES if method in needed}
    if not baselines:
        yield f"Tolerance {tolerance:g}: no baseline was measured."
        return
    fewest = min(baselines.values())
    best = ", ".join(
        f"{TITLES[method]}: between {fewest:.3g} and {needed[method]:.3g}"
        for method in baselines
        if baselines[method] == fewest
    )
    for kind, name in CERTIFIED.items():
        own = needed.get(f"{kind}-{tolerance:g}")
        if own is not None:
            ratio = fewest / own
            yield (
                f"Tolerance {tolerance:g}: {name} needs {own:.3g} evaluations, the best "
                f"baseline with the same promise at least {ratio:.2f} times as many ({best}). "
                f"At most half the evaluations of the best baseline: "
                f"{'yes' if ratio >= 2.0 else 'no'}."
            )


@table("holm", "Were the promises kept?")
def promises_kept(raw: Raw) -> Iterator[Row | str]:
    """Every certificate of the study, static and adaptive, on the test calls: exact one-sided
    binomial p-value that the violation rate is above the risk, and Holm's adjustment over all rows;
    rejected at 1% family-wise. A certificate may itself fail with probability {doubt:.2g} over its
    calibration draw. All rows share the same test calls, which Holm's method allows.
    """
    tested: list[dict[str, Any]] = []
    refused: list[Row] = []
    for kind, name in CERTIFIED.items():
        for tolerance, risk in product(raw.tolerances_of(kind), raw.risks):
            choice = certified(raw, f"{kind}-{tolerance:g}", tolerance, risk)
            about: Row = {"family": name, "tolerance": tolerance, "risk": risk}
            if choice.test is None:
                refused.append({**about, "violating calls": choice.why})
                continue
            beyond = choice.test.deviation > tolerance
            count, calls = int(beyond.sum()), len(beyond)
            about |= {"violating calls": count, "test calls": calls}
            about |= {"violations": proportion(beyond), "violations - risk": count / calls - risk}
            tested.append({**about, "p-value": excess_p_value(count, calls, risk)})
    for row, adjusted in zip(tested, holm([row["p-value"] for row in tested]), strict=True):
        row |= {"adjusted p": adjusted, "rejected": "yes" if adjusted <= HOLM_LEVEL else "no"}
    yield from tested + refused
    if not tested:
        yield "No certificate could be tested."
        return
    words = "{family} at {tolerance:g}, risk {risk:g}"
    rejected = [words.format(**row) for row in tested if row["rejected"] == "yes"]
    excess = [row["violations - risk"] for row in tested]
    yield (
        f"Tested: {len(tested)}. Rejected: {'; '.join(rejected) or 'none'}. Largest violations - "
        f"risk: {max(excess):.4f}. Mean excess max(0, violations - risk): "
        f"{np.maximum(excess, 0.0).mean():.5f}."
    )
