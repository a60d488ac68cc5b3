"""An evaluation as a page of Markdown, from the plain values that its file holds."""

from __future__ import annotations

from typing import Any


def page(run: dict[str, Any]) -> str:
    """An evaluation in Markdown."""
    spent = f"{run['evaluations']:.1f} of {run['steps']}"
    if run.get("evaluations_most", 0) > run["evaluations"]:
        spent += f" on average, at most {run['evaluations_most']}"
    if run.get("slower"):
        spent += f"; more than full compute in {run['slower']:.1%} of calls"
    rows = {"denoiser evaluations per call": spent}
    if "falls" in run:  # of an outcome
        rows |= {
            "mean score": f"{run['score']:.4g}, full compute {run['score_full']:.4g}",
            "its own mean is promised to be": f"at least {run['score_at_least']:.4g}",
            "episodes that fell, rose": f"{run['falls']}, {run['rises']} of {run['units']}",
        }
    else:
        seconds, deviation = run["seconds"], run["deviation"]
        rows |= {
            "median time of a call": f"{1e3 * seconds['certified']:.2f} ms, full compute "
            f"{1e3 * seconds['full']:.2f} ms ({seconds['full'] / seconds['certified']:.1f}x)",
            "deviation": ", ".join(f"{name} {value:.4g}" for name, value in deviation.items()),
            "within the per-call bound": f"{run['coverage']:.1%} ({1 - run['risk']:.0%} on average "
            "over calibrations; a few per cent less or more are normal)",
        }
    rows["seed"] = run["seed"]
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    judged = f"# Is the promise kept?\n\n{run['sentence']}\n\n| | |\n|---|---|\n{table}"
    return judged + (_comparison(run) if run.get("alternatives") else "")


def _comparison(run: dict[str, Any]) -> str:
    """What a user would pick instead, on the same calls."""
    certified = {
        "method": "Muninn, certified",
        "evaluations": run["evaluations"],
        "seconds": run["seconds"]["certified"],
        "within": run["deviation"]["p95"],
        "violations": run["violations"],
        "interval": run["interval"],
    }
    full, *published = run["alternatives"]
    lines = "".join(_row(row, run["units"]) for row in (full, certified, *published))
    said = (
        f"All ran on the same {run['units']} new {run['unit']}s with the same noise. Spacing and "
        f"order of the published methods were tuned on {run['compared_on']} other calls. They get "
        "no fewer evaluations than Muninn. Nothing is promised of them here; where one is as good, "
        "calibrating on more calls may certify it, since the search tries them all. The time of "
        "Muninn includes the check that the network matches its certificate."
    )
    as_good = [row for row in published if row["violations"] <= run["violations"]]
    if as_good:
        named = ", ".join(
            f"{row['method']} ({row['evaluations']} evaluations, {1e3 * row['seconds']:.2f} ms)"
            for row in as_good
        )
        said += f" With no more {run['unit']}s beyond the tolerance than Muninn: {named}."
    if not published:
        said = "No published method is a table of so many evaluations for this planner."
    return (
        f"\n## What else could run\n\n{said}\n\n| method | evaluations | median ms | 95% of calls "
        f"within | {run['unit']}s beyond the tolerance |\n|---|---|---|---|---|\n{lines}"
    )


def _row(row: dict[str, Any], units: int) -> str:
    low, high = row["interval"]
    beyond = f"{row['violations'] / units:.1%} ({low:.1%} to {high:.1%})"
    within = "never" if row["within"] is None else f"{row['within']:.3g}"
    spent = f"{row['evaluations']:.3g} | {1e3 * row['seconds']:.2f}"
    return f"| {row['method']} | {spent} | {within} | {beyond} |\n"
