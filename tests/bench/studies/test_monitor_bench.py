"""The monitor's benchmark: streams against counts by hand, shifted worlds, and the files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from muninn.model.schedule import FloatArray
from muninn.monitor.sequential import RiskEvidence
from muninn_bench.studies.monitor.deployment import (
    SHIFTS,
    STATIONARY,
    Deployment,
    Options,
    OtherWorld,
    Scenario,
    draw_episode,
)
from muninn_bench.studies.monitor.streams import (
    NEVER,
    chain_streams,
    delays,
    detections,
    false_alarms,
    first_alarms,
    warning_delays,
)
from muninn_bench.studies.monitor.study import delay_summary, judge, simulate
from muninn_bench.tasks.maze2d.controller import make_reference
from muninn_bench.tasks.maze2d.data import FRAME_STRIDE
from muninn_bench.tasks.maze2d.maze import (
    WALLS,
    MazeProblem,
    cell_centre,
    cell_of,
    draw_problem,
    shortest_route,
)

SMALL = Options(calibration=80, stationary=20, streams=100, audits=60, good=20)


def violations_needed(risk: float, level: float) -> int:
    evidence, count = RiskEvidence(risk), 0
    while evidence.log_e_value < -math.log(level):
        evidence.add(count, True)
        count += 1
    return count


def deployment(shift: float) -> Deployment:
    """Seven members that violate more and more; the shifts' excess is given."""
    generator = np.random.default_rng(0)
    excess = generator.random((100, 7)) * np.linspace(0.3, 1.2, 7)
    shifts = {scenario.name: (np.full(30, shift), np.full(30, 5.0)) for scenario in SHIFTS}
    return Deployment(3, excess, generator.random(100), shifts)


def test_all_violations_alarm_after_the_count_by_hand() -> None:
    found = first_alarms(np.ones((3, 20), bool), 0.05, 0.05)
    assert found.tolist() == [violations_needed(0.05, 0.05)] * 3
    assert (first_alarms(np.zeros((3, 20), bool), 0.05, 0.05) == NEVER).all()


def test_delays_count_from_the_change() -> None:
    generator = np.random.default_rng(1)
    bad, good = np.array([2.0]), np.array([0.5])
    options = Options(audits=30, streams=5)
    at_once = delays(good, bad, 0, options, generator)
    later = delays(good, bad, 60, options, generator)
    assert (at_once == violations_needed(0.05, 0.05)).all()
    assert (later >= at_once[0]).all() and (later < 10).all()
    assert (delays(good, good, 5, options, generator) == NEVER).all()
    assert len(delays(bad, bad, 50, replace(options, audits=5), generator)) == 0  # alarmed before


def test_warnings_count_from_the_change() -> None:
    generator = np.random.default_rng(2)
    pool = generator.normal(size=100)
    options = Options(audits=40, streams=20, level=1e-4)
    found = warning_delays(pool, pool + 50.0, 10, options, generator)
    assert (found > 0).all() and (found < 40).all()


def test_each_stream_deploys_what_its_own_calibration_chose() -> None:
    excess = np.zeros((50, 3))
    excess[:, 1] = np.arange(50) % 10 == 0  # at most the tolerance: never violates
    excess[:, 2] = 2.0
    generator = np.random.default_rng(3)
    options = Options(calibration=100, audits=10, streams=20)
    violated, chosen = chain_streams(excess, options, generator)
    assert (chosen == 2).all() and not violated.any()


