"""The suite's page: our rows beside the paper's, what must hold, and where fidelity matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from muninn_bench.measure.statistics import Estimate, holm
from muninn_bench.measure.verdicts import Criterion, verdicts
from muninn_bench.report.study_page import table_of, write_page
from muninn_bench.report.style import CYCLE, INK, outside_legend, save, subplots, ticks
from muninn_bench.report.table import Row as Cells
from muninn_bench.report.table import short
from muninn_bench.studies.suite.entrants import RISK
from muninn_bench.studies.suite.lines import ALTERNATIVES, FIDELITY, FULL_LINE, OURS
from muninn_bench.studies.suite.published import published
from muninn_bench.studies.suite.rows import KEY, Row, merge_tables

LEVEL = 0.01
"""Of Holm's test over all certificates."""

ALLOWED_MORE, ALLOWED_SHARE = (1.0, 0.05), 0.1
"""Evaluations, or share of them, by which we may exceed the best alternative, and in how many of
the rows."""

LOST = -2.0
"""Points below which the lower limit of a paired difference must not lie."""

LEAST_SPAN = 5.0
"""Points that every panel shows on either side of full compute."""

TITLES = {
    "diffuser": "Diffuser",
    "decision-diffuser": "Decision Diffuser",
    "diffusion-ql": "Diffusion-QL",
    "adaptdiffuser": "AdaptDiffuser",
}


def write_suite(folders: Sequence[Path], out: Path, command: str) -> list[str]:
    """Merge run folders into ``out``, and write its page; the verdicts."""
    merged = merge_tables(folders, out)
    rows, details, fidelity = merged.values()
    criteria = judged(rows, details)
    tables = [
        table_of(beside_the_paper, rows, name="paper"),
        table_of(every_method, rows, details, name="methods"),
        table_of(switches, details, name="switches"),
    ]
    pairs = {(row["task"], row["variant"]) for row in rows}
    words = {
        "command": command,
        "verdicts": verdicts(criteria),
        "pairs": len(pairs),
        "episodes": _span(row["episodes"] for row in rows),
        "calls": _span(row["calls"] for row in rows if row["method"] == OURS),
        "risk": RISK,
    }
    words["where"] = " ".join(where_it_matters(fidelity))
    pictures = {"fidelity": lambda folder: draw_fidelity(rows, fidelity, folder / "fidelity.png")}
    write_page(out, Path(__file__).with_name("page.md"), words, tables, pictures)
    return [str(criterion) for criterion in criteria]


def _span(values: Any) -> str:
    """Smallest and largest as text."""
    found = sorted(set(values))
    return f"{found[0]:g}" if len(found) == 1 else f"{found[0]:g} to {found[-1]:g}"


# -- tables ------------------------------------------------------------------------------------


def of_pairs(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, str], list[Row]]]:
    """Rows by task and variant, in their order."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row["task"], row["variant"]), []).append(row)
    yield from found.items()


def beside_the_paper(rows: Sequence[Row]) -> Iterator[Cells | str]:
    """Scores, evaluations, latency, deviation and violations of a pair: ours, then the paper's."""
    for (task, variant), own in of_pairs(rows):
        full = next(row for row in own if row["method"] == FULL_LINE)
        ours = [row for row in own if row["method"] == OURS]
        loose, tight, action = (_first(ours, at) for at in range(3))
        said = published(task, variant)
        yield {
            "task": task,
            "planner": variant,
            "steps": full["steps"],
            "Full": _score(full),
            "Muninn at .15": _score(loose),
            "evaluations .15": loose.get("evaluations_mean"),
            "evaluations .05": tight.get("evaluations_mean"),
            "evaluations, action": action.get("evaluations_mean"),
            "mean deviation at .15": loose.get("deviation_mean"),
            "violations at .15": loose.get("violation_rate"),
            "GPU ms Full": full["latency_ms_gpu"],
            "GPU ms .15": loose.get("latency_ms_gpu"),
            "paper: Full": None if said is None else said.score_full,
            "paper: Muninn": None if said is None else said.score,
            "paper: evaluations": None if said is None else said.evaluations,
            "paper: mean deviation": None if said is None else said.deviation,
            "paper: violations": None if said is None else said.violations,
            "paper: ms Full": None if said is None else said.latency_full,
            "paper: ms Muninn": None if said is None else said.latency,
        }


