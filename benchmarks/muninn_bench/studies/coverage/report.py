"""Files of the coverage study: raw tables, summary, picture and a README with the verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import library_versions
from muninn_bench.measure.verdicts import Criterion, share_limit, verdicts
from muninn_bench.report.study_page import write_page
from muninn_bench.report.style import outside_legend, save, subplots
from muninn_bench.report.table import markdown, write_csv
from muninn_bench.studies.coverage import statistics
from muninn_bench.studies.coverage.mixture import STEPS
from muninn_bench.studies.coverage.settings import (
    CONFIDENCE,
    FRONTIERS,
    RISKS,
    SETTINGS,
    SIZES,
    TRIAL_RISK,
    Options,
    Setting,
)
from muninn_bench.studies.coverage.statistics import DELTA, EXCEEDS, Row

_COLOURS = ("#c2570c", "#2b6cb0", "#1a202c", "#3f8f5b")  # of the sizes, and of frontiers
_TITLES = ("DDIM, calls", "DDPM, calls", "DDIM, closed-loop episodes")
_LINE = {"color": "0.3", "linewidth": 1, "linestyle": "--"}


def write_report(
    out: Path,
    options: Options,
    repetitions: dict[str, list[Row]],
    trials: dict[Setting, list[Row]],
    command: str,
) -> list[Criterion]:
    """Write everything into ``out``; the verdicts, as in its README."""
    cells, criteria, curves = {}, [], []
    tables: dict[str, list[Row]] = {"raw": [], "trials": []}
    for setting in SETTINGS:
        name, entries = setting.name, repetitions[setting.name]
        cells[name] = statistics.summarise(name, entries, options.fresh)
        criteria += statistics.judge(name, cells[name], len(entries))
        for index, entry in enumerate(entries):
            head = {"setting": name, "repetition": index}
            tables["raw"] += [head | cell for cell in entry["cells"]]
        risks = statistics.true_risks(entries, options.fresh)
        spent = (STEPS, *map(len, setting.anchors))
        curves.append([name, *(f"{r:.4f} ({k})" for r, k in zip(risks, spent, strict=True))])
    for trial, own in trials.items():
        criteria += statistics.judge_trials(trial, own)
        tables["trials"] += [{"trial": trial.name, "index": k} | row for k, row in enumerate(own)]
    criteria.append(statistics.judge_together(trials))
    tables["summary"] = [row for own in cells.values() for row in own]
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", [{key: _plain(row[key]) for key in row} for row in rows])
    _plot(out / "coverage.png", cells, options.repetitions)
    frontiers = {trial: own for trial, own in trials.items() if trial.tuned}
    _plot_frontiers(out / "frontiers.png", frontiers)
    versions, pooled = library_versions(), options.repetitions * options.fresh
    frozen = {trial.name: len(own) for trial, own in trials.items() if not trial.tuned}
    split = FRONTIERS[0].split(0)
    places = asdict(options) | {
        "command": command,
        "torch": versions["torch"],
        "python": versions["python"],
        "verdicts": verdicts(criteria),
        "pictures": "![coverage](coverage.png)\n\n![frontiers](frontiers.png)",
        "confidence": CONFIDENCE,
        "marginal": _grid(tables["summary"], "marginal", _MARGINAL),
        "confident": _grid(tables["summary"], "confident", _CONFIDENT),
        "pooled": pooled,
        "error": math.sqrt(0.1 * 0.9 / pooled),
        "curves": markdown(["setting", *(f"k = {k}" for k in range(len(risks)))], curves),
        "counts": ", ".join(f"{count} {name}" for name, count in frozen.items()),
        "units": FRONTIERS[0].units,
        "steps": FRONTIERS[0].steps,
        "parts": ", ".join(f"{len(units)} to {part}" for part, units in split.items()),
        "risk": TRIAL_RISK,
        "trial_error": math.sqrt(TRIAL_RISK * (1.0 - TRIAL_RISK) / options.fresh),
        "frontiers": markdown(_FRONTIER, [_frontier(*one) for one in frontiers.items()]),
    }
    write_page(out, Path(__file__).with_name("page.md"), places)
    return criteria


def _frontier(setting: Setting, trials: list[Row]) -> list[str]:
    """A row of the table of frontiers."""
    risk, evaluations = (
        np.array([trial[key] for trial in trials]) for key in ("risk", "evaluations")
    )
    won = Counter(trial["method"] for trial in trials).most_common()
    return [
        setting.name,
        f"{setting.tolerance:g}",
        f"{statistics.over_risk(trials)} of {len(trials)}",
        f"{risk.mean():.4f} ({risk.max():.4f})",
        f"{evaluations.mean():.1f} ({evaluations.min():.1f} to {evaluations.max():.1f})",
        f"{np.mean([trial['stopped'] for trial in trials]):.0%}",
        ", ".join(f"{method} {count}" for method, count in won),
    ]


def _plain(value: Any) -> Any:
    """A float with six significant digits, NaN as None."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else float(f"{value:.6g}")


