"""What programs cost and what they give for it: the frontier, equal time, and the cost model."""

from __future__ import annotations

import numpy as np

from muninn_bench.studies.ablation.cells import TEST, Cell
from muninn_bench.studies.ablation.folder import Raw
from muninn_bench.studies.ablation.tables import (
    TITLES,
    Table,
    Value,
    figures,
    proportion,
    settings_text,
    title_of,
)


def _settings(raw: Raw, cell: Cell) -> str:
    """A program's settings; of the paper's method, those that are not the usual ones."""
    usual = raw.published if cell.key.method == "paper" else {}
    own = cell.key.settings.items()
    return settings_text({k: v for k, v in own if k not in usual or usual[k] != v})


def _usual(raw: Raw) -> str:
    """The settings left out by :func:`_settings`, in words."""
    if not raw.study.family("paper", TEST):
        return ""
    return f" Unless said otherwise, the paper's method has {settings_text(raw.published)}."


def table_frontier(raw: Raw) -> Table:
    """Every program on the test calls."""
    names = ("reuse", "median ms", "speed-up")
    rows: list[tuple[Value, ...]] = []
    for method in raw.study.methods():
        for cell in raw.study.family(method, TEST):
            deviation = cell.deviation
            if not len(deviation):
                continue
            rows.append(
                (
                    title_of(method), cell.key.order, _settings(raw, cell),
                    float(cell.evaluations.mean()), *figures(raw, cell, raw.tolerance, names),
                    float(deviation.mean()), float(np.quantile(deviation, 0.95)),
                    *(float((deviation > tolerance).mean()) for tolerance in raw.tolerances),
                    proportion(cell.collided), proportion(cell.success),
                )
            )  # fmt: skip
    return Table(
        "frontier",
        "All programs (KF 1)",
        "Every member of every method, and every cell of the paper's method, on the test calls. "
        "Means and violation shares are given without intervals here." + _usual(raw),
        (
            "method", "order", "settings", "evaluations", *names, "mean deviation",
            "p95 deviation", *(f"violations at {value:g}" for value in raw.tolerances),
            "collisions", "success",
        ),
        rows,
        long=True,
    )  # fmt: skip


def table_quarter(raw: Raw) -> Table:
    """What each method does with a quarter of full compute's time."""
    names = (
        "evaluations", "median ms", "speed-up", "mean deviation", "violations", "collisions",
        "success", "success / full, %",
    )  # fmt: skip
    full = raw.full()
    limit = raw.seconds(full)
    rows: list[tuple[Value, ...]] = []
    late = []
    if limit is not None:
        if len(full.deviation):
            rows.append((TITLES["full"], None, *figures(raw, full, raw.tolerance, names)))
        for method in raw.study.methods():
            timed = [
                (cell, seconds)
                for cell in raw.study.family(method, TEST)
                if method != "full" and (seconds := raw.seconds(cell)) is not None
            ]
            within = [cell for cell, seconds in timed if seconds <= limit / 4]
            if within:
                best = min(within, key=lambda cell: float(cell.deviation.mean()))
                settings = _settings(raw, best)
                row = figures(raw, best, raw.tolerance, names)
                rows.append((title_of(method), settings, *row))
            elif timed:
                late.append(title_of(method))
    notes = [f"No timed member within a quarter: {', '.join(late)}."] if late else []
    return Table(
        "quarter",
        "A quarter of the time (KF 1)",
        "For each method the timed member with the smallest mean deviation among those whose "
        "median time is at most a quarter of full compute's. Violations are of tolerance "
        f"{raw.tolerance:g}. The member is picked on the test calls, for every method alike."
        + _usual(raw),
        ("method", "settings", *names),
        rows,
        notes,
    )


def tables_overhead(raw: Raw) -> list[Table]:
    """The paper's cost model against measured times, and what probes cost."""
    cost = raw.overhead
    rows: list[tuple[Value, ...]] = []
    errors: list[tuple[float, float]] = []
    for cell in raw.study.family("paper", TEST):
        timed, seconds = raw.timed(cell), raw.seconds(cell)
        depth = cell.key.settings.get("depth", "stem-1")
        stem, core = cost.get("stem_ms", {}).get(depth), cost.get("core_ms", {}).get(depth)
        if timed is None or seconds is None or stem is None or core is None:
            continue
        spent = float(timed.get("evaluations") or cell.evaluations.mean())
        plain = raw.steps * stem + spent * core
        other = raw.steps * (cost.get("step_ms", 0.0) + cost.get("bookkeeping_ms", 0.0))
        measured = 1e3 * seconds
        errors.append((plain / measured - 1.0, (plain + other) / measured - 1.0))
        rows.append(
            (
                _settings(raw, cell), spent, measured, plain, errors[-1][0],
                plain + other, errors[-1][1],
            )
        )  # fmt: skip
    notes = []
    if rows:
        plain_error, whole_error = np.median(np.abs(errors), axis=0)
        notes.append(
            f"Median absolute error: {plain_error:.1%}, with the sampler {whole_error:.1%}."
        )
    probes: list[tuple[Value, ...]] = []
    networks = cost.get("networks") or ({"this teacher": cost} if cost else {})
    for name, own in networks.items():
        full = own.get("full_ms")
        measured_here = full == cost.get("full_ms")  # only then are the parts its own
        for depth, stem in own.get("stem_ms", {}).items():
            core = cost.get("core_ms", {}).get(depth) if measured_here else None
            share = stem / full if full else None
            probes.append((name, depth, full, stem, core, share))
    return [
        Table(
            "overhead",
            "Cost model",
            "Time of a call as the paper models it, T probes plus n cores, and with the sampler's "
            "step and the bookkeeping of every step added, against the measured median (batch 1). "
            "Errors are model / measured - 1." + _usual(raw),
            (
                "settings", "evaluations", "measured ms", "T probe + n core, ms", "error",
                "with sampler, ms", "error with sampler",
            ),
            rows,
            notes,
        ),
        Table(
            "overhead_probe",
            "Price of a probe",
            "Median times at batch 1; the share is probe / full network, paid at every step.",
            ("network", "probe", "full ms", "probe ms", "core ms", "share"),
            probes,
        ),
    ]  # fmt: skip
