"""The paper's six ablations, (i) to (vi), our own parts, (vii), and equal promises.

Tables are generators of rows, and of notes; ``page.md`` says how to read each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from muninn.model.schedule import FloatArray
from muninn.paper.ghost import GhostPairs
from muninn_bench.measure import statistics
from muninn_bench.measure.statistics import excess_p_value, mean, proportion, spearman
from muninn_bench.report.table import Row
from muninn_bench.studies.ablation import choices
from muninn_bench.studies.ablation.choices import CERTIFIED, Choice, certified, figures, title_of
from muninn_bench.studies.ablation.raw import CALIBRATE, Cell, Raw
from muninn_bench.studies.ablation.settings import LONGEST_AGE, RISK, TOLERANCE, UNITS

HOLM_LEVEL = 0.01
"""Said in words above the table as well."""


def promise(raw: Raw) -> Iterator[Row | str]:
    """Evaluations that every method needs under the same certificate."""
    names = ("evaluations", "reuse", "median ms", "speed-up", "violations")
    for tolerance in raw.tolerances:
        needed: dict[str, tuple[float, float]] = {}
        for method in (*(f"{kind}-{tolerance:g}" for kind in CERTIFIED), *choices.BASELINES):
            if not (family := raw.family(method, CALIBRATE)):
                continue
            choice = certified(raw, method, tolerance, RISK)
            if choice.test is not None:
                # A baseline is measured at a few numbers of evaluations only; what lies between
                # the last one accepted and the first one rejected is counted in its favour.
                spent = float(choice.test.evaluations.mean())
                rejected = [cell.settings for cell in family[choice.place + 1 :][:1]]
                least = [own.get("evaluations", np.inf) + 1.0 for own in rejected]
                needed[method] = min([spent, *least]), spent
            yield {
                "tolerance": tolerance,
                "program": title_of(method, tuned=False),
                "member": choice.member,
                **figures(raw, choice, tolerance, names),
            }
        yield from half_notes(tolerance, needed)


def half_notes(tolerance: float, needed: dict[str, tuple[float, float]]) -> Iterator[str]:
    """For each cache: does it need at most half the evaluations of the best baseline?

    Of each method, what it might need at least and what it was seen to need; baselines are judged
    by the former.
    """
    baselines = {name: needed[name] for name in choices.BASELINES if name in needed}
    if not baselines:
        yield f"Tolerance {tolerance:g}: no baseline was measured."
        return
    fewest = min(least for least, _ in baselines.values())
    best = ", ".join(
        f"{choices.TITLES[method]}: between {fewest:.3g} and {spent:.3g}"
        for method, (least, spent) in baselines.items()
        if least == fewest
    )
    for kind, name in CERTIFIED.items():
        _, own = needed.get(f"{kind}-{tolerance:g}", (None, None))
        if own is not None:
            yield (
                f"Tolerance {tolerance:g}: {name} needs {own:.3g} evaluations, the best "
                f"baseline with the same promise at least {fewest / own:.2f} times as many "
                f"({best}). At most half the evaluations of the best baseline: "
                f"{'yes' if fewest / own >= 2.0 else 'no'}."
            )


def holm(raw: Raw) -> Iterator[Row | str]:
    """Every certificate of the study on the test calls, with Holm's adjustment."""
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
    for row, adjusted in zip(
        tested, statistics.holm([row["p-value"] for row in tested]), strict=True
    ):
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


def i_tolerance(raw: Raw) -> Iterator[Row]:
    """One row per tolerance and program."""
    names = [name for name in choices.FIGURES if name != "p95 deviation"]
    for tolerance in raw.tolerances:
        programs = risk_programs(raw, tolerance)
        for name in (*CERTIFIED.values(), *(f"paper, {units}" for units in UNITS)):
            if name in programs:
                own = figures(raw, programs[name](RISK), tolerance, names)
                yield {"tolerance": tolerance, "program": name, **own}


