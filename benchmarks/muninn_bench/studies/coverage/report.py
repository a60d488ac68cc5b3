"""Files of the coverage benchmark: raw tables, summary, picture and a README with the verdicts."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muninn.certify.certificate import library_versions
from muninn_bench.studies.coverage.plot import plot_coverage
from muninn_bench.studies.coverage.settings import CONFIDENCE, RISKS, SETTINGS, SIZES
from muninn_bench.studies.coverage.statistics import (
    Cell,
    Criterion,
    Repetitions,
    judge,
    judge_trials,
    summarise,
    true_risks,
)

_RAW = (
    "setting", "repetition", "size", "alpha", "marginal_member", "marginal_risk",
    "randomised_risk", "confident_member", "confident_risk",
)  # fmt: skip


def write_report(
    out: Path,
    options: dict[str, Any],
    repetitions: dict[str, Repetitions],
    trials: dict[str, list[dict[str, Any]]],
    command: str,
) -> list[Criterion]:
    """Write everything into ``out``; the verdicts, as in its README."""
    out.mkdir(parents=True, exist_ok=True)
    fresh = options["fresh"]
    cells = {name: summarise(name, entries, fresh) for name, entries in repetitions.items()}
    criteria = [
        verdict for name in cells for verdict in judge(name, cells[name], repetitions[name])
    ]
    for name, entries in trials.items():
        criteria += judge_trials(name, entries)
    _table(out / "raw.csv", _RAW, _raw_rows(repetitions))
    _table(
        out / "ranks.csv",
        ("setting", "repetition", *(f"rank_of_{size + 1}" for size in SIZES)),
        (
            (name, index, *entry["ranks"])
            for name, entries in repetitions.items()
            for index, entry in enumerate(entries)
        ),
    )
    _table(
        out / "members.csv",
        ("setting", "member", "evaluations", "true_risk", "true_risk_member_or_before"),
        _member_rows(repetitions, fresh),
    )
    _table(
        out / "trials.csv",
        ("trial", "index", "member", "agreed", "risk", "bound_covered", "evaluations"),
        (
            (name, index, *(_plain(value) for value in entry.values()))
            for name, entries in trials.items()
            for index, entry in enumerate(entries)
        ),
    )
    summary = [asdict(cell) for own in cells.values() for cell in own]
    _table(
        out / "summary.csv",
        tuple(summary[0]),
        (tuple(_plain(value) for value in row.values()) for row in summary),
    )
    plot_coverage(out / "coverage.png", cells, repetitions)
    (out / "README.md").write_text(_readme(options, cells, criteria, repetitions, trials, command))
    return criteria


def _plain(value: Any) -> Any:
    """Six significant digits, and nothing where there is nothing."""
    if isinstance(value, float):
        return "" if math.isnan(value) else float(f"{value:.6g}")
    return value


def _table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def _raw_rows(repetitions: dict[str, Repetitions]) -> Iterable[Sequence[Any]]:
    for name, entries in repetitions.items():
        for index, entry in enumerate(entries):
            for row in entry["cells"]:
                yield name, index, *(_plain(value) for value in row)


def _member_rows(repetitions: dict[str, Repetitions], fresh: int) -> Iterable[Sequence[Any]]:
    for setting in SETTINGS:
        risks, running = true_risks(repetitions[setting.name], fresh)
        full = len(setting.planner().sampler)
        spent = [full, *(len(anchors) for anchors in setting.anchors)]
        for member, evaluations in enumerate(spent):
            yield (
                setting.name, member, evaluations, _plain(float(risks[member])),
                _plain(float(running[member])),
            )  # fmt: skip


# -- the README ------------------------------------------------------------------------------


def _readme(
    options: dict[str, Any],
    cells: dict[str, list[Cell]],
    criteria: list[Criterion],
    repetitions: dict[str, Repetitions],
    trials: dict[str, list[dict[str, Any]]],
    command: str,
) -> str:
    failed = sum(not criterion.passed for criterion in criteria)
    counts = ", ".join(f"{len(entries)} {name}" for name, entries in trials.items())
    versions = library_versions()
    sections = [
        "# Coverage of the certificate",
        f"Made by `{command}` (seed {options['seed']}; torch {versions['torch']}, Python "
        f"{versions['python']}). The planner is a Gaussian mixture with its exact posterior mean "
        "(`muninn_bench.studies.coverage.mixture`): 8 x 2 trajectories, 20 steps, a frozen family of nine members. "
        f"{options['repetitions']} independent repetitions per setting; each calibrates on n fresh "
        f"units and measures the certified member on {options['fresh']:,} further ones. Sizes and "
        "risks of one repetition share their draws; repetitions share nothing.",
        "![coverage](coverage.png)",
        f"## Verdicts: {len(criteria) - failed} pass, {failed} fail",
        "```\n" + "\n".join(str(criterion) for criterion in criteria) + "\n```",
        "## Marginal certificate",
        "Mean realised risk ± its standard error (standard deviation over repetitions by the root "
        "of their number: it holds the noise of the calibration draw and that of the fresh units). "
        "In brackets the mean with random tie-breaking and the value it must have, order / "
        "(n + 1). The certificate stays below alpha for two reasons: few members mean many ties, "
        "and a call that leaves the tolerance at one member and is back at the next counts as a "
        "violation. "
        "With random tie-breaking, and counting such calls, nothing is given away.",
        _grid(cells, _marginal_text),
        f"## Confident certificate (confidence {CONFIDENCE:g})",
        "Share of repetitions whose risk exceeds alpha: by the true risk of the certified member / "
        "as measured on the repetition's own fresh units / by the true risk of the member or any "
        "before it. The promise is about the first, the proof bounds the third, and the second is "
        "what a user could measure. It is the first plus sampling noise: a member just below alpha "
        "is measured above it in almost half of its repetitions, and one just above is measured "
        "below, so that the second share can lie on either side of the first. All three are held "
        "against the same limit. True risks are pooled over all fresh units of all repetitions "
        f"({options['repetitions'] * options['fresh']:,} per setting; standard error "
        f"{_pooled_error(options):.1g} at a risk of 0.1).",
        _grid(cells, _confident_text),
        "## True risk of the members",
        "Tolerances were set beforehand, on other draws, so that the curves cross every alpha, "
        "with members close above several of them. The last DDPM member was replaced after a first "
        "full run, which also passed, because its own risk ended at 0.17; nothing else changed.",
        _members_text(repetitions, options["fresh"]),
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


def _pooled_error(options: dict[str, Any]) -> float:
    return math.sqrt(0.1 * 0.9 / (options["repetitions"] * options["fresh"]))


def _grid(cells: dict[str, list[Cell]], text: Any) -> str:
    lines = [
        "| setting | n | " + " | ".join(f"alpha = {risk:g}" for risk in RISKS) + " |",
        "|---|---|" + "---|" * len(RISKS),
    ]
    for name, own in cells.items():
        for size in SIZES:
            row = [text(cell) for cell in own if cell.size == size]
            lines.append(f"| {name} | {size} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _marginal_text(cell: Cell) -> str:
    if cell.marginal_order == 0:
        return "refused"
    return (
        f"{cell.marginal_mean:.4f} ± {cell.marginal_error:.4f} "
        f"({cell.exact_mean:.4f}, {cell.exact_expected:.4f})"
    )


def _confident_text(cell: Cell) -> str:
    if cell.confident_order == 0:
        return "refused"
    return f"{cell.exceeds_true:.3f} / {cell.exceeds_measured:.3f} / {cell.exceeds_running:.3f}"


def _members_text(repetitions: dict[str, Repetitions], fresh: int) -> str:
    members = len(SETTINGS[0].anchors) + 1
    lines = [
        "| setting | " + " | ".join(f"k = {member}" for member in range(members)) + " |",
        "|---|" + "---|" * members,
    ]
    for name, entries in repetitions.items():
        risks, running = true_risks(entries, fresh)
        lines.append(f"| {name} | " + " | ".join(f"{risk:.4f}" for risk in risks) + " |")
        lines.append(
            f"| {name}, or any before | " + " | ".join(f"{risk:.4f}" for risk in running) + " |"
        )
    return "\n".join(lines)
