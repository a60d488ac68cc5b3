"""What stands for fewer steps in a closed loop: tuned once, on scouted calls, and only if flown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import closed_loop_cases as cases
import loop_cases
from muninn.certify.alternatives import allowed_share
from muninn.certify.paired import PairedCalls, call_seed
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.platform import position_metric
from muninn_bench.studies.closed_loop.study import Paths, Settings, prepare, scout

SCOUTS = 24


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "c.safetensors", tmp_path / "results" / "latency.jsonl", tmp_path)
    loop_cases.certificate().save(made.certificate)
    return made


def test_fewer_steps_are_tuned_once_on_scouted_calls(paths: Paths) -> None:
    settings = Settings(live=4, workers=1, scouts=SCOUTS)
    without = prepare(cases.platform, settings, paths, tune=False).fewer
    assert without.calls == 0 and not paths.fewer.exists()
    made = prepare(cases.platform, settings, paths).fewer
    assert made.evaluations == without.evaluations and made.calls == SCOUTS and paths.fewer.exists()
    certificate = loop_cases.certificate()
    (row,) = (row for row in certificate.realised if row["member"] == certificate.member)
    assert row["evaluations_mean"] <= made.evaluations < row["evaluations_mean"] + 1
    # The best of all alternatives, by what is certified: the largest distance between positions.
    contexts = scout(cases.platform, settings, paths.work)
    robot = cases.platform()
    calls = PairedCalls(robot.planner, contexts, SCOUTS, position_metric(robot), call_seed(0, 2))
    even = Alternative.untuned("fewsteps", robot.planner, made.evaluations)
    share = allowed_share(certificate)
    deviation = calls.measure_in_batches(even.table, list(range(SCOUTS))).deviation
    plain = np.quantile(deviation, 1 - share, method="lower")
    assert made.excess <= plain / robot.tolerance + 1e-9
    known = paths.fewer.stat().st_mtime_ns
    assert prepare(cases.platform, settings, paths).fewer == made
    assert paths.fewer.stat().st_mtime_ns == known
