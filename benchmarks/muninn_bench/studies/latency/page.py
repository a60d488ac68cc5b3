"""Write a run: CSV files, a page with its tables, the picture.

The page is made from the CSV files alone, so that planners can be measured in several runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muninn.files import write_whole
from muninn_bench.report.style import outside_legend, plain_ticks, save, subplots
from muninn_bench.report.table import fill, markdown, read_csv, write_csv
from muninn_bench.studies.latency import results
from muninn_bench.studies.latency.results import Row, shown, table

Measured = Mapping[str, Sequence[Row]]
KINDS = ("", "calls", "batch", "growth", "profile")
"""Of rows: at batch 1, every timed call of those, and the other parts of a run."""

ABOUT = (
    "All methods of a planner took turns in one run, the device idle before and after each call; "
    "methods with long calls took part in fewer rounds, also of the warm-up (see columns calls and "
    "warm-up). Of fewer than 50 calls the largest is given, no p99. What the last run left out is "
    "of earlier runs. Calls of Muninn look at network and arithmetic first, as under a "
    "certificate. Deviation: from Full eager with the same noise, RMS per time step; of networks "
    "with random weights it means nothing and is not shown. The static table, FewSteps and "
    "DPM-Solver++ are tuned on the same other calls, and evenly spread where weights are random. "
    "By hand is a plain loop of DPM-Solver++ 2M, without Muninn's runtime. The threshold of the "
    "gate called Muninn gated is so tight that nearly all calls spend their cap, early: its time "
    "is a gate's, its deviation is not, and "
    "its p99 tells nothing of calls that take more evaluations than others. The one with its own "
    "threshold has the static plan's evaluations in the mean and a cap of 1.5 times as many. "
    "Memory: most that the first calls allocate beyond the weights, capture included."
)
BATCHES = (
    "A gate's batch takes as many rounds as its slowest row, and its last rounds hold few rows but "
    "take nearly as long as one call's: the cap decides what a batch costs. It is 1.5 times the "
    "static plan's evaluations, 2 times with the loose cap."
)
_COLOURS = {
    "Full": "#1a202c",
    "Full, channels last": "#718096",
    "Muninn static": "#c2570c",
    "Muninn static, channels last": "#e53e3e",
    "Muninn gated": "#d69e2e",
    "Muninn gated, own threshold": "#b7791f",
}
_OTHERS = ("#2b6cb0", "#2f855a", "#805ad5")
_MARKERS = {"eager": "o", "compiled": "s", "graph": "^", "compiled graph": "D"}


def write_latency(
    out: Path, device: str, measured: Measured, command: str, *, picture: bool = True
) -> list[results.Target]:
    """Write everything of a device (``cpu`` or ``cuda``) into a folder, and return its targets.

    ``measured`` are rows of this run, by kind; planners of earlier runs that were not measured now
    are kept. The picture takes a second.
    """
    kept: dict[str, list[Row]] = {}
    for kind in KINDS:
        path = out / f"{device}{'_' if kind else ''}{kind}.csv"
        kept[kind] = results.merge(read_csv(path), measured.get(kind, ()))
        if kept[kind]:
            write_csv(path, kept[kind], digits=7)
    rows = kept[""]
    drawn = [row for row in rows if shown(row)["deviation_p95"] is not None]
    if picture and drawn:
        plot_latency(out / f"{device}.png", drawn)
    found = results.targets(device, rows, kept["batch"])
    machines = sorted({row["hardware"] for row in [*rows, *kept["growth"]]})
    parts = [f"# Latency on {device}", f"{'; '.join(machines)}. Last run: `{command}`.", ABOUT]
    parts += ["## Targets", table("target", [target.row() for target in found])]
    if device == "cpu" and kept["profile"]:  # on a GPU the graphs of evaluations alone say it
        parts.append("\n".join(outside_network(kept["profile"], rows)))
    if rows:
        parts.append("## Summary, milliseconds a call at batch 1, p50 / p99")
        parts += [summary_table(rows), f"![time against deviation]({device}.png)"]
    for subject in dict.fromkeys(row["subject"] for row in rows):
        parts += planner_section([row for row in rows if row["subject"] == subject])
    if kept["batch"]:
        batches = [{**row, "share": results.share(row)} for row in kept["batch"]]
        parts += ["## Batches", BATCHES, table("batch", batches)]
    for heading, kind in (("Growth of cost", "growth"), ("Where the time goes", "profile")):
        if kept[kind]:
            parts += [f"## {heading}", table(kind, kept[kind])]
    write_whole(out / f"{device}.md", "\n\n".join(parts) + "\n")
    return found


def planner_section(rows: Sequence[Row]) -> list[str]:
    """The section of one planner; ways that could not run are notes below the table."""
    text = "`{subject}`: {parameters:,} parameters, {weights}, {horizon} x {dim}, {steps}"
    weights = "trained" if rows[0]["trained"] else "random weights"
    return [
        "## {title}, {precision}".format(**rows[0]),
        text.format(**rows[0], weights=weights) + " DDIM steps, batch 1.",
        table("", [shown(row) for row in rows if row["p50_ms"] is not None]),
        *("- {method_title} ({engine}): {note}".format(**row) for row in rows if row["note"]),
    ]


def summary_table(rows: Sequence[Row]) -> str:
    """One line per way, one column per planner: what the README shows.

    Where there are too few calls for a 99th percentile, the largest stands for it.
    """
    planners = {
        row["subject"]: "{title}, {precision}".format(**row) + ", untrained" * (not row["trained"])
        for row in rows
    }
    found = {(row["method"], row["subject"]): row for row in rows if row["p50_ms"] is not None}
    names = {
        row["method"]: "{method_title}, {engine}".format(**row)
        for row in found.values()
        if not row["method"].startswith("network-")
    }

    def times(row: Row) -> str:
        tail = "{p99_ms:ms}" if shown(row)["p99_ms"] else "max {max_ms:ms}"
        return fill("{p50_ms:ms} / " + tail, row)

    lines = []
    for method, name in names.items():
        own = [found.get((method, subject)) for subject in planners]
        bold = "**" if name.startswith("Muninn") else ""
        lines.append([bold + name + bold, *(times(row) if row else "-" for row in own)])
    best = "static-graph" if "static-graph" in names else "static-eager"
    for engine in ("eager", "graph"):
        over = f"over_{engine}"
        ratios = [found.get((best, subject), {over: None}) for subject in planners]
        if any(row[over] for row in ratios):
            shares = [fill(f"{{{over}:.2f}}x", row) for row in ratios]
            lines.append([f"{names[best]}: over Full, {engine}", *shares])
    return markdown(["method, engine", *planners.values()], lines)


def outside_network(profile: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """Per planner, what its profile says of eager static calls, in a sentence.

    A cache saves evaluations only. With shares ``s`` and ``f`` of a static and a full call spent
    outside the network, and evaluations of equal cost, the speed-up is ``(1 - s) / (1 - f)`` of
    steps / evaluations. Whether evaluations did have equal cost, those timed alone say.
    """
    alone = {
        row["subject"]: "; the evaluations alone, timed, had "
        f"{row['over_eager'] * row['evaluations'] / row['steps']:.2f}"
        for row in rows
        if row["method"] == "network-eager" and row["over_eager"]
    }
    hosts = [row for row in profile if (row["view"], row["part"]) == ("host", "network")]
    inside = {(row["subject"], row["method"]): row["share"] for row in hosts}
    lines = []
    for (subject, method), static in inside.items():
        full = inside.get((subject, "full-eager"))
        if method != "static-eager" or not full:
            continue
        lines.append(
            f"- `{subject}`: {1.0 - static:.1%} of a static call and {1.0 - full:.1%} of a full "
            f"one are outside the network, which leaves {static / full:.2f} of steps / "
            f"evaluations{alone.get(subject, '')}."
        )
    return lines


def plot_latency(path: Path, rows: Sequence[Row]) -> None:
    """Write the picture: time of a call against its deviation, one panel per planner."""
    subjects = list(dict.fromkeys(row["subject"] for row in rows))
    titles = dict.fromkeys(row["method_title"] for row in rows)
    others = iter(_OTHERS * len(titles))
    colours = {title: _COLOURS.get(title) or next(others) for title in titles}
    columns = min(len(subjects), 2)
    lines = -(-len(subjects) // columns)
    width = 7.5 if columns == 1 else 11.2
    figure, axes = subplots(lines, columns, width, 4.6 * lines, squeeze=False)
    for axis in axes.flat[len(subjects) :]:
        axis.set_visible(False)
    for axis, subject in zip(axes.flat, subjects, strict=False):
        _panel(axis, [row for row in rows if row["subject"] == subject], colours)
    outside_legend(figure)
    save(figure, path)


def _panel(axis: Any, rows: Sequence[Row], colours: Mapping[str, str]) -> None:
    """Colours say the method, hollow markers the engine; a deviation of 0 stands at the bottom."""
    floor = min((row["deviation_p95"] for row in rows if row["deviation_p95"]), default=1e-6) / 10.0
    for title, colour in colours.items():
        axis.plot([], [], "o", color=colour, label=title)
    for engine in dict.fromkeys(row["engine"] for row in rows):
        axis.plot([], [], _MARKERS[engine], color="0.2", fillstyle="none", label=engine)
    for row in rows:
        height, ends = row["deviation_p95"] or floor, [row["p50_ms"], row["p99_ms"]]
        look = {"color": colours[row["method_title"]], "marker": _MARKERS[row["engine"]]}
        axis.plot(ends, [height] * 2, **look, markevery=[0], linewidth=1, alpha=0.8)
    axis.set_title("{title}, {precision}".format(**rows[0]), fontsize=10, fontweight="bold")
    axis.set(xscale="log", yscale="log", ylabel="deviation from Full eager, p95")
    axis.set_xlabel("milliseconds a call, p50 (line to p99)")
    plain_ticks(axis.xaxis)
    axis.axhline(floor, color="0.8", linewidth=0.8, zorder=0)
    axis.annotate("0", (0.01, floor), xycoords=("axes fraction", "data"), fontsize=8, va="bottom")
    axis.margins(x=0.12)
    axis.grid(alpha=0.25)