def risk_programs(raw: Raw, tolerance: float) -> dict[str, Callable[[float], Choice]]:
    """Programs of table (ii) at a tolerance, in its order: a name, and the choice for a risk."""

    def paper(units: str, age: int | None, risk: float) -> Choice:
        cell = raw.paper(tolerance, risk, units, longest_age=age)
        return Choice(0, None, cell, "" if cell else choices.NOT_MEASURED)

    programs: dict[str, Callable[[float], Choice]]
    programs = {f"paper, {own}": partial(paper, own, None) for own in UNITS}
    for own in ("algorithm", "mended"):
        programs[f"paper, {own}, age at most {LONGEST_AGE}"] = partial(paper, own, LONGEST_AGE)
    for method, name in (("probethresh", "fixed score threshold"), ("fixedskip", "fixed skip")):
        programs[name] = partial(choices.heuristic, raw, method, tolerance)
    for kind, name in CERTIFIED.items():
        if f"{kind}-{tolerance:g}" in raw.methods or kind == "static":
            programs[name] = partial(certified, raw, f"{kind}-{tolerance:g}", tolerance)
    return programs


def ii_risk(raw: Raw, tolerance: float) -> Iterator[Row | str]:
    """Violations and evaluations where several risks were asked for, at one tolerance."""
    kinds = {name: kind for kind, name in CERTIFIED.items()}

    def row(label: str, found: Sequence[Choice]) -> Row:
        asked = list(zip(raw.risks, found, strict=True))
        shares = {r: figures(raw, own, tolerance, ["violations"])["violations"] for r, own in asked}
        spent = {r: mean(own.test.evaluations) if own.test else None for r, own in asked}
        return {
            "program": label,
            **{f"violations at {risk:g}": share for risk, share in shares.items()},
            **{f"evaluations at {risk:g}": own for risk, own in spent.items()},
        }

    for name, choose in risk_programs(raw, tolerance).items():
        found = [choose(risk) for risk in raw.risks]
        asked = zip(found, raw.risks, strict=True)
        gaps = [(own.test.deviation > tolerance).mean() - r for own, r in asked if own.test]
        errors = calibration_error(gaps) if gaps else (None, None)
        yield {**row(name, found), "MACE": errors[0], "mean excess": errors[1]}
        for offset, word in ((-1, "more careful"), (1, "more aggressive")):
            family = f"{kinds.get(name)}-{tolerance:g}"
            cells = [choices.neighbour(raw, family, choice, offset) for choice in found]
            if any(cells):
                beside = [Choice(0, None, cell) for cell in cells]
                yield row(f"... one member {word}", beside)
    yield f"The tolerance is {tolerance:g}."


def calibration_error(gaps: Sequence[float]) -> tuple[float, float]:
    """Mean of ``|share - risk|`` (the paper's MACE) and mean of ``max(0, share - risk)``.

    >>> [round(value, 6) for value in calibration_error([0.0 - 0.1, 0.3 - 0.2])]
    [0.1, 0.05]
    """
    return float(np.abs(gaps).mean()), float(np.maximum(gaps, 0.0).mean())


def _swept(raw: Raw, cell: Cell, **own: Any) -> Row:
    """A cell of a sweep: what it was asked for, what the sweep says of it, and its figures."""
    asked = {name: cell.settings[name] for name in ("tolerance", "risk", "units")}
    names = [name for name in choices.FIGURES if name not in ("median ms", "p95 deviation")]
    return {**asked, **own, **figures(raw, cell, cell.settings["tolerance"], names)}


def iii_sensitivity(raw: Raw) -> Iterator[Row]:
    """The paper's budget with its sampler coefficients, and without."""
    for cell in raw.sweep("sensitivity"):
        words = "with L_t" if cell.settings["sensitivity"] else "without (L_t = 1)"
        yield _swept(raw, cell, accounting=words)


