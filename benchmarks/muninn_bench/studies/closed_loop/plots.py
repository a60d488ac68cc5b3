"""Pictures of a study, each from flights alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from muninn.certify.certificate import Certificate
from muninn.model.schedule import FloatArray
from muninn_bench.studies.closed_loop.loop import Flight
from muninn_bench.studies.closed_loop.methods import METHODS
from muninn_bench.studies.closed_loop.recording import Recorder, Signals, bound_of
from muninn_bench.studies.closed_loop.tables import Row, of_method

BINS = 8


def _subplots(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width, height), constrained_layout=True, squeeze=False
    )
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def plot_outcomes(path: Path, rows: Sequence[Row]) -> None:
    """Success, collisions and time to the goal of every method, with 95% intervals."""
    figure, axes = _subplots(1, 3, 10.5, 0.9 + 0.36 * len(rows))
    kinds = (
        ("success", "success, %", 100.0, "success_low", "success_high"),
        ("collision", "collisions, %", 100.0, "collision_low", "collision_high"),
        ("time_to_goal_s", "time to the goal, s", 1.0, "time_to_goal_low", "time_to_goal_high"),
    )
    places = -np.arange(len(rows))
    for axis, (name, label, scale, low, high) in zip(axes[0], kinds, strict=True):
        for place, row in zip(places, rows, strict=True):
            muninn = METHODS[row["method"]].program == "cached"
            colour = "#1f66b0" if muninn else "0.45"
            axis.plot([scale * row[low], scale * row[high]], [place] * 2, color=colour, alpha=0.5)
            axis.plot([scale * row[name]], [place], "o", color=colour, markersize=5)
        axis.set(xlabel=label, ylim=(places[-1] - 0.6, 0.6))
        axis.grid(axis="x", alpha=0.3)
        axis.set_yticks(places, [METHODS[row["method"]].title for row in rows])
    for axis in axes[0][1:]:
        axis.set_yticklabels([])
    _save(figure, path)


def evaluations_and_clearance(flights: Sequence[Flight], method: str) -> FloatArray:
    """Clearance when the context was taken, and evaluations, of every call: (calls, 2)."""
    calls = [call for flight in of_method(flights, method) for call in flight.calls]
    pairs = [(call.clearance, call.evaluations) for call in calls if call.evaluations]
    return np.array(pairs, dtype=np.float64).reshape(-1, 2)


def dhat_and_clearance(
    flights: Sequence[Flight], method: str, certificate: Certificate
) -> FloatArray:
    """Dhat of each executed plan, and the clearance when the next context was taken: (calls, 2)."""
    bound = bound_of(certificate)
    pairs = []
    for flight in of_method(flights, method):
        after = [call.clearance for call in flight.calls[1:]]
        after.append(flight.smallest_clearance if flight.outcome == "collision" else np.nan)
        pairs += [(bound(call), nearest) for call, nearest in zip(flight.calls, after, strict=True)]
    found = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return found[np.isfinite(found).all(axis=1)]


def rank_correlation(pairs: FloatArray) -> tuple[float, float]:
    """Spearman's rho of two columns, and its p-value; (0, 1) where one does not vary.

    Calls of one episode depend on each other, so the p-value flatters.
    """
    if len(pairs) < 3 or (np.ptp(pairs, axis=0) == 0.0).any():
        return 0.0, 1.0
    found = stats.spearmanr(pairs[:, 0], pairs[:, 1])
    return float(found.statistic), float(found.pvalue)


def plot_calls(
    path: Path, flights: Sequence[Flight], method: str, certificate: Certificate
) -> None:
    """Evaluations against clearance, and Dhat against the clearance that followed."""
    figure, axes = _subplots(1, 2, 9.6, 3.6)
    left, right = axes[0]
    _cloud(left, evaluations_and_clearance(flights, method))
    left.set(xlabel="clearance when planned, m", ylabel="evaluations of the call", ylim=(0, None))
    swapped = dhat_and_clearance(flights, method, certificate)[:, ::-1]
    _cloud(right, swapped)
    right.set(xlabel="clearance one call later, m", ylabel="Dhat of the executed plan, m")
    if certificate.tolerance is not None:
        right.axhline(certificate.tolerance, color="0.4", linestyle="--", linewidth=1)
    _save(figure, path)


def _cloud(axis: Any, pairs: FloatArray) -> None:
    """Every call, and the mean of equally full bins along x."""
    if not len(pairs):
        return
    axis.scatter(pairs[:, 0], pairs[:, 1], s=7, alpha=0.25, linewidths=0, color="#1f66b0")
    order = np.array_split(pairs[np.argsort(pairs[:, 0])], min(BINS, len(pairs)))
    means = np.array([part.mean(axis=0) for part in order])
    axis.plot(means[:, 0], means[:, 1], "o-", color="#d1782a", markersize=4, label="mean")
    axis.set_title(f"Spearman {rank_correlation(pairs)[0]:+.2f}, {len(pairs)} calls", fontsize=9)
    axis.legend(frameon=False, fontsize=8)


def plot_timeline(path: Path, recorder: Recorder, certificate: Certificate) -> None:
    """Dhat, clearance and evaluations of one flight over time."""
    figure, axes = _subplots(3, 1, 8.4, 5.2)
    Signals(axes[:, 0], recorder, certificate)
    if recorder.flight is not None:
        said = f"{recorder.flight.method}, episode {recorder.flight.seed}"
        axes[0, 0].set_title(
            f"{said}: {recorder.flight.outcome}. Orange: escalated; grey: hold; dashed: tolerance",
            fontsize=9,
        )
    _save(figure, path)
