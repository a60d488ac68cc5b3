"""The side-by-side comparison: its schema, its arithmetic, and its page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import muninn
from analytic import mixture_planner
from muninn.certify.cached import CachedPlanner
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.measure.alternatives import Alternative, AlternativeSearch
from muninn_bench.measure.protocol import Outcomes, compare, summarise
from muninn_bench.report.page import render, write_report

STEPS, CALLS, TOLERANCE = 24, 30, 0.05


def no_task(description: str, total: int) -> Callable[[int], None]:
    return lambda steps: None


@pytest.fixture(scope="module")
def fast() -> CachedPlanner:
    planner = mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), (8, 2))
    plans = (Everywhere(), Static((0, 1, 2, 4, 7, 10, 14, 18, 21, 23)), Static((0, 12, 23)))
    family = Family(Forecast("sample", 2), plans, "static")
    certificate = muninn.calibrate(
        planner, 80, tolerance=TOLERANCE, risk=0.2, family=family, progress=False
    )
    return muninn.cache(planner, certificate)


def tuned(count: int) -> dict[str, Alternative]:
    planner = mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), (8, 2))
    calls = PairedCalls(planner, None, 16, rms_step, seed=8)
    return AlternativeSearch(calls, TOLERANCE, 0.1).best(count, ["fewsteps", "taylor"])


@pytest.fixture(scope="module")
def outcomes(fast: CachedPlanner) -> list[Outcomes]:
    paired = PairedCalls(fast.planner, None, CALLS, rms_step, seed=7)
    return compare(
        fast,
        paired,
        timed=4,
        task=no_task,
        alternatives=tuned,
        success=lambda call, plan: call % 3 != 0,
        batch=16,
    )


def test_methods_share_calls_and_the_baselines_get_no_fewer_evaluations(
    outcomes: list[Outcomes],
) -> None:
    assert [outcome.name for outcome in outcomes] == ["full", "muninn", "fewsteps", "taylor"]
    full, own, *others = outcomes
    assert full.evaluations.tolist() == [STEPS] * CALLS and not full.deviation.any()
    for other in others:
        assert other.evaluations.tolist() == [math.ceil(own.evaluations.mean())] * CALLS
    for outcome in outcomes:
        assert len(outcome.seconds) == 4 and (outcome.seconds > 0).all()
        gap = np.linalg.norm((outcome.trajectories - full.trajectories).reshape(CALLS, -1), axis=1)
        np.testing.assert_allclose(outcome.deviation, gap / 8**0.5, atol=1e-5)


def test_the_result_has_the_promised_schema(fast: CachedPlanner, outcomes: list[Outcomes]) -> None:
    result = summarise(fast, outcomes, TOLERANCE, planner_name="toy", command="test")
    assert json.loads(json.dumps(result)) == result
    for key in ("planner", "sampler", "device", "dtype", "risk", "confidence", "versions"):
        assert key in result
    assert result["steps"] == STEPS and result["test_calls"] == CALLS
    assert result["calibration"].keys() >= {"tune", "certify"}
    by_name = {method["name"]: method for method in result["methods"]}
    ratio = by_name["full"]["latency_ms_p50"] / by_name["muninn"]["latency_ms_p50"]
    assert result["speedup"] == pytest.approx(ratio)
    own = by_name["muninn"]
    assert own["violation_rate"] == (outcomes[1].deviation > TOLERANCE).mean()
    low, high = own["violation_ci95"]
    assert low <= own["violation_rate"] <= high
    assert own["task_success"] == pytest.approx(20 / 30)
    assert result["success_p_value"] == 1.0  # the same calls succeed
    assert by_name["full"]["tuned"] is None and by_name["muninn"]["tuned"] is None
    for name in ("fewsteps", "taylor"):
        how = by_name[name]["tuned"]
        assert how["calls"] == 16 and len(how["timesteps"]) == by_name[name]["evaluations_mean"]
        assert how["timesteps"][0] == STEPS - 1 and how["timesteps"][-1] == 0


def arrays_of(outcomes: list[Outcomes]) -> dict[str, np.ndarray]:
    arrays = {"start": np.zeros((CALLS, 4)), "goal": np.ones((CALLS, 2))}
    for outcome in outcomes:
        arrays[f"{outcome.name}.positions"] = outcome.trajectories
        for name in ("deviation", "evaluations", "seconds", "bound", "estimate", "evaluated"):
            if getattr(outcome, name) is not None:
                arrays[f"{outcome.name}.{name}"] = getattr(outcome, name)
    return arrays


def test_the_page_is_self_contained_and_says_what_is_not_promised(
    fast: CachedPlanner, outcomes: list[Outcomes]
) -> None:
    pytest.importorskip("matplotlib")
    result = summarise(fast, outcomes, TOLERANCE, planner_name="toy <1>", command="test")
    page = render(result, arrays_of(outcomes))
    assert page.count("<svg") == 5
    assert "http://" not in page.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
    assert "<script" not in page and "toy &lt;1&gt;" in page
    assert "may differ arbitrarily" in page and "not the safety" in page
    assert "The promise was kept" in page
    broken = {**result, "violation_p_value": 0.001}
    assert "NOT kept" in render(broken, arrays_of(outcomes))


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result\.json was not found; make it with"):
        write_report(tmp_path)


def test_timing_needs_a_call(fast: CachedPlanner) -> None:
    paired = PairedCalls(fast.planner, None, 4, rms_step, seed=7)
    with pytest.raises(InputError, match="at least one call"):
        compare(fast, paired, timed=0, task=no_task, alternatives=lambda count: {})
