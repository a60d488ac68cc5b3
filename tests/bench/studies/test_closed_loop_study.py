"""A study of the point robot: resumed where it stopped, counted right, drawn and replayed."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import closed_loop_cases as cases
import loop_cases
from muninn.certify.risk import order_statistic
from muninn.errors import CalibrationError
from muninn.loop.escalation import Needs
from muninn_bench.platform import position_metric
from muninn_bench.studies.closed_loop import pictures, tables
from muninn_bench.studies.closed_loop import study as study_module
from muninn_bench.studies.closed_loop.batched import Ticket, fly_one
from muninn_bench.studies.closed_loop.loop import Flight, FlownCall, Recorder
from muninn_bench.studies.closed_loop.methods import METHODS, ClosedLoopPrograms, measure_trace
from muninn_bench.studies.closed_loop.study import Paths, Settings, run_study, scout
from muninn_bench.studies.closed_loop.tables import bound_of
from muninn_bench.studies.closed_loop.traces import Timed, measured
from muninn_bench.studies.closed_loop.write import write_results

SETTINGS = Settings(
    episodes=5,
    live=4,
    workers=1,
    methods=("full", "muninn-only", "combined"),
)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "c.safetensors", tmp_path / "results" / "latency.jsonl", tmp_path)
    loop_cases.certificate().save(made.certificate)
    cases.trace().save(made.trace)
    return made


# -- the study ----------------------------------------------------------------------------------


def test_an_interrupted_study_goes_on_where_it_stopped(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = run_study(
        cases.platform, cases.programs(), SETTINGS, replace(paths, work=paths.work / "whole")
    )
    assert len(whole) == 15

    flown = study_module.fly_all
    kept: list[Flight] = []

    def interrupted(*arguments: Any) -> None:
        done = arguments[4]

        def stop_at_seven(flight: Flight) -> None:
            if len(kept) == 7:
                raise KeyboardInterrupt
            kept.append(flight)
            done(flight)

        flown(*arguments[:4], stop_at_seven, *arguments[5:])

    monkeypatch.setattr(study_module, "fly_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(cases.platform, cases.programs(), SETTINGS, paths)
    seen: list[Ticket] = []

    def counted(*arguments: Any) -> None:
        seen.extend(arguments[1])
        flown(*arguments)

    monkeypatch.setattr(study_module, "fly_all", counted)
    flights, trace = run_study(cases.platform, cases.programs(), SETTINGS, paths)
    assert len(seen) == 15 - 7
    assert trace == cases.trace()
    by_hand = {(flight.method, flight.seed): flight.outcome for flight in whole}
    assert {(flight.method, flight.seed): flight.outcome for flight in flights} == by_hand
    # Other latencies are another study.
    cases.trace(cached=0.2).save(paths.trace)
    with pytest.raises(CalibrationError, match="belongs to another"):
        run_study(cases.platform, cases.programs(), SETTINGS, paths)


@pytest.mark.slow
def test_flights_are_the_same_for_any_number_of_workers(paths: Paths) -> None:
    alone, _ = run_study(
        cases.platform, cases.programs(), SETTINGS, replace(paths, work=paths.work / "alone")
    )
    shared, _ = run_study(cases.platform, cases.programs(), replace(SETTINGS, workers=2), paths)
    assert [(one.method, one.seed, one.outcome, one.jobs) for one in alone] == [
        (one.method, one.seed, one.outcome, one.jobs) for one in shared
    ]


def test_scouting_draws_one_call_of_every_episode_and_keeps_what_was_flown(tmp_path: Path) -> None:
    robot = cases.platform()
    settings = replace(SETTINGS, scouts=6)  # in groups of four and two
    contexts = scout(lambda: robot, settings, tmp_path)
    assert contexts.shape == (6, 2)
    assert len(robot.begun) == 6 and all(episode.outcome for episode in robot.begun)
    events = [event for episode in robot.begun for event in episode.events]
    times = [event[1] for event in events if event[0] == "context"]
    assert len(times) > 12  # many calls, of which one each was kept
    assert max(abs(time / robot.period - round(time / robot.period)) for time in times) < 1e-9
    (tmp_path / "scouts0004-0005.safetensors").unlink()
    again = scout(lambda: robot, settings, tmp_path)
    assert torch.equal(again, contexts)
    assert len(robot.begun) == 6 + 2


def test_the_metric_is_the_largest_distance_between_positions() -> None:
    metric = position_metric(cases.platform())
    full = loop_cases.planner().draw_noise(3).initial
    other = full.clone()
    other[1, 2] += 0.3
    other[1, 0, 1] += 0.1
    found = metric(full, other)
    assert found.tolist() == pytest.approx([0.0, 0.3 * math.sqrt(2), 0.0], abs=1e-6)


def test_a_trace_is_measured_for_every_program() -> None:
    programs = cases.programs()
    contexts = loop_cases.starts(3, 0)
    trace = measure_trace(programs, contexts, 4)
    counts = {(job.program, job.plans) for job in trace.jobs}
    assert counts == {("full", 1), ("fewsteps", 1), ("cached", 1), ("cached", 4)}
    assert all(len(trace.of(*kind)) == 4 for kind in counts)
    assert all(job.seconds > 0.0 for job in trace.jobs)
    assert {job.evaluations for job in trace.of("full", 1)} == {loop_cases.STEPS}
    assert {job.evaluations for job in trace.of("fewsteps", 1)} == {4}


# -- counting -----------------------------------------------------------------------------------


def _call(**changes: Any) -> FlownCall:
    plain = FlownCall(
        0, 0.0, 0.1, 0.5, "nominal", 0.5, 0.01, "execute", "cached", 1.0, None, None, 10,
        ("cached",), False, 1.0, 1,
    )  # fmt: skip
    return replace(plain, **changes)


def _flight(method: str, seed: int, outcome: str, seconds: float, *calls: FlownCall) -> Flight:
    return Flight(method, seed, outcome, seconds, 0.2, calls or (_call(),), (), 0.0)


def test_rows_count_what_happened() -> None:
    calls = (
        _call(),
        _call(mode="damp", factor=0.7),
        _call(mode="resample", source="resampled", factor=0.5, evaluations=50, finished=0.3),
        _call(mode="full", source="full", evaluations=110),
        _call(action="hold", source=None, factor=None, late=True, evaluations=0),
    )
    row = tables.episode_row(_flight("combined", 7, "success", 4.0, *calls))
    wanted = {
        "calls": 5,
        "evaluations": 180,
        "escalated": 3,
        "damped": 2,
        "resampled": 1,
        "overridden": 1,
        "holds": 1,
        "deadline_misses": 1,
    }
    assert {name: row[name] for name in wanted} == wanted
    assert row["latency_p50_s"] == pytest.approx(0.1)
    # Every plan of the method Full is full compute's; that is no override.
    full = _flight("full", 7, "success", 4.0, _call(source="full"))
    assert tables.episode_row(full)["overridden"] == 0
    summary = tables.method_row([_flight("combined", 7, "success", 4.0, *calls)], 0.05, 0.05)
    assert summary["escalation_rate"] == pytest.approx(0.6)
    assert (summary["success"], summary["time_to_goal_s"]) == (1.0, 4.0)


def test_times_are_those_of_successes_and_no_success_has_none() -> None:
    flights = [
        _flight("full", 0, "success", 2.0),
        _flight("full", 1, "success", 4.0),
        _flight("full", 2, "collision", 100.0),
    ]
    row = tables.method_row(flights, 0.05, 0.05)
    assert row["time_to_goal_s"] == 3.0
    assert (row["success"], row["collision"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert math.isnan(tables.method_row(flights[2:], 0.05, 0.05)["time_to_goal_s"])


def test_a_promise_allows_as_many_violations_as_calibration_does() -> None:
    allowed = order_statistic(150, 0.05, 0.95) - 1
    for beyond, promised in ((allowed, True), (allowed + 1, False)):
        flights = [
            replace(_flight("combined", seed, "success", 1.0), deviation=0.1 * (seed < beyond))
            for seed in range(150)
        ]
        found = tables.deviation_columns(flights, 0.05, 0.05)
        assert found["promised"] is promised
        assert found["beyond_tolerance"] == pytest.approx(beyond / 150)
    none = [replace(flight, deviation=None) for flight in flights]
    assert tables.deviation_columns(none, 0.05, 0.05)["promised"] is None


def test_paired_tests_against_scipy() -> None:
    generator = np.random.default_rng(0)
    first = generator.random(150) < 0.6
    second = np.where(generator.random(150) < 0.3, generator.random(150) < 0.9, first)
    flights = [
        _flight(name, seed, "success" if won else "collision", 3.0 + seed % 7 * (name == "a"))
        for name, outcomes in (("a", first), ("b", second))
        for seed, won in enumerate(outcomes)
    ]
    found = tables.compare(flights, "a", "b")
    lost, gained = int((first & ~second).sum()), int((~first & second).sum())
    assert found["success_p"] == pytest.approx(stats.binomtest(lost, lost + gained).pvalue)
    greater = stats.binomtest(lost, lost + gained, alternative="greater").pvalue
    assert found["worse_p"] == pytest.approx(greater)
    assert found["collisions_p"] == found["success_p"]  # here a failure is a collision
    assert found["more_collisions_p"] == found["worse_p"]
    both = np.flatnonzero(first & second)
    differences = (both % 7).astype(float)
    assert found["both"] == len(both)
    assert found["faster_s"] == pytest.approx(differences.mean())
    assert found["faster_low"] < found["faster_s"] < found["faster_high"]
    assert found["time_p"] == pytest.approx(stats.wilcoxon(differences).pvalue)
    same = tables.compare(flights, "a", "a")
    assert (same["success_p"], same["time_p"], same["faster_s"]) == (1.0, 1.0, 0.0)


def test_seeds_that_only_one_method_flew_are_left_out_of_pairs() -> None:
    flights = [_flight("a", seed, "success", 1.0) for seed in range(5)]
    flights += [_flight("b", seed, "collision", 1.0) for seed in range(3, 8)]
    found = tables.compare(flights, "a", "b")
    assert found["success_p"] == pytest.approx(stats.binomtest(2, 2).pvalue)


# -- files and pictures -------------------------------------------------------------------------


def test_results_are_written_whole(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "FRAMES", 4)
    flights, trace = run_study(cases.platform, cases.programs(), SETTINGS, paths)
    programs = ClosedLoopPrograms(cases.platform(), loop_cases.fast())
    out = tmp_path / "out"
    rows = write_results(out, programs, flights, trace, "muninn-bench fly")
    assert [row["method"] for row in rows] == ["full", "muninn-only", "combined"]
    with (out / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert len(episodes) == 15
    assert sum(int(row["calls"]) for row in episodes if row["method"] == "combined") == sum(
        1 for _ in (out / "calls.csv").open()
    ) - 1  # fmt: skip
    page = (out / "summary.md").read_text()
    assert "Muninn + all three" in page and "nowhere" in page and "McNemar" in page
    for picture in ("outcomes.png", "calls.png", "timeline.png", "flight.gif"):
        assert (out / picture).stat().st_size > 1000
        assert picture in page


def test_a_watcher_sees_every_call_and_changes_nothing() -> None:
    programs = cases.programs()
    ticket = Ticket(METHODS["combined"], 3)
    recorder = Recorder(programs.platform)
    watched = fly_one(programs, ticket, lambda job: 0.1, Needs(), watcher=recorder)
    assert watched == fly_one(programs, ticket, lambda job: 0.1, Needs())
    assert recorder.flight == watched
    assert recorder.calls == list(watched.calls)[: len(recorder.calls)]
    assert len(recorder.calls) >= len(watched.calls) - 1  # the last may end with the episode
    times = [moment.snapshot.time for moment in recorder.seen]
    assert times == sorted(times) and max(np.diff(times)) <= programs.platform.period / 10 + 1e-9
    assert len(recorder.world) == 1  # the disc's outline


def test_the_bound_of_a_call() -> None:
    certificate = loop_cases.certificate()
    bound = bound_of(certificate)
    assert bound(_call(estimate=0.3)) == certificate.bound(np.array([0.3]))[0]
    assert bound(_call(source="full", estimate=0.3)) == 0.0
    assert math.isnan(bound(_call(action="hold", estimate=None)))


def test_jobs_are_plain_json() -> None:
    flight = fly_one(cases.programs(), Ticket(METHODS["combined"], 0), measured, Needs())
    assert json.loads(json.dumps(asdict(flight)))["jobs"][0]["program"] == "cached"
    assert isinstance(flight.jobs[0], Timed)