def _first(rows: Sequence[Row], place: int) -> Row:
    return rows[place] if place < len(rows) else {}


def _score(row: Row) -> Estimate | None:
    return Estimate(row["score"], row["score_low"], row["score_high"]) if row else None


def every_method(rows: Sequence[Row], details: Sequence[Row]) -> Iterator[Cells]:
    """Every line, with the paired difference of its score to full compute."""
    known = {_key(row): row for row in details}
    for row in rows:
        apart = known[_key(row)]
        ends = (apart["difference"], apart["difference_low"], apart["difference_high"])
        promised = row["unit"] and f"{row['tolerance']:g} {row['unit'].partition(',')[0]}"
        yield {
            "task": row["task"],
            "planner": row["variant"],
            "method": row["method"],
            "promise": promised,
            "certified": "yes" if row["certified"] else "",
            "evaluations": row["evaluations_mean"],
            "violations": row["violation_rate"],
            "score": _score(row),
            "score less Full's": Estimate(*ends) if row["method"] != FULL_LINE else None,
            "CPU ms": row["latency_ms_cpu"],
            "GPU ms": row["latency_ms_gpu"],
        }


def switches(details: Sequence[Row]) -> Iterator[Cells]:
    """How often another candidate was executed than with full compute."""
    for row in (row for row in details if row["switched"] is not None):
        yield {
            "task": row["task"],
            "planner": row["variant"],
            "method": row["method"],
            "tolerance": row["tolerance"],
            "unit": str(row["unit"]).partition(",")[0],
            "another candidate": row["switched"],
        }


# -- what must hold ----------------------------------------------------------------------------


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def judged(rows: Sequence[Row], details: Sequence[Row]) -> list[Criterion]:
    """Kept promises, evaluations near the best alternative's, and no score lost."""
    name = "every row"
    tested = [row for row in details if row["p_value"] is not None]
    found = []
    if tested:
        adjusted = holm([row["p_value"] for row in tested])
        least = min(range(len(tested)), key=adjusted.__getitem__)
        text = f"smallest adjusted p {adjusted[least]:.3g} of {len(tested)} certificates"
        text += f" ({_said(tested[least])})"
        kept = adjusted[least] >= LEVEL
        found.append(Criterion(name, f"no promise is broken, Holm {LEVEL:g}", kept, text))
    found += list(_against_alternatives(rows))
    for row in details:
        if row["method"].startswith(OURS) and row["difference_low"] < LOST:
            ends = Estimate(row["difference"], row["difference_low"], row["difference_high"])
            told = f"{short(ends)} points"
            found.append(Criterion(_said(row), "score against Full's", False, told))
    if not any(criterion.name == "score against Full's" for criterion in found):
        lows = [row["difference_low"] for row in details if row["method"].startswith(OURS)]
        told = f"smallest lower limit {min(lows, default=0.0):.2f} points, {LOST:g} allowed"
        found.append(Criterion(name, "score against Full's", True, told))
    return found


def _said(row: Row) -> str:
    tolerance = "" if row["tolerance"] is None else f" {row['tolerance']:g}"
    return f"{row['task']} {row['variant']} {row['method']}{tolerance}"


def _against_alternatives(rows: Sequence[Row]) -> Iterator[Criterion]:
    """In how many promises ours takes more evaluations than the best alternative, and how many."""
    more, cells = [], 0
    by_promise = sorted(
        (row for row in rows if row["method"] in (OURS, *ALTERNATIVES)),
        key=lambda row: (row["task"], row["variant"], row["unit"], row["tolerance"]),
    )
    for _, same in groupby(
        by_promise, lambda row: (row["task"], row["variant"], row["unit"], row["tolerance"])
    ):
        spent = {row["method"]: row for row in same}
        ours = spent.pop(OURS, None)
        if ours is None or not spent:
            continue
        cells += 1
        best = min(row["evaluations_mean"] for row in spent.values())
        if (over := ours["evaluations_mean"] - best) > 1e-9:
            more.append((over, over / best, _said(ours)))
    if not cells:
        return
    share = len(more) / cells
    text = f"more in {len(more)} of {cells} promises ({share:.0%}, {ALLOWED_SHARE:.0%} allowed)"
    name = "evaluations against alternatives"
    yield Criterion("all promises", name, share <= ALLOWED_SHARE, text)
    for over, relative, said in more:
        if over > ALLOWED_MORE[0] and relative > ALLOWED_MORE[1]:
            yield Criterion(said, name, False, f"{over:.2f} more")


