"""The picture of the coverage study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from muninn_bench.measure.verdicts import share_limit
from muninn_bench.report.style import save, subplots
from muninn_bench.studies.coverage.settings import RISKS, SETTINGS, SIZES
from muninn_bench.studies.coverage.statistics import DELTA, EXCEEDS, Row, rank_test

_COLOURS = ("#c2570c", "#2b6cb0", "#1a202c")  # of the sizes
_TITLES = ("DDIM, calls", "DDPM, calls", "DDIM, closed-loop episodes")
_LINE = {"color": "0.3", "linewidth": 1, "linestyle": "--"}


def plot_coverage(
    path: Path, cells: dict[str, list[Row]], repetitions: dict[str, list[Row]]
) -> None:
    """Three rows: marginal risk, confident exceedance, ranks; one column per setting."""
    figure, axes = subplots(3, len(SETTINGS), 12, 10.5, sharey="row")
    for column, setting in enumerate(SETTINGS):
        _marginal(axes[0][column], cells[setting.name])
        count = len(repetitions[setting.name])
        _confident(axes[1][column], cells[setting.name], share_limit(DELTA, count))
        _ranks(axes[2][column], repetitions[setting.name])
        axes[0][column].set_title(_TITLES[column], fontweight="bold")
        for axis in axes[:, column]:
            axis.grid(axis="y", alpha=0.3)
    axes[0][0].set_ylabel("marginal certificate:\nmean realised risk / alpha")
    axes[1][0].set_ylabel("confident certificate:\nshare of repetitions over alpha")
    axes[2][0].set_ylabel("rank of a new unit:\ncount / count expected if uniform")
    axes[0][0].legend(loc="upper center", fontsize=8, ncols=2)
    axes[1][0].legend(loc="upper center", fontsize=8)
    axes[2][0].legend(loc="lower left", fontsize=8)
    save(figure, path)


def _by_size(
    axis: Any, cells: list[Row], kind: str, height: float
) -> Iterator[tuple[int, str, list[float], list[Row]]]:
    """Sizes with colours, places and certified cells; "refused" at ``height`` for the others.

    Risks are groups, in which sizes stand side by side.
    """
    for place, (size, colour) in enumerate(zip(SIZES, _COLOURS, strict=True)):
        own = {RISKS.index(c["risk"]) + 0.24 * (place - 1): c for c in cells if c["size"] == size}
        certified = {at: cell for at, cell in own.items() if cell[f"{kind}_order"]}
        for at in own.keys() - certified.keys():
            axis.text(at, height, "refused", rotation=90, ha="center", fontsize=8, color=colour)
        yield size, colour, list(certified), list(certified.values())
    axis.set_xticks(range(len(RISKS)), [f"{risk:g}" for risk in RISKS])
    axis.set(xlim=(-0.5, len(RISKS) - 0.5), xlabel="promised risk alpha")


def _marginal(axis: Any, cells: list[Row]) -> None:
    axis.axhline(1.0, **_LINE, label="promised: at most 1")
    for size, colour, places, own in _by_size(axis, cells, "marginal", 0.04):
        mean, error, exact = (
            np.array([cell[name] / cell["risk"] for cell in own])
            for name in ("marginal_mean", "marginal_error", "exact_mean")
        )
        style = {"fmt": "o", "capsize": 3, "color": colour}
        axis.errorbar(places, mean, yerr=3 * error, label=f"n = {size} ± 3 s.e.", **style)
        label = "with random tie-breaking" if size == SIZES[-1] else None
        axis.scatter(places, exact, marker="_", s=90, color=colour, label=label)
    axis.set_ylim(0, 1.5)


def _confident(axis: Any, cells: list[Row], limit: float) -> None:
    axis.axhline(DELTA, **_LINE, label="promised: at most 0.05")
    axis.axhline(limit, **_LINE | {"linestyle": ":"}, label="+ 3 s.e.")
    for size, colour, places, own in _by_size(axis, cells, "confident", 0.006):
        for (name, label), marker in zip(reversed(EXCEEDS.items()), "^ox", strict=True):
            fill = colour if marker == "x" else "none"
            style = {"marker": marker, "s": 34, "color": colour, "facecolors": fill}
            shown = label if size == SIZES[-1] else None
            axis.scatter(places, [cell[name] for cell in own], label=shown, **style)
    axis.set_ylim(-0.004, 0.13)


def _ranks(axis: Any, repetitions: list[Row]) -> None:
    for place, (size, colour) in enumerate(zip(SIZES, _COLOURS, strict=True)):
        counts, expected, p_value = rank_test(repetitions, size)
        centres = (np.arange(len(counts)) + 0.5 + 0.2 * (place - 1)) / len(counts)
        axis.scatter(centres, counts / expected, s=16, color=colour)
        text, style = f"n = {size}: chi-square p = {p_value:.3f}", {"va": "top", "fontsize": 8}
        axis.text(0.02, 0.97 - 0.07 * place, text, transform=axis.transAxes, color=colour, **style)
    spread = 2.0 / float(np.sqrt(expected.min()))  # of the largest size
    label = "uniform ± 2 s.d. of a count"
    axis.axhspan(1 - spread, 1 + spread, color="0.9", zorder=0, label=label)
    axis.axhline(1.0, **_LINE)
    axis.set(ylim=(0, 2.4), xlabel="rank / (n + 1)")