def _grid(cells: list[Row], kind: str, text: str) -> str:
    """Settings and sizes down, risks across."""
    rows: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        row = rows.setdefault((cell["setting"], str(cell["size"])), [])
        row.append(text.format(**cell) if cell[f"{kind}_order"] else "refused")
    headings = ["setting", "n", *(f"alpha = {risk:g}" for risk in RISKS)]
    return markdown(headings, [[*head, *row] for head, row in rows.items()])


def _plot(path: Path, cells: dict[str, list[Row]], repetitions: int) -> None:
    """Two rows: marginal risk, confident exceedance; one column per setting."""
    figure, axes = subplots(2, len(SETTINGS), 12, 7.5, sharey="row")
    for (top, bottom), title, own in zip(axes.T, _TITLES, cells.values(), strict=True):
        top.set_title(title, fontweight="bold")
        _marginal(top, own)
        _confident(bottom, own, share_limit(DELTA, repetitions))
    axes[0][0].set_ylabel("marginal certificate:\nmean realised risk / alpha")
    axes[1][0].set_ylabel("confident certificate:\nshare of repetitions over alpha")
    outside_legend(figure)
    save(figure, path)


def _plot_frontiers(path: Path, trials: dict[Setting, list[Row]]) -> None:
    """Realised risks and evaluations of all trials, as shares of trials that have at most so."""
    figure, axes = subplots(1, 2, 12, 4.6, sharey=True)
    axes[0].axvline(TRIAL_RISK, **_LINE, label="promised: at most this risk, ...")
    label = "... in at least this share of trials"
    axes[0].axhline(CONFIDENCE, **_LINE | {"linestyle": ":"}, label=label)
    names = {"risk": "realised risk", "evaluations": "mean evaluations"}
    for (setting, own), colour in zip(trials.items(), _COLOURS, strict=False):
        for axis, key, end in zip(axes, names, (1.0, setting.steps), strict=True):
            found = [0.0, *sorted(row[key] for row in own), end]
            shares = [*np.arange(len(own) + 1) / len(own), 1.0]
            axis.step(found, shares, where="post", color=colour, label=setting.name)
            axis.set_xlabel(f"{names[key]} of a trial's certified program")
    axes[0].set(ylabel="share of trials with at most so much", xlim=(0.0, 1.5 * TRIAL_RISK))
    axes[1].set_xlim(0, FRONTIERS[0].steps)
    outside_legend(figure)
    save(figure, path)


def _by_size(
    axis: Any, cells: list[Row], kind: str, height: float
) -> Iterator[tuple[int, str, list[float], list[Row]]]:
    """Sizes with colours, places and certified cells; "refused" at ``height`` for the others.

    Risks are groups, in which sizes stand side by side.
    """
    for place, (size, colour) in enumerate(zip(SIZES, _COLOURS[:3], strict=True)):
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
            [cell[name] / cell["risk"] for cell in own]
            for name in ("marginal_mean", "marginal_error", "exact_mean")
        )
        look = {"fmt": "o", "capsize": 3, "color": colour, "label": f"n = {size} ± 3 s.e."}
        axis.errorbar(places, mean, yerr=3 * np.array(error), **look)
        look = {"marker": "_", "s": 90, "color": colour, "label": "with random tie-breaking"}
        axis.scatter(places, exact, **look)
    axis.set_ylim(0, 1.5)


def _confident(axis: Any, cells: list[Row], limit: float) -> None:
    axis.axhline(DELTA, **_LINE, label="promised: at most 0.05")
    axis.axhline(limit, **_LINE | {"linestyle": ":"}, label="+ 3 s.e.")
    for _, colour, places, own in _by_size(axis, cells, "confident", 0.006):
        for (name, label), marker in zip(reversed(EXCEEDS.items()), "ox", strict=True):
            fill = colour if marker == "x" else "none"
            look = {"marker": marker, "s": 34, "color": colour, "facecolors": fill, "label": label}
            axis.scatter(places, [cell[name] for cell in own], **look)
    axis.set_ylim(-0.004, 0.13)


_MARGINAL = "{marginal_mean:.4f} ± {marginal_error:.4f} ({exact_mean:.4f}, {exact_expected:.4f})"
_CONFIDENT = "{exceeds_true:.3f} / {exceeds_measured:.3f}"
_FRONTIER = ["setting", "tolerance", "over alpha", "risk", "evaluations", "stopped", "certified"]