# -- where fidelity matters --------------------------------------------------------------------


def draw_fidelity(rows: Sequence[Row], fidelity: Sequence[Row], path: Path) -> bool:
    """Score less that of full compute against evaluations, a panel a planner, a colour a task."""
    shown = [name for name in TITLES if any(_planner(row) == name for row in fidelity)]
    if not shown:
        return False
    tasks = list(dict.fromkeys(row["task"] for row in fidelity))
    plain, tuned = (f"{FIDELITY}-{name}" for name in ALTERNATIVES)
    counts = sorted({row["evaluations"] for row in fidelity})
    columns = min(2, len(shown))
    height = 3.3 * -(-len(shown) // columns) + 0.6
    figure, axes = subplots(
        -(-len(shown) // columns), columns, 4.8 * columns, height, squeeze=False
    )
    for axis in axes.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, name in zip(axes.flat, shown, strict=False):
        for row_of, look in ((plain, "-o"), (tuned, "--s")):
            for (task, variant), own in of_pairs([r for r in fidelity if r["method"] == row_of]):
                if _planner(own[0]) != name:
                    continue
                own = sorted(own, key=lambda row: row["evaluations"])
                at = [row["evaluations"] for row in own]
                middle = [row["difference"] for row in own]
                below = [row["difference"] - row["difference_low"] for row in own]
                above = [row["difference_high"] - row["difference"] for row in own]
                shift = 1.0 if row_of == plain else 1.04  # so that intervals do not hide each other
                axis.errorbar(
                    [shift * count for count in at], middle, [below, above], fmt=look,
                    color=CYCLE[tasks.index(task) % len(CYCLE)], markersize=4, capsize=2,
                    linewidth=1.2, elinewidth=0.8, markerfacecolor="none" if look != "-o" else None,
                    label=_label(variant, task, row_of == plain),
                )  # fmt: skip
        axis.axhline(0.0, color=INK, linewidth=0.8, linestyle=":", label="full compute")
        low, high = axis.get_ylim()
        axis.set_ylim(min(low, -LEAST_SPAN), max(high, LEAST_SPAN))
        axis.set_xscale("log")
        ticks(axis.xaxis, counts)
        axis.set_xlim(1.2 * counts[-1], counts[0] / 1.2)
        axis.set_title(TITLES[name], fontsize=10)
        axis.set(xlabel="evaluations of a call", ylabel="score less Full's, points")
        axis.grid(alpha=0.25, linewidth=0.6)
    outside_legend(figure)
    save(figure, path)
    return True


def where_it_matters(fidelity: Sequence[Row]) -> Iterator[str]:
    """Sentences: which planners lose points with fewer steps, and which do not."""
    for method, words in zip(
        ALTERNATIVES, ("Plain fewer steps", "Tuned DPM-Solver++"), strict=True
    ):
        lost: dict[str, list[str]] = {}
        own = [row for row in fidelity if row["method"] == f"{FIDELITY}-{method}"]
        for row in own:
            if row["difference_high"] < 0.0:
                at = f"{row['evaluations']:g} ({row['difference']:.1f})"
                lost.setdefault(f"{row['task']} {row['variant']}", []).append(at)
        count = sum(map(len, lost.values()))
        said = "; ".join(f"{pair} with {', '.join(each)}" for pair, each in lost.items())
        yield (
            f"{words} score below full compute, by the 95% interval of the paired difference, in "
            f"{count} of {len(own)} cases{': ' if said else ''}{said}."
        )


def _planner(row: Row) -> str:
    name: str = row["variant"].removesuffix("-complete")
    return name


def _label(variant: str, task: str, plain: bool) -> str:
    where = f"{task}, complete" if variant.endswith("-complete") else task
    return f"{where}, {'fewer steps' if plain else 'DPM-Solver++, tuned'}"
