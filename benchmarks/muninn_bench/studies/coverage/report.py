"""Files of the coverage study: raw tables, summary, picture and a README with the verdicts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from muninn.certify.certificate import library_versions
from muninn.files import write_whole
from muninn_bench.measure.verdicts import Criterion, verdicts
from muninn_bench.report.table import markdown, write_csv
from muninn_bench.studies.coverage.plot import plot_coverage
from muninn_bench.studies.coverage.settings import CONFIDENCE, RISKS, SETTINGS, SIZES, Options
from muninn_bench.studies.coverage.statistics import Row, judge, judge_trials, summarise, true_risks


def write_report(
    out: Path,
    options: Options,
    repetitions: dict[str, list[Row]],
    trials: dict[str, list[Row]],
    command: str,
) -> list[Criterion]:
    """Write everything into ``out``; the verdicts, as in its README."""
    cells = {name: summarise(name, own, options.fresh) for name, own in repetitions.items()}
    criteria = [one for name in cells for one in judge(name, cells[name], repetitions[name])]
    criteria += [one for name, own in trials.items() for one in judge_trials(name, own)]
    tables: dict[str, list[Row]] = {"raw": [], "ranks": [], "members": [], "trials": []}
    for name, entries in repetitions.items():
        for index, entry in enumerate(entries):
            head = {"setting": name, "repetition": index}
            ranks = zip(SIZES, entry["ranks"], strict=True)
            tables["raw"] += [head | cell for cell in entry["cells"]]
            tables["ranks"].append(head | {f"rank_of_{size + 1}": rank for size, rank in ranks})
    curves = []
    for setting in SETTINGS:
        evaluations = [len(setting.planner().sampler), *map(len, setting.anchors)]
        alone, running = true_risks(repetitions[setting.name], options.fresh)
        names = ("evaluations", "true_risk", "true_risk_member_or_before")
        for member, row in enumerate(zip(evaluations, alone, running, strict=True)):
            head = {"setting": setting.name, "member": member}
            tables["members"].append(head | dict(zip(names, row, strict=True)))
        curves.append([setting.name, *(f"{risk:.4f}" for risk in alone)])
        curves.append([f"{setting.name}, or any before", *(f"{risk:.4f}" for risk in running)])
    for name, entries in trials.items():
        tables["trials"] += [{"trial": name, "index": k} | row for k, row in enumerate(entries)]
    tables["summary"] = [row for own in cells.values() for row in own]
    for name, rows in tables.items():
        write_csv(out / f"{name}.csv", [{key: _plain(row[key]) for key in row} for row in rows])
    plot_coverage(out / "coverage.png", cells, repetitions)
    counts = ", ".join(f"{len(entries)} {name}" for name, entries in trials.items())
    page = _readme(options, tables["summary"], criteria, curves, counts, command)
    write_whole(out / "README.md", page)
    return criteria


def _plain(value: Any) -> Any:
    """A float with six significant digits, NaN as None."""
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else float(f"{value:.6g}")


def _readme(
    options: Options,
    cells: list[Row],
    criteria: list[Criterion],
    curves: list[list[str]],
    counts: str,
    command: str,
) -> str:
    versions, pooled = library_versions(), options.repetitions * options.fresh
    sections = [
        "# Coverage of the certificate",
        f"Made by `{command}` (seed {options.seed}; torch {versions['torch']}, Python "
        f"{versions['python']}). The planner is a Gaussian mixture with its exact posterior mean "
        "(`muninn_bench.studies.coverage.mixture`): 8 x 2 trajectories, 20 steps, a frozen family "
        f"of nine members. {options.repetitions} independent repetitions per setting; each "
        f"calibrates on n fresh units and measures the certified member on {options.fresh:,} "
        "further ones. Sizes and risks of one repetition share their draws; repetitions share "
        "nothing.",
        "![coverage](coverage.png)",
        verdicts(criteria),
        "## Marginal certificate",
        "Mean realised risk ± its standard error (standard deviation over repetitions by the root "
        "of their number: it holds the noise of the calibration draw and that of the fresh units). "
        "In brackets the mean with random tie-breaking and the value it must have, order / "
        "(n + 1). The certificate stays below alpha for two reasons: few members mean many ties, "
        "and a call that leaves the tolerance at one member and is back at the next counts as a "
        "violation. With random tie-breaking, and counting such calls, nothing is given away.",
        _grid(
            cells,
            "marginal",
            "{marginal_mean:.4f} ± {marginal_error:.4f} ({exact_mean:.4f}, {exact_expected:.4f})",
        ),
        f"## Confident certificate (confidence {CONFIDENCE:g})",
        "Share of repetitions whose risk exceeds alpha: by the true risk of the certified member / "
        "as measured on the repetition's own fresh units / by the true risk of the member or any "
        "before it. The promise is about the first, the proof bounds the third, and the second is "
        "what a user could measure. It is the first plus sampling noise: a member just below alpha "
        "is measured above it in almost half of its repetitions, and one just above is measured "
        "below, so that the second share can lie on either side of the first. All three are held "
        "against the same limit. True risks are pooled over all fresh units of all repetitions "
        f"({pooled:,} per setting; standard error {math.sqrt(0.1 * 0.9 / pooled):.1g} at a risk "
        "of 0.1).",
        _grid(
            cells,
            "confident",
            "{exceeds_true:.3f} / {exceeds_measured:.3f} / {exceeds_running:.3f}",
        ),
        "## True risk of the members",
        "Tolerances were set beforehand, on other draws, so that the curves cross every alpha, "
        "with members close above several of them. The last DDPM member was replaced after a first "
        "full run, which also passed, because its own risk ended at 0.17; nothing else changed.",
        markdown(["setting", *(f"k = {k}" for k in range(len(curves[0]) - 1))], curves),
        "## Through the public verbs",
        f"`muninn.calibrate` and `muninn.cache` at alpha = 0.1 with 118 units, of which 100 "
        f"certify ({counts} trials). The static ones are computed twice, call by call and in bulk, "
        "and must agree on every count. The per-call bound is checked here too.",
        "## Files",
        "`summary.csv` the cells above; `raw.csv` every repetition, size and risk (empty: "
        "refused); `ranks.csv` rank of one new unit among n + 1; `members.csv` pooled risks; "
        "`trials.csv` the public verbs.",
    ]
    return "\n\n".join(sections) + "\n"


def _grid(cells: list[Row], kind: str, text: str) -> str:
    """Settings and sizes down, risks across."""
    rows: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        row = rows.setdefault((cell["setting"], str(cell["size"])), [])
        row.append(text.format(**cell) if cell[f"{kind}_order"] else "refused")
    headings = ["setting", "n", *(f"alpha = {risk:g}" for risk in RISKS)]
    return markdown(headings, [[*head, *row] for head, row in rows.items()])
