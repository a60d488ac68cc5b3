"""Equal promises: our variants, the baselines under the same certificate, and Holm's test."""

from __future__ import annotations

import numpy as np

from muninn_bench.measure.statistics import excess_p_value
from muninn_bench.studies.ablation.analysis import (
    HOLM_LEVEL,
    NOT_MEASURED,
    Choice,
    certified,
    deviations,
    holm,
)
from muninn_bench.studies.ablation.cells import CALIBRATE
from muninn_bench.studies.ablation.folder import RISK, Raw
from muninn_bench.studies.ablation.tables import (
    BASELINES,
    CERTIFIED,
    TITLES,
    Table,
    Value,
    figures,
    member_of,
    proportion,
    title_of,
)

_KINDS = ("static", "adaptive")


def _label(method: str) -> str:
    """A family's name in a table in which every row is certified."""
    return CERTIFIED.get(method.partition("-")[0]) or title_of(method, tuned=False)


def table_vii(raw: Raw) -> Table:
    """(vii) What each part of ours buys, every variant under the same certificate."""
    names = (
        "evaluations", "reuse", "speed-up", "violations", "mean deviation", "p95 deviation",
    )  # fmt: skip
    tuned = {*raw.tolerances_of("adaptive"), *raw.tolerances_of("probegate")}
    variants = [name for name in raw.study.methods() if name.startswith("variant-")]
    rows: list[tuple[Value, ...]] = []
    for tolerance in sorted(tuned or {raw.tolerance}):
        own = [f"{kind}-{tolerance:g}" for kind in (*_KINDS, "probegate")]
        # Gates were measured on more calls than variants; the static plan stands in both groups.
        for group in (own, [own[0], *variants] if variants else []):
            families = {name: raw.study.family(name, CALIBRATE) for name in group}
            families = {name: family for name, family in families.items() if family}
            calls = min((len(deviations(family)) for family in families.values()), default=0)
            for method in families:
                choice = certified(raw, method, tolerance, RISK, calls)
                shown = figures(raw, choice, tolerance, names)
                price = _with_probe(raw, method, choice)
                rows.append((tolerance, _label(method), calls, member_of(choice), *shown, price))
    return Table(
        "vii_ours",
        "(vii) Our parts",
        f"Every family under the same certificate (risk {RISK:g}, confidence {raw.confidence:g}), "
        "made from the number of calibrate calls given: the evaluations that the named member "
        "needs on the test calls. Compare rows with the same number. Variants are static plans "
        "with another forecast (quantity, order, look-back or plain). The probe gate runs a probe "
        "at every step; equivalent evaluations add T times the probe's share of the network's "
        "time.",
        ("tolerance", "family", "calibrate calls", "member", *names, "equivalent evaluations"),
        rows,
    )


def _with_probe(raw: Raw, method: str, choice: Choice) -> float | None:
    """Evaluations of a choice, and those that could be made in the time of its probes."""
    if choice.test is None or not len(choice.test.evaluations):
        return None
    evaluations = float(choice.test.evaluations.mean())
    if not method.startswith("probegate") or choice.place < 0:
        return evaluations
    share = raw.probe_share(choice.test.key.settings.get("depth", "stem-1"))
    return None if share is None else evaluations + raw.steps * share


def table_promise(raw: Raw) -> Table:
    """Evaluations that each method needs to keep the same promise."""
    names = ("evaluations", "reuse", "median ms", "speed-up", "violations")
    rows: list[tuple[Value, ...]] = []
    notes = []
    for tolerance in raw.tolerances:
        needed: dict[str, float] = {}
        least: dict[str, float] = {}
        own = [f"{kind}-{tolerance:g}" for kind in _KINDS]
        for method in (*own, *BASELINES):
            choice = certified(raw, method, tolerance, RISK)
            if choice.why == NOT_MEASURED and choice.calibrate is None:
                continue
            if choice.test is not None and len(choice.test.evaluations):
                needed[method] = float(choice.test.evaluations.mean())
                least[method] = _least(raw, method, choice, needed[method])
            label = _label(method)
            shown = figures(raw, choice, tolerance, names)
            rows.append((tolerance, label, member_of(choice), *shown))
        notes += _half(tolerance, needed, least)
    return Table(
        "promise",
        "Evaluations for the same promise",
        f"Every method under the same certificate (risk {RISK:g}, confidence {raw.confidence:g}), "
        "chosen on the calibrate calls; full compute where no member keeps the promise. "
        "Evaluations are of the network's core: what a probe costs is in the times only.",
        ("tolerance", "program", "member", *names),
        rows,
        notes,
    )


