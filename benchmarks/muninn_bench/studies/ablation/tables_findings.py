"""Key findings 3 and 4 of the paper, measured: does compute follow difficulty, does Dhat cover."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from muninn.model.schedule import FloatArray
from muninn_bench.studies.ablation.analysis import call_bound, certified, spearman
from muninn_bench.studies.ablation.cells import Cell
from muninn_bench.studies.ablation.folder import RISK, UNITS, Raw
from muninn_bench.studies.ablation.tables import Table, Value, mean, proportion

Indices = npt.NDArray[np.intp]


def adaptive_programs(raw: Raw) -> list[tuple[str, float, Cell]]:
    """Programs that may spend more on some calls: name, tolerance, test cell."""
    programs = []
    for units in ("algorithm", "mended"):
        near = sorted(raw.tolerances, key=lambda value: abs(np.log(value / raw.tolerance)))
        cells = [(value, raw.paper(value, RISK, units)) for value in near]
        known = [(value, cell) for value, cell in cells if cell and len(cell.evaluations)]
        varying = [(value, cell) for value, cell in known if np.ptp(cell.evaluations) > 0]
        for value, cell in (varying or known)[:1]:
            programs.append((f"paper, {units}, tolerance {value:g}", value, cell))
    for tolerance in raw.tolerances_of("adaptive"):
        choice = certified(raw, f"adaptive-{tolerance:g}", tolerance, RISK)
        if choice.test is not None and choice.place >= 0:
            name = f"certified adaptive, tolerance {tolerance:g}"
            programs.append((name, tolerance, choice.test))
    return programs


def groups(values: FloatArray, count: int = 5) -> list[Indices]:
    """Indices of calls in up to ``count`` groups of similar size; equal values stay together."""
    edges = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)[1:-1]))
    place = np.searchsorted(edges, values, side="left")
    return [np.flatnonzero(place == group) for group in np.unique(place)]


def tables_kf3(raw: Raw) -> list[Table]:
    """Does compute follow difficulty? By clearance, by evaluations spent, and as correlations."""
    clearance = raw.clearance
    by_clearance: list[tuple[Value, ...]] = []
    by_evaluations: list[tuple[Value, ...]] = []
    correlations: list[tuple[Value, ...]] = []
    for name, _, cell in adaptive_programs(raw):
        spent = cell.evaluations
        near = None if clearance is None else clearance[: len(spent)]
        if near is not None and len(near) == len(spent):
            for calls in groups(near):
                ends = (float(near[calls].min()), float(near[calls].max()))
                by_clearance.append((name, *ends, *_group(cell, calls)))
        else:
            near = None
        for calls in groups(spent):
            ends = (float(spent[calls].min()), float(spent[calls].max()))
            by_evaluations.append((name, *ends, len(calls) / len(spent), *_group(cell, calls)))
        others = (near, cell.deviation, cell.collided.astype(np.float64))
        pairs = [_correlation(spent, other) for other in others]
        spread = (spent.mean(), spent.std(), spent.min(), spent.max())
        known = [float(value) for value in spread]
        correlations.append((name, *known, *(value for pair in pairs for value in pair)))
    shared = ("calls", "mean evaluations", "collisions", "driven", "success")
    return [
        Table(
            "kf3_correlation",
            "Does compute follow difficulty? (KF 3)",
            "Spread of the evaluations over test calls, and their rank correlation (Spearman, with "
            "two-sided p-value) with the clearance of the full plan, the deviation and collisions. "
            "Negative with clearance means more compute near walls.",
            (
                "program", "mean evaluations", "s.d.", "fewest", "most",
                "with clearance", "p (clearance)", "with deviation", "p (deviation)",
                "with collisions", "p (collisions)",
            ),
            correlations,
        ),
        Table(
            "kf3_clearance",
            "By clearance (KF 3)",
            "Test calls in fifths by the smallest distance of the full plan to a wall, metres. "
            "Success is of the driven calls among them.",
            ("program", "clearance from, m", "to, m", *shared),
            by_clearance,
        ),
        Table(
            "kf3_bins",
            "By evaluations spent (KF 3)",
            "Test calls in up to five groups by the evaluations they took.",
            ("program", "evaluations from", "to", "share of calls", *shared),
            by_evaluations,
        ),
    ]  # fmt: skip


def _correlation(spent: FloatArray, other: FloatArray | None) -> tuple[float, float]:
    if other is None or len(other) != len(spent):
        return float("nan"), float("nan")
    return spearman(spent, other)


def _group(cell: Cell, calls: Indices) -> tuple[Value, ...]:
    driven = calls[calls < len(cell.success)]
    collided = cell.collided[calls[calls < len(cell.collided)]]
    spent = mean(cell.evaluations[calls])
    return (
        len(calls), spent, proportion(collided), len(driven), proportion(cell.success[driven]),
    )  # fmt: skip


@dataclass(frozen=True)
class Reliability:
    """Predicted against realised deviation of one program on the test calls.

    Attributes:
        name: of the program.
        kind: ``paper`` or ``certified``.
        tolerance: it was run for.
        predicted, realised: (calls,).
        charged: share of the prediction charged to each step, (steps,); empty if unknown.
    """

    name: str
    kind: str
    tolerance: float
    predicted: FloatArray
    realised: FloatArray
    charged: FloatArray


def reliabilities(raw: Raw) -> Iterator[Reliability]:
    """The paper's ``Dhat`` and the certified per-call bound, at every tolerance."""
    for tolerance in raw.tolerances:
        for units in UNITS:
            cell = raw.paper(tolerance, RISK, units)
            if cell is not None and len(cell.deviation):
                yield Reliability(
                    f"paper, {units}", "paper", tolerance, cell.estimate, cell.deviation,
                    _shares(cell),
                )  # fmt: skip
        choice = certified(raw, f"adaptive-{tolerance:g}", tolerance, RISK)
        if choice.test is None or choice.calibrate is None:
            continue
        bound = call_bound(choice.calibrate, RISK)
        if bound is not None:
            test = choice.test
            yield Reliability(
                "certified bound", "certified", tolerance, bound(test.estimate), test.deviation,
                _shares(test),
            )  # fmt: skip


