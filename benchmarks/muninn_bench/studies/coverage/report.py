"""Files of the coverage study: raw tables, summary, picture and a README with the verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from muninn.certify.certificate import library_versions
from muninn.files import write_whole
from muninn_bench.measure.verdicts import Criterion, share_limit, verdicts
from muninn_bench.report.style import outside_legend, save, subplots
from muninn_bench.report.table import markdown, write_csv
from muninn_bench.studies.coverage import statistics
from muninn_bench.studies.coverage.mixture import STEPS
from muninn_bench.studies.coverage.settings import CONFIDENCE, RISKS, SETTINGS, SIZES, Options
from muninn_bench.studies.coverage.statistics import DELTA, EXCEEDS, Row

_COLOURS = ("#c2570c", "#2b6cb0", "#1a202c")  # of the sizes
_TITLES = ("DDIM, calls", "DDPM, calls", "DDIM, closed-loop episodes")
_LINE = {"color": "0.3", "linewidth": 1, "linestyle": "--"}


def write_report(
    out: Path,
    options: Options,
    repetitions: dict[str, list[Row]],
    trials: dict[str, list[Row]],
    command: str,
) -> list[Criterion]:
    """Write everything into ``out``; the verdicts, as in its README."""
    cells, criteria = {}, []
    for name, own in repetitions.items():
        cells[name] = statistics.summarise(name, own, options.fresh)
        criteria += statistics.judge(name, cells[name], own)
    for name, own in trials.items():
        criteria += statistics.judge_trials(name, own)
    tables: dict[str, list[Row]] = {"raw": [], "ranks": [], "members": [], "trials": []}
    curves = []
    for setting in SETTINGS:
        name, entries = setting.name, repetitions[setting.name]
        for index, entry in enumerate(entries):
            head = {"setting": name, "repetition": index}
            ranks = zip(SIZES, entry["ranks"], strict=True)
            tables["raw"] += [head | cell for cell in entry["cells"]]
            tables["ranks"].append(head | {f"rank_of_{size + 1}": rank for size, rank in ranks})
        evaluations = [STEPS, *map(len, setting.anchors)]
        alone, running = statistics.true_risks(entries, options.fresh)
        names = ("evaluations", "true_risk", "true_risk_member_or_before")
        for member, row in enumerate(zip(evaluations, alone, running, strict=True)):
            head = {"setting": name, "member": member}
            tables["members"].append(head | dict(zip(names, row, strict=True)))
        curves.append([name, *(f"{risk:.4f}" for risk in alone)])
        curves.append([f"{name}, or any before", *(f"{risk:.4f}" for risk in running)])
    for name, entries in trials.items():
        tables["trials"] += [{"trial": name, "index": k} | row for k, row in enumerate(entries)]
    tables["summary"] = [row for own in cells.values() for row in own]
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", [{key: _plain(row[key]) for key in row} for row in rows])
    _plot(out / "coverage.png", cells, repetitions)
    versions, pooled = library_versions(), options.repetitions * options.fresh
    places = asdict(options) | {
        "command": command,
        "torch": versions["torch"],
        "python": versions["python"],
        "verdicts": verdicts(criteria),
        "confidence": CONFIDENCE,
        "marginal": _grid(tables["summary"], "marginal", _MARGINAL),
        "confident": _grid(tables["summary"], "confident", _CONFIDENT),
        "pooled": pooled,
        "error": math.sqrt(0.1 * 0.9 / pooled),
        "curves": markdown(["setting", *(f"k = {k}" for k in range(len(alone)))], curves),
        "counts": ", ".join(f"{len(entries)} {name}" for name, entries in trials.items()),
    }
    write_whole(out / "README.md", "\n\n".join(_PAGE).format(**places) + "\n")
    return criteria


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


def _plot(path: Path, cells: dict[str, list[Row]], repetitions: dict[str, list[Row]]) -> None:
    """Three rows: marginal risk, confident exceedance, ranks; one column per setting."""
    figure, axes = subplots(3, len(SETTINGS), 12, 10.5, sharey="row")
    for (top, middle, bottom), title, name in zip(axes.T, _TITLES, cells, strict=True):
        top.set_title(title, fontweight="bold")
        _marginal(top, cells[name])
        _confident(middle, cells[name], share_limit(DELTA, len(repetitions[name])))
        _ranks(bottom, repetitions[name])
    axes[0][0].set_ylabel("marginal certificate:\nmean realised risk / alpha")
    axes[1][0].set_ylabel("confident certificate:\nshare of repetitions over alpha")
    axes[2][0].set_ylabel("rank of a new unit:\ncount / count expected if uniform")
    outside_legend(figure)
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


def _ranks(axis: Any, repetitions: list[Row]) -> None:
    for place, (size, colour) in enumerate(zip(SIZES, _COLOURS, strict=True)):
        counts, expected, p_value = statistics.rank_test(repetitions, size)
        centres = (np.arange(len(counts)) + 0.5 + 0.2 * (place - 1)) / len(counts)
        axis.scatter(centres, counts / expected, s=16, color=colour)
        text, look = f"n = {size}: chi-square p = {p_value:.3f}", {"va": "top", "fontsize": 8}
        axis.text(0.02, 0.97 - 0.07 * place, text, transform=axis.transAxes, color=colour, **look)
    spread = 2.0 / float(np.sqrt(expected.min()))  # of the largest size
    label = "rank uniform ± 2 s.d. of a count"
    axis.axhspan(1 - spread, 1 + spread, color="0.9", zorder=0, label=label)
    axis.axhline(1.0, **_LINE)
    axis.set(ylim=(0, 2.4), xlabel="rank / (n + 1)")


_MARGINAL = "{marginal_mean:.4f} ± {marginal_error:.4f} ({exact_mean:.4f}, {exact_expected:.4f})"
_CONFIDENT = "{exceeds_true:.3f} / {exceeds_measured:.3f}"
_PAGE = (
    "# Coverage of the certificate",
    "Made by `{command}` (seed {seed}; torch {torch}, Python {python}). The planner is a Gaussian "
    "mixture with its exact posterior mean (`muninn_bench.studies.coverage.mixture`): 8 x 2 "
    "trajectories, 20 steps, a frozen family of nine members. {repetitions} independent "
    "repetitions per setting; each calibrates on n fresh units and measures the certified member "
    "on {fresh:,} further ones. Sizes and risks of one repetition share their draws; repetitions "
    "share nothing.",
    "![coverage](coverage.png)",
    "{verdicts}",
    "## Marginal certificate",
    "Mean realised risk ± its standard error (standard deviation over repetitions by the root of "
    "their number: it holds the noise of the calibration draw and that of the fresh units). In "
    "brackets the mean with random tie-breaking and the value it must have, order / (n + 1). The "
    "certificate stays below alpha for two reasons: few members mean many ties, and a call that "
    "leaves the tolerance at one member and is back at the next counts as a violation. With random "
    "tie-breaking, and counting such calls, nothing is given away.",
    "{marginal}",
    "## Confident certificate (confidence {confidence:g})",
    "Share of repetitions whose risk exceeds alpha: by the true risk of the certified member / as "
    "measured on the repetition's own fresh units. The promise is about the first, and the second "
    "is what a user could measure. It is the first plus sampling noise: a member just below alpha "
    "is measured above it in almost half of its repetitions, and one just above is measured below, "
    "so that the second share can lie on either side of the first. Both are held against the same "
    "limit. Each member is tested by its own count: nothing is promised of those before it. "
    "True risks are pooled over all fresh units of all repetitions ({pooled:,} per setting; "
    "standard error {error:.1g} at a risk of 0.1).",
    "{confident}",
    "## True risk of the members",
    "Tolerances were set beforehand, on other draws, so that the curves cross every alpha, with "
    "members close above several of them. The last DDPM member was replaced after a first full "
    "run, which also passed, because its own risk ended at 0.17; nothing else changed.",
    "{curves}",
    "## Through the public verbs",
    "`muninn.calibrate` and `muninn.cache` at alpha = 0.1 with 118 units, of which 100 certify "
    "({counts} trials). The static ones are computed twice, call by call and in bulk, and must "
    "agree on every count. The per-call bound is checked here too.",
    "## Files",
    "`summary.csv` the cells above; `raw.csv` every repetition, size and risk (empty: refused); "
    "`ranks.csv` rank of one new unit among n + 1; `members.csv` pooled risks; `trials.csv` the "
    "public verbs.",
)