def test_false_alarms_and_detections_are_judged() -> None:
    alarms = false_alarms(deployment(2.0), SMALL)
    assert [row["bound"] for row in alarms] == pytest.approx([0.05, 0.1, 0.05, 0.05])
    assert 0.03 < alarms[2]["violation_rate"] < 0.07
    found = detections(deployment(2.0), SMALL)
    first = found[0]["alarm_at_once"][0]
    assert all(row["violation_rate"] == 1.0 for row in found)
    assert all((row["alarm_at_once"] == first).all() for row in found)
    criteria = judge(alarms, found, SMALL)
    assert len(criteria) == 4 + 5 and all(one.passed for one in criteria[4:])
    missed = [row | {"alarm_at_once": np.full(9, NEVER)} for row in found]
    assert not any(one.passed for one in judge(alarms, missed, SMALL)[4:])
    harmless = [row | {"violation_rate": 2 / 30} for row in missed]
    assert len(judge(alarms, harmless, SMALL)) == 4  # nothing to detect
    loud = [row | {"alarm_share": 1.0} for row in alarms]
    assert not any(one.passed for one in judge(loud, harmless, SMALL))


def test_delays_of_streams_that_were_never_found() -> None:
    assert delay_summary(np.array([5, 7, NEVER, 6])) == {"share": 0.75, "median": 6, "p90": None}
    assert delay_summary(np.array([3])) == {"share": 1.0, "median": 3.0, "p90": 3.0}


def test_files(tmp_path: Path) -> None:
    simulate(tmp_path, deployment(0.5), SMALL, "cmd")
    result = json.loads((tmp_path / "result.json").read_text())
    assert [entry["name"] for entry in result["shifts"]] == [one.name for one in SHIFTS]
    assert result["shifts"][0]["violation_rate"] == 0.0
    rates_written = [entry["violation_rate"] for entry in result["power"]]
    assert rates_written == pytest.approx([0.075, 0.1, 0.2, 0.5, 1.0])
    medians = [entry["alarm_at_once"]["median"] or math.inf for entry in result["power"]]
    assert medians == sorted(medians, reverse=True) and medians[-1] == 3
    assert len((tmp_path / "calls.csv").read_text().splitlines()) == 1 + 100 + 5 * 30
    readme = (tmp_path / "README.md").read_text()
    assert "`cmd`" in readme and all(one.changes in readme for one in SHIFTS)
    assert (tmp_path / "monitor.png").stat().st_size > 10_000


# -- shifted worlds --------------------------------------------------------------------------


def reference(seed: int) -> tuple[MazeProblem, FloatArray]:
    """A problem and frames (count, 4) that lead from its start along a shortest route."""
    generator = np.random.default_rng(seed)
    problem = draw_problem(generator)
    route = shortest_route(cell_of(problem.start[:2]), cell_of(problem.goal), generator)
    timed = make_reference(problem, route)
    frames = np.concatenate([timed.position, timed.velocity], axis=1)[::FRAME_STRIDE]
    return problem, frames


def test_a_heavier_ball_leaves_the_plan() -> None:
    problem, frames = reference(3)
    miss = []
    for mass in (1.0, 4.0):
        world = OtherWorld(Scenario("", "", mass=mass))
        state = world.drive(problem, frames[:40])
        miss.append(float(np.linalg.norm(state[:2] - frames[39, :2])))
    assert miss[0] < 0.15 and miss[1] > 2 * miss[0]


def test_a_new_wall_stops_the_robot_and_holds_no_problem() -> None:
    cell = (4, 6)
    shift = next(one for one in SHIFTS if one.wall is not None)
    assert shift.wall == cell and not WALLS[cell]
    start = np.concatenate([cell_centre((3, 6)), [0.0, 0.0]])
    problem = MazeProblem(start, cell_centre((6, 6)))
    frames = np.zeros((60, 4))
    frames[:, :2] = np.linspace(start[:2], problem.goal, 60)
    assert cell_of(OtherWorld(STATIONARY).drive(problem, frames)[:2]) == (6, 6)
    assert cell_of(OtherWorld(shift).drive(problem, frames)[:2]) == (3, 6)
    drawn = [draw_episode(shift, np.random.default_rng(seed)) for seed in range(300)]
    assert all(cell not in (cell_of(one.start[:2]), cell_of(one.goal)) for one in drawn)