def _shares(cell: Cell) -> FloatArray:
    """What a cell charged to each step, as shares of the whole."""
    total = float(cell.charged.sum())
    return cell.charged / total if total > 0 else np.zeros(0)


def tables_kf4(raw: Raw) -> list[Table]:
    """Does the predicted deviation cover the realised one, and which steps is it charged to?"""
    found = list(reliabilities(raw))
    rows: list[tuple[Value, ...]] = []
    for own in found:
        covered = proportion(own.realised <= own.predicted)
        reused = own.realised > 0
        ratio = float("nan")
        if reused.any():
            ratio = float(np.median(own.predicted[reused] / own.realised[reused]))
        rows.append(
            (
                own.tolerance, own.name, covered, 1.0 - RISK, float(np.median(own.predicted)),
                float(np.median(own.realised)), ratio, spearman(own.predicted, own.realised)[0],
            )
        )  # fmt: skip
    charged = [own for own in found if len(own.charged) == raw.steps]
    return [
        Table(
            "kf4",
            "Is the predicted deviation one? (KF 4)",
            "Share of test calls whose deviation is at most what was predicted for them. The "
            "paper's prediction is the budget it spent, Dhat; the certified bound is an isotonic "
            "fit of the deviation on the accumulated estimate (first half of the calibrate calls) "
            "plus a conformal residual (second half). (The member was chosen on these calls as "
            "well; `muninn.calibrate` keeps them apart.)",
            (
                "tolerance", "prediction", "covered", "intended", "median predicted",
                "median realised", "median predicted / realised", "rank correlation",
            ),
            rows,
        ),
        Table(
            "kf4_charged",
            "Which steps the prediction is charged to (KF 4)",
            "Share of the estimates of all test calls that each step accounts for; step 0 is "
            "the noisiest.",
            ("step", *(f"{own.name}, {own.tolerance:g}" for own in charged)),
            [(step, *(float(c.charged[step]) for c in charged)) for step in range(raw.steps)]
            if charged
            else [],
            long=True,
        ),
    ]  # fmt: skip