def _least(raw: Raw, method: str, choice: Choice, needed: float) -> float:
    """Fewest evaluations with which a baseline might keep the promise: one more than was rejected.

    A baseline is measured at a few numbers of evaluations only; what lies between the last one
    accepted and the first one rejected is counted in its favour.
    """
    family = raw.study.family(method, CALIBRATE)
    if choice.place + 1 >= len(family):
        return needed
    rejected = family[choice.place + 1].key.settings.get("evaluations")
    return needed if rejected is None else min(needed, float(rejected) + 1.0)


def _half(tolerance: float, needed: dict[str, float], least: dict[str, float]) -> list[str]:
    """For each cache: does it need at most half the evaluations of the best baseline?

    Judged by what the baselines might need at least.
    """
    baselines = {method: least[method] for method in BASELINES if method in needed}
    if not baselines:
        return [f"Tolerance {tolerance:g}: no baseline was measured."]
    fewest = min(baselines.values())
    best = ", ".join(
        f"{TITLES[method]}: between {fewest:.3g} and {needed[method]:.3g}"
        for method in baselines
        if baselines[method] == fewest
    )
    lines = []
    for kind in _KINDS:
        own = needed.get(f"{kind}-{tolerance:g}")
        if own is not None:
            ratio = fewest / own
            lines.append(
                f"Tolerance {tolerance:g}: {CERTIFIED[kind]} needs {own:.3g} evaluations, the best "
                f"baseline with the same promise at least {ratio:.2f} times as many ({best}). "
                f"At most half the evaluations of the best baseline: "
                f"{'yes' if ratio >= 2.0 else 'no'}."
            )
    return lines


def table_holm(raw: Raw) -> Table:
    """Every certified cell tested against its promise."""
    tested: list[tuple[float, float, str, int, int, float]] = []
    refused: list[tuple[Value, ...]] = []
    for kind in _KINDS:
        for tolerance in raw.tolerances_of(kind):
            for risk in raw.risks:
                choice = certified(raw, f"{kind}-{tolerance:g}", tolerance, risk)
                if choice.test is None or not len(choice.test.deviation):
                    refused.append((CERTIFIED[kind], tolerance, risk, choice.why, *[None] * 6))
                    continue
                beyond, calls = choice.test.violations(tolerance), len(choice.test.deviation)
                p_value = excess_p_value(beyond, calls, risk)
                tested.append((tolerance, risk, kind, beyond, calls, p_value))
    adjusted = holm([row[-1] for row in tested])
    rows: list[tuple[Value, ...]] = []
    for (tolerance, risk, kind, beyond, calls, p_value), value in zip(
        tested, adjusted, strict=True
    ):
        share = proportion(np.arange(calls) < beyond)
        rows.append(
            (
                CERTIFIED[kind], tolerance, risk, beyond, calls, share, beyond / calls - risk,
                p_value, value, "yes" if value <= HOLM_LEVEL else "no",
            )
        )  # fmt: skip
    return Table(
        "holm",
        "Were the promises kept?",
        "Every certificate of the study, static and adaptive, on the test calls: exact one-sided "
        "binomial p-value that the violation rate is above the risk, and Holm's adjustment over "
        f"all rows; rejected at {HOLM_LEVEL:.0%} family-wise. A certificate may itself fail with "
        f"probability {1 - raw.confidence:.2g} over its calibration draw. All rows share the same "
        "test calls, which Holm's method allows.",
        (
            "family", "tolerance", "risk", "violating calls", "test calls", "violations",
            "violations - risk", "p-value", "adjusted p", "rejected",
        ),
        rows + refused,
        _holm_summary(rows),
    )  # fmt: skip


def _holm_summary(rows: list[tuple[Value, ...]]) -> list[str]:
    if not rows:
        return ["No certificate could be tested."]
    rejected = [f"{row[0]} at {row[1]:g}, risk {row[2]:g}" for row in rows if row[-1] == "yes"]
    excess = np.array([row[6] for row in rows], dtype=np.float64)
    return [
        f"Tested: {len(rows)}. Rejected: {'; '.join(rejected) or 'none'}. Largest violations - "
        f"risk: {excess.max():.4f}. Mean excess max(0, violations - risk): "
        f"{np.maximum(excess, 0.0).mean():.5f}."
    ]
