"""The picture of the coverage benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from muninn_bench.studies.coverage.settings import CONFIDENCE, RISKS, SETTINGS, SIZES
from muninn_bench.studies.coverage.statistics import DELTA, Cell, Repetitions, rank_test

_COLOURS = {40: "#c2570c", 100: "#2b6cb0", 400: "#1a202c"}
_TITLES = {
    "ddim-call": "DDIM, calls",
    "ddpm-call": "DDPM, calls",
    "ddim-episode": "DDIM, closed-loop episodes",
}


def plot_coverage(
    path: Path, cells: dict[str, list[Cell]], repetitions: dict[str, Repetitions]
) -> None:
    """Three rows: marginal risk, confident exceedance, ranks; one column per setting."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, len(SETTINGS), figsize=(12, 10.5), sharey="row")
    for column, setting in enumerate(SETTINGS):
        _marginal(axes[0][column], cells[setting.name])
        _confident(axes[1][column], cells[setting.name], len(repetitions[setting.name]))
        _ranks(axes[2][column], repetitions[setting.name])
        axes[0][column].set_title(_TITLES[setting.name], fontweight="bold")
    axes[0][0].set_ylabel("marginal certificate:\nmean realised risk / alpha")
    axes[1][0].set_ylabel("confident certificate:\nshare of repetitions over alpha")
    axes[2][0].set_ylabel("rank of a new unit:\ncount / count expected if uniform")
    axes[0][0].legend(loc="upper center", fontsize=8, ncols=2)
    axes[1][0].legend(loc="upper center", fontsize=8)
    axes[2][0].legend(loc="lower left", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _at(risk: float, size: int) -> float:
    """Horizontal place of a cell: risks are groups, sizes stand side by side."""
    return RISKS.index(risk) + 0.24 * (SIZES.index(size) - 1)


def _risk_axis(axis: Any) -> None:
    axis.set_xticks(range(len(RISKS)), [f"{risk:g}" for risk in RISKS])
    axis.set_xlim(-0.5, len(RISKS) - 0.5)
    axis.set_xlabel("promised risk alpha")
    axis.grid(axis="y", alpha=0.3)


def _marginal(axis: Any, cells: list[Cell]) -> None:
    axis.axhline(1.0, color="0.3", linewidth=1, linestyle="--", label="promised: at most 1")
    for size in SIZES:
        own = [cell for cell in cells if cell.size == size and cell.marginal_order]
        places = [_at(cell.risk, size) for cell in own]
        axis.errorbar(
            places,
            [cell.marginal_mean / cell.risk for cell in own],
            yerr=[3 * cell.marginal_error / cell.risk for cell in own],
            fmt="o",
            capsize=3,
            color=_COLOURS[size],
            label=f"n = {size} ± 3 s.e.",
        )
        axis.scatter(
            places,
            [cell.exact_mean / cell.risk for cell in own],
            marker="_",
            s=90,
            color=_COLOURS[size],
            label="with random tie-breaking" if size == SIZES[-1] else None,
        )
        for risk in RISKS:
            if all(cell.risk != risk for cell in own):
                axis.text(
                    _at(risk, size), 0.04, "refused", rotation=90, ha="center", fontsize=8,
                    color=_COLOURS[size],
                )  # fmt: skip
    axis.set_ylim(0, 1.5)
    _risk_axis(axis)


def _confident(axis: Any, cells: list[Cell], count: int) -> None:
    limit = DELTA + 3 * np.sqrt(DELTA * CONFIDENCE / count)
    axis.axhline(DELTA, color="0.3", linewidth=1, linestyle="--", label="promised: at most 0.05")
    axis.axhline(limit, color="0.3", linewidth=1, linestyle=":", label="+ 3 s.e.")
    marks = (
        ("exceeds_running", "^", "true risk, member or any before"),
        ("exceeds_true", "o", "true risk of the member"),
        ("exceeds_measured", "x", "measured on fresh units"),
    )
    for size in SIZES:
        own = [cell for cell in cells if cell.size == size and cell.confident_order]
        for field, marker, label in marks:
            axis.scatter(
                [_at(cell.risk, size) for cell in own],
                [getattr(cell, field) for cell in own],
                marker=marker,
                s=34,
                color=_COLOURS[size],
                facecolors=_COLOURS[size] if marker == "x" else "none",
                label=label if size == SIZES[-1] else None,
            )
        for risk in RISKS:
            if all(cell.risk != risk for cell in own):
                axis.text(
                    _at(risk, size), 0.006, "refused", rotation=90, ha="center", fontsize=8,
                    color=_COLOURS[size],
                )  # fmt: skip
    axis.set_ylim(-0.004, 0.13)
    _risk_axis(axis)


def _ranks(axis: Any, repetitions: Repetitions) -> None:
    for size in SIZES:
        counts, expected, p_value = rank_test(repetitions, size)
        centres = (np.arange(len(counts)) + 0.5 + 0.2 * (SIZES.index(size) - 1)) / len(counts)
        axis.scatter(centres, counts / expected, s=16, color=_COLOURS[size])
        if size == SIZES[-1]:
            spread = 2.0 / float(np.sqrt(expected.min()))
            axis.axhspan(
                1 - spread, 1 + spread, color="0.9", zorder=0, label="uniform ± 2 s.d. of a count"
            )
        axis.text(
            0.02, 0.97 - 0.07 * SIZES.index(size), f"n = {size}: chi-square p = {p_value:.3f}",
            transform=axis.transAxes, va="top", fontsize=8, color=_COLOURS[size],
        )  # fmt: skip
    axis.axhline(1.0, color="0.3", linewidth=1, linestyle="--")
    axis.set_ylim(0, 2.4)
    axis.set_xlabel("rank / (n + 1)")
    axis.grid(axis="y", alpha=0.3)
