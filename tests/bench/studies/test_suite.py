"""The suite on a world of lines: rows are what episodes and calls say, and nothing runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import control_cases as cases
from muninn.certify.metrics import measure, rms_step
from muninn.certify.outcomes import Outcomes
from muninn.certify.paired import PairedCalls, call_seed
from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn.parallel import Map
from muninn.programs.plan import Family, Program
from muninn.progress import bars
from muninn_bench.cli import app
from muninn_bench.measure.protocol import plain
from muninn_bench.measure.rollout import roll_out
from muninn_bench.report.table import read_csv
from muninn_bench.studies.suite import drives as driving
from muninn_bench.studies.suite import latency
from muninn_bench.studies.suite.drives import Drives
from muninn_bench.studies.suite.entrants import FULL, Entrant, Site
from muninn_bench.studies.suite.outcome import POINTS, LockstepUnits
from muninn_bench.studies.suite.promises import (
    Calls,
    Promise,
    choice_of,
    closed_loop_member,
    even_family,
    judge,
    promises,
)
from muninn_bench.studies.suite.rows import COLUMNS, write_rows
from muninn_bench.studies.suite.study import SMOKE, Suite
from muninn_bench.task import Stream
from muninn_bench.tasks import control
from muninn_bench.tasks.control import ControlTask

SIZES = replace(SMOKE, lanes=4, outcome=60, together=30, most_calls=None)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlTask]:
    folder = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield cases.lines(folder)
        control._policy.cache_clear()


def suite(task: ControlTask, variant: str, folder: Path, **options: object) -> Suite:
    given = {"sizes": SIZES, "seed": 3, "progress": False, **options}
    return Suite(task, variant, folder, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["diffusion-ql", "decision-diffuser", "diffuser"])
def finished(
    task: ControlTask, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Suite:
    made = suite(task, request.param, tmp_path_factory.mktemp(request.param))
    made.run()
    write_rows(made)
    return made


def test_one_line_a_method_in_the_schema(finished: Suite) -> None:
    rows, variant = read_csv(finished.site.folder / "rows.csv"), finished.site.variant
    assert list(rows[0]) == [*COLUMNS, "entrant"]
    papers = ["paper", "paper-penultimate"] if variant == "diffusion-ql" else ["paper"]
    certified = ["muninn", "muninn-episodes", "fewsteps", "dpmsolver"]
    found = [(row["method"], row["tolerance"]) for row in rows]
    expected = [(name, limit) for name in certified for limit in (0.15, 0.05, task_tolerance(rows))]
    expected += [(name, limit) for name in papers for limit in (0.15, 0.05)]
    assert sorted(map(str, found)) == sorted(
        map(str, [("full", None), ("muninn-mean-score", 100), *expected])
    )
    assert len({tuple(row[name] for name in COLUMNS[:7]) for row in rows}) == len(rows)
    steps = len(finished.site.planner.sampler)
    for row in rows:
        assert row["latency_ms_cpu"] > 0.0 and row["latency_ms_gpu"] is None
        assert row["score_low"] <= row["score"] <= row["score_high"]
        assert row["episodes"] == 4 and row["steps"] == steps
        assert row["certified"] == (row["entrant"].startswith("program"))
        assert row["evaluations_mean"] <= steps


def task_tolerance(rows: list[dict[str, object]]) -> object:
    return next(row["tolerance"] for row in rows if "worst channel" in str(row["unit"]))


def test_scores_are_those_of_episodes_driven_apart(finished: Suite) -> None:
    site, rows = finished.site, read_csv(finished.site.folder / "rows.csv")
    alone = roll_out(
        site.task, site.variant, plain(site.planner), Stream.TEST, 4,
        seed=call_seed(3, Stream.TEST, 2), world=3,
    )  # fmt: skip
    scores = [drive.result.score for drive in alone]
    assert rows[0]["method"] == "full"
    assert rows[0]["score"] == pytest.approx(np.mean(scores), rel=1e-5)
    assert rows[0]["calls"] == sum(len(drive.contexts) for drive in alone)
    details = read_csv(site.folder / "details.csv")
    assert details[0]["difference"] == 0.0
    for row in details:
        assert row["difference_low"] <= row["difference"] <= row["difference_high"]


def test_started_again_nothing_runs_and_a_lost_chunk_is_driven_again(
    finished: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, before = finished.site, (finished.site.folder / "rows.csv").read_text()
    driven: list[tuple[object, ...]] = []
    real = roll_out
    monkeypatch.setattr(
        driving, "roll_out", lambda *given, **named: driven.append(given) or real(*given, **named)
    )
    monkeypatch.setattr(latency, "take_turns", lambda *given, **named: pytest.fail("timed again"))
    again = suite(site.task, site.variant, site.folder)  # type: ignore[arg-type]
    again.run()
    assert not driven
    (site.folder / "drives" / "full-test-0-4-seed3.safetensors").unlink()
    again.run()
    write_rows(again)
    assert [given[3:] for given in driven] == [(Stream.TEST, 4)]
    assert (site.folder / "rows.csv").read_text() == before


def test_another_machine_adds_its_latencies_alone(finished: Suite) -> None:
    site = finished.site
    key = FULL.key
    path = site.folder / "latency-cuda.json"
    path.write_text(f'{{"ms": {{"{key}": [2.0]}}, "median_ms": {{"{key}": 2.0}}}}')
    write_rows(finished)
    path.unlink()
    rows = read_csv(site.folder / "rows.csv")
    assert rows[0]["latency_ms_gpu"] == 2.0 and rows[0]["latency_ms_cpu"] > 0.0
    write_rows(finished)


def test_what_the_suite_cannot_measure_is_refused_before_anything_runs(
    task: ControlTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = task.planner("diffuser")
    several = replace(planner, shape=(4, *planner.shape))
    foreign = replace(planner, denoiser=lambda x, timestep, context: x)
    for made, said in ((several, "draws 4 plans.*muninn-bench frontier"), (foreign, "stem of")):
        monkeypatch.setattr(ControlTask, "planner", lambda *given, made=made: made)
        with pytest.raises(InputError, match=said):
            suite(task, "diffuser", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_other_calls_or_another_seed_is_refused(finished: Suite) -> None:
    site = finished.site
    for options, said in (
        ({"sizes": replace(SIZES, test=9)}, "other calls"),
        ({"seed": 4}, "other seed"),
    ):
        with pytest.raises(InputError, match=f"{said}; delete .* or choose another folder"):
            suite(site.task, site.variant, site.folder, **options)  # type: ignore[arg-type]


# -- what is promised --------------------------------------------------------------------------


def drives_of(task: ControlTask, variant: str, folder: Path) -> Drives:
    with bars(False) as bar:
        return Drives(Site(task, variant, "cpu", folder), Map(), bar, 0, lanes=30)


def test_both_metrics_of_candidates_look_after_the_choice(task: ControlTask) -> None:
    loose, tight, own = promises(task, "diffusion-ql")
    assert (loose.tolerance, tight.tolerance, own.tolerance) == (0.15, 0.05, task.tolerance)
    assert loose.metric is tight.metric
    choice = choice_of(task, "diffusion-ql")
    assert choice is not None and choice_of(task, "diffuser") is None
    assert promises(task, "diffuser")[0].metric is rms_step
    planner, context = task.planner("diffusion-ql"), torch.rand(5, cases.OBSERVATION)
    plans = planner.sample(context, noise=planner.draw_noise(seeds=range(5)))
    rows, best = torch.arange(5), choice(plans, context)
    other = plans.clone()
    other[rows, (best + 1) % plans.shape[1]] = other[rows, best]  # the choice stays, or its twin
    assert measure(loose.metric, plans, other, context).tolist() == [0.0] * 5
    moved = plans.clone()
    moved[rows, best] = (moved[rows, best] + 0.001).clamp(-1.0, 1.0)
    chosen = moved[rows, choice(moved, context)]
    apart = torch.linalg.vector_norm(plans[rows, best] - chosen, dim=1)
    assert measure(loose.metric, plans, moved, context) == pytest.approx(apart.tolist())


def test_a_switched_choice_is_counted(task: ControlTask) -> None:
    planner, choice = task.planner("diffusion-ql"), choice_of(task, "diffusion-ql")
    metric = promises(task, "diffusion-ql")[0].metric
    paired = PairedCalls(planner, torch.rand(40, cases.OBSERVATION), 40, metric, 1)
    assert judge(paired, plain(planner), metric, choice).switched == 0.0
    program, calls = even_family(planner, "fewsteps").member(1), list(range(40))
    site = Site(task, "diffusion-ql", "cpu", Path())
    found = judge(paired, Entrant.of(program).run(site), metric, choice)
    assert choice is not None
    full, (fast, _) = paired.full(calls), paired.run(program, calls)
    other = choice(full, paired.contexts(calls)) != choice(fast, paired.contexts(calls))
    assert found.switched == pytest.approx(float(other.float().mean())) and other.any()
    assert (found.deviation > 0.0).any() and set(found.evaluations) == {4.0}


def test_the_closed_loop_takes_what_a_program_meets_itself(
    task: ControlTask, tmp_path: Path
) -> None:
    drives = drives_of(task, "diffuser", tmp_path)
    family = even_family(drives.site.planner, "fewsteps")
    rows = torch.rand(60, cases.OBSERVATION)
    calls = Calls(drives.site, {"tune": rows[:4], "certify": rows, "test": rows[:4]}, 0)
    metric = promises(task, "diffuser")[0].metric
    for tolerance, found in ((1e3, family.member(1)), (1e-9, None)):
        promise = Promise(tolerance, "any", metric)
        assert closed_loop_member(drives, calls, family, 1, promise, 60) == found
    # Contexts are those of the program's own episodes, a random call of each.
    driven = drives.of("any", Entrant.of(family.member(1)), Stream.CERTIFY, 60)
    alone = roll_out(
        task, "diffuser", Entrant.of(family.member(1)).run(drives.site), Stream.CERTIFY, 3,
        seed=call_seed(0, Stream.CERTIFY, 2),
    )  # fmt: skip
    for number, drive in enumerate(alone):
        place = drive.random_call(0, number)
        torch.testing.assert_close(driven.contexts[number, :1], drive.contexts[place])


def test_the_mean_score_is_that_of_lockstep_episodes_within_its_range(
    task: ControlTask, tmp_path: Path
) -> None:
    high = replace(task, scoring=control.Scoring(0.0, 2.0))  # up to 300 points
    drives = drives_of(high, "diffuser", tmp_path)
    planner = drives.site.planner
    asked = Outcomes(lambda plan, seed: 0.0, 20, "mean", 5.0, *POINTS, together=20)
    units = LockstepUnits(planner, asked, 0, drives=drives)
    program = even_family(planner, None).member(1)
    found = units.measure(program, "certify", range(5, 12))
    driven = drives.of("any", Entrant.of(program), Stream.CERTIFY, 7, 5)
    assert [each.score for each in found] == np.clip(driven.score, *POINTS).tolist()
    assert driven.score.max() > POINTS[1] >= max(each.score for each in found)
    assert {each.evaluations[0] for each in found} == {len(planner.sampler) - 1}
    full = units.measure(Program.full(planner.sampler.kind), "tune", range(2))
    assert {each.evaluations[0] for each in full} == {len(planner.sampler)}


def test_an_even_family_is_full_compute_but_for_one_evaluation(task: ControlTask) -> None:
    planner = task.planner("adaptdiffuser")
    for group in (None, "fewsteps", "dpmsolver"):
        family = even_family(planner, group)
        assert isinstance(family, Family)
        assert family.member(1).most_evaluations(6) == 5


# -- bad input ---------------------------------------------------------------------------------


class Diverging(cases.Line):
    """A world whose reward is NaN after some steps of all its episodes."""

    left = 40

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool]:
        Diverging.left -= 1
        state, reward, ended = super().step(action)
        return state, reward if Diverging.left > 0 else np.nan, ended


def test_rewards_that_are_not_finite_end_the_study_and_finished_episodes_stay(
    task: ControlTask, tmp_path: Path
) -> None:
    drives = drives_of(replace(task, world=Diverging, idle=[]), "diffuser", tmp_path)
    Diverging.left = 40
    drives = Drives(drives.site, Map(), lambda title, count: lambda done: None, 0, lanes=2)
    with pytest.raises(InputError, match=r"lines gave the reward nan .* at step \d+ of an episode"):
        drives.of("any", FULL, Stream.TEST, 40)
    kept = sorted((tmp_path / "drives").glob("*.safetensors"))
    assert 2 <= len(kept) < 20
    stamps = [path.stat().st_mtime_ns for path in kept]
    Diverging.left = 10**6
    assert len(drives.of("any", FULL, Stream.TEST, 40).score) == 40
    assert stamps == [path.stat().st_mtime_ns for path in kept]


def test_a_world_without_its_package_says_what_to_install(task: ControlTask) -> None:
    def missing() -> cases.Line:
        raise ModuleNotFoundError("No module named 'gymnasium_robotics'")

    without = replace(task, world=missing, idle=[])
    with pytest.raises(InputError, match=r"package that is missing \(No module .*pip install"):
        without.begin("diffuser", Stream.TEST, 0)


def test_episodes_of_one_step_are_scored(task: ControlTask, tmp_path: Path) -> None:
    drives = drives_of(replace(task, world=lambda: cases.Line(1), idle=[]), "diffuser", tmp_path)
    driven = drives.of("any", FULL, Stream.TEST, 5)
    assert driven.calls.tolist() == [1.0] * 5
    assert driven.score == pytest.approx(np.full(5, 100.0 / 6.0))


# -- the command -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_runs_a_pair_from_its_weights_and_merges_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = ["suite", "--task", "hopper", "--variant", "diffusion-ql", "--out", str(out)]
    sizes = {"episodes": 20, "most-calls": 5, "tune": 16, "certify": 60, "test": 20, "closed": 0,
             "outcome": 0, "timed": 2}  # fmt: skip
    chosen = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    said = CliRunner().invoke(app, [*given, *chosen], catch_exceptions=False)
    assert said.exit_code == 0 and "wrote" in said.output
    rows = read_csv(out / "rows.csv")
    assert {row["episodes"] for row in rows} == {20}
    assert {row["method"] for row in rows} == {
        "full", "muninn", "fewsteps", "dpmsolver", "paper", "paper-penultimate",
    }  # fmt: skip
    merged = ["suite", "--merge", str(out), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(app, merged, catch_exceptions=False).exit_code == 0
    assert len(read_csv(tmp_path / "out" / "rows.csv")) == len(rows)


def test_a_command_without_a_pair_says_what_to_name() -> None:
    with pytest.raises(InputError, match="name a pair, --task hopper"):
        CliRunner().invoke(app, ["suite"], catch_exceptions=False)