def iv_probes(raw: Raw) -> Iterator[Row]:
    """What a probe costs, what it knows, and the paper's method with it."""
    for depth, score, pairs in raw.ghosts():
        pooled, within = probe_correlations(pairs)
        known = within[np.isfinite(within)]
        spread = np.quantile(known, [0.5, 0.05, 0.95]) if len(known) else [float("nan")] * 3
        first: Row = {
            "probe": depth,
            "score": score,
            "ghost calls": pairs.calls,
            "cost": raw.probe_share(depth),
            "pooled correlation": pooled,
        }
        places = ("median", "p5", "p95")
        first |= {f"within step, {p}": float(v) for p, v in zip(places, spread, strict=True)}
        swept = [
            _swept(raw, cell)
            for cell in raw.sweep("depth", "score")
            if (cell.settings["depth"], cell.settings["score"]) == (depth, score)
        ]
        yield from ({**first, **own} for own in swept or [{}])


def probe_correlations(pairs: GhostPairs) -> tuple[float, FloatArray]:
    """Rank correlation of score and error, pooled and within each eligible step, (eligible,).

    Pooling mixes two things: that both change along the chain, which a table of the step index
    would know, and that the score tells calls apart, which is what a per-call decision needs. A
    step where either is constant has NaN.
    """
    scores, errors = pairs.scores[:, pairs.eligible], pairs.errors[:, pairs.eligible]
    pooled, _ = spearman(scores.ravel(), errors.ravel())
    within = [spearman(score, error)[0] for score, error in zip(scores.T, errors.T, strict=True)]
    return pooled, np.array(within)


def v_forbidden(raw: Raw) -> Iterator[Row]:
    """The paper's method where reuse is forbidden at other steps."""
    for cell in raw.sweep("prefix", "suffix"):
        yield _swept(raw, cell, **{end: cell.settings[end] for end in ("prefix", "suffix")})


def vi_calibration(raw: Raw) -> Iterator[Row]:
    """The paper's method calibrated on fewer or more calls."""
    for cell in raw.sweep("calls"):
        words = "void" if cell.settings["void"] else "valid"
        own = {"calibration calls": cell.settings["calls"], "quantile": words}
        yield _swept(raw, cell, **own)


def vii_ours(raw: Raw) -> Iterator[Row]:
    """Every family of ours under the same certificate."""
    names = ("evaluations", "reuse", "speed-up", "violations", "mean deviation", "p95 deviation")
    variants = [name for name in raw.methods if name.startswith("variant-")]
    tuned = {*raw.tolerances_of("adaptive"), *raw.tolerances_of("probegate")} or {TOLERANCE}
    for tolerance in sorted(tuned):
        own = [f"{kind}-{tolerance:g}" for kind in (*CERTIFIED, "probegate")]
        # Gates were measured on more calls than variants; the static plan stands in both groups.
        for group in (own, [own[0], *variants] if variants else []):
            families = {name: raw.family(name, CALIBRATE) for name in group}
            lengths = [len(cell.deviation) for family in families.values() for cell in family]
            for method in (name for name, family in families.items() if family):
                choice = certified(raw, method, tolerance, RISK, min(lengths))
                spent = None if choice.test is None else float(choice.test.evaluations.mean())
                if spent is not None and method.startswith("probegate") and choice.calibrate:
                    share = raw.probe_share(choice.calibrate.settings.get("depth", "stem-1"))
                    spent = None if share is None else spent + raw.steps * share
                yield {
                    "tolerance": tolerance,
                    "family": title_of(method, tuned=False),
                    "calibrate calls": min(lengths),
                    "member": choice.member,
                    **figures(raw, choice, tolerance, names),
                    "equivalent evaluations": spent,
                }


TABLES = (
    promise, holm, i_tolerance, iii_sensitivity, iv_probes, v_forbidden, vi_calibration, vii_ours,
)  # fmt: skip
