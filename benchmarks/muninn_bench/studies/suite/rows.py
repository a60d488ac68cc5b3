"""Rows of a run folder in the suite's schema, and those of several folders and machines as one.

``rows.csv`` is one line a task, variant and method; ``details.csv`` has the program, the paired
difference of the score to full compute and the test of the promise of the same lines;
``fidelity.csv`` the scores of alternatives at given evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from scipy import stats

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import Estimate, excess_p_value, mean
from muninn_bench.report.table import read_csv, write_csv
from muninn_bench.studies.suite.drives import Driven
from muninn_bench.studies.suite.entrants import RISK
from muninn_bench.studies.suite.latency import DEVICES, times
from muninn_bench.studies.suite.lines import FIDELITY, FULL_LINE, MEAN, Line
from muninn_bench.studies.suite.outcome import POINTS
from muninn_bench.studies.suite.study import Suite
from muninn_bench.task import Stream

Row = dict[str, Any]

COLUMNS = (
    "task", "variant", "sampler", "steps", "method", "tolerance", "unit", "certified",
    "evaluations_mean", "latency_ms_cpu", "latency_ms_gpu", "deviation_mean", "violation_rate",
    "score", "score_low", "score_high", "episodes", "calls",
)  # fmt: skip

KEY = ("task", "variant", "method", "tolerance", "unit")
FILES = ("rows.csv", "details.csv", "fidelity.csv")


def write_rows(suite: Suite) -> list[Row]:
    """Write a finished run folder's tables, and ``raw.safetensors`` with the arrays behind them."""
    folder, drives = suite.site.folder, suite.drives()
    driven = {
        line.key: drives.of("rows", line.entrant, Stream.TEST, suite.sizes.episodes)
        for line in suite.lines
    }
    full = driven[Line(FULL_LINE).key]
    spent = {device: times(folder, device)["median_ms"] for device in DEVICES}
    sampler = suite.site.planner.sampler
    rows, details, fidelity = [], [], []
    for line in suite.lines:
        own = driven[line.key]
        score, apart = mean(own.score), mean(own.score - full.score)
        pair: Row = {"task": suite.site.task.name, "variant": suite.site.variant}
        if line.method.startswith(FIDELITY):
            about = {"method": line.method, "evaluations": line.tolerance}
            fidelity.append({**pair, **about, **_scores(score, apart, own)})
            continue
        latencies = {name: spent[device].get(line.entrant.key) for device, name in DEVICES.items()}
        calls, found = line.calls or int(own.calls.sum()), _scores(score, apart, own)
        is_full = line.method == FULL_LINE
        rows.append(
            {
                **pair,
                "sampler": sampler.name,
                "steps": len(sampler),
                "method": line.method,
                "tolerance": line.tolerance,
                "unit": line.unit,
                "certified": line.certified,
                "evaluations_mean": line.evaluations_mean,
                **latencies,
                "deviation_mean": 0.0 if is_full else line.deviation_mean,
                "violation_rate": 0.0 if is_full else _rate(line),
                **{name: found[name] for name in ("score", "score_low", "score_high")},
                "episodes": len(own.score),
                "calls": calls,
                "entrant": line.entrant.key,
            }
        )
        details.append(
            {
                **{name: rows[-1][name] for name in KEY},
                "violations": line.violations,
                "calls": line.calls,
                "p_value": _p_value(
                    line, np.clip(full.score, *POINTS) - np.clip(own.score, *POINTS)
                ),
                "switched": line.switched,
                **{name: found[name] for name in found if name.startswith("difference")},
                "episodes": len(own.score),
                "program": line.program,
                "entrant": line.entrant.key,
            }
        )
    for name, table in zip(FILES, (rows, details, fidelity), strict=True):
        write_csv(folder / name, table, digits=6)
    arrays: dict[str, Any] = {
        f"{key}.{name}": getattr(own, name).astype(np.float32)
        for key, own in driven.items()
        for name in ("score", "calls", "evaluations")
    }
    arrays |= {f"{key}.deviation": own for key, own in suite.lines.deviations().items()}
    write_whole(folder / "raw.safetensors", safetensors.numpy.save(arrays))
    return rows


def _scores(score: Estimate, apart: Estimate, own: Driven) -> Row:
    return {
        "score": score.value,
        "score_low": score.low,
        "score_high": score.high,
        "difference": apart.value,
        "difference_low": apart.low,
        "difference_high": apart.high,
        "episodes": len(own.score),
    }


def _rate(line: Line) -> float | None:
    return None if line.violations is None or not line.calls else line.violations / line.calls


def _p_value(line: Line, fall: FloatArray) -> float | None:
    """That what was promised was not kept: a share of calls, or a mean fall of the score."""
    if not line.certified:
        return None
    if line.method == MEAN:
        assert line.tolerance is not None
        if np.ptp(fall) == 0.0:
            return float(fall[0] <= line.tolerance)
        test = stats.ttest_1samp(fall, line.tolerance, alternative="greater")
        return float(test.pvalue)
    assert line.violations is not None and line.calls is not None
    return excess_p_value(line.violations, line.calls, RISK)


def merge_tables(folders: Sequence[Path], out: Path) -> dict[str, list[Row]]:
    """The tables of several run folders as one each; their arrays go to ``raw/``.

    A line that several folders have is the first one's. A latency that it lacks is taken from
    another folder, of another machine, if the same program was timed there.

    Raises:
        InputError: a folder holds no finished run.
    """
    merged: dict[str, list[Row]] = {}
    for folder in folders:
        if not all((folder / name).is_file() for name in FILES):
            raise InputError(
                f"{folder} holds no finished run: it lacks one of {', '.join(FILES)}; finish it "
                "with the command that began it, `muninn-bench suite --task ... --variant ...`"
            )
    for name in FILES:
        keys = (*KEY[:3], "evaluations") if name == "fidelity.csv" else KEY
        merged[name] = merge_rows([read_csv(folder / name) for folder in folders], keys)
        known = COLUMNS if name == "rows.csv" else None
        shown = [
            {key: row[key] for key in (known or row) if key != "entrant"} for row in merged[name]
        ]
        write_csv(out / name, shown)
    kept = set()
    for folder in folders:
        first = read_csv(folder / FILES[0])[0]
        pair = f"{first['task']}-{first['variant']}"
        if pair not in kept:
            kept.add(pair)
            content = (folder / "raw.safetensors").read_bytes()
            write_whole(out / "raw" / f"{pair}.safetensors", content)
    return merged


def merge_rows(tables: Sequence[Sequence[Row]], keys: Sequence[str]) -> list[Row]:
    """Rows by their keys, the first of each, with latencies that it lacks from the others."""
    found: dict[tuple[Any, ...], Row] = {}
    for table in tables:
        for row in table:
            own = found.setdefault(tuple(row[key] for key in keys), dict(row))
            if own.get("entrant") == row.get("entrant"):
                for name in DEVICES.values():
                    if name in own and own[name] is None:
                        own[name] = row[name]
    return list(found.values())
