"""Promises about episodes: proven, kept, refused where nothing can be proven, and resumed."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
from certify_cases import contexts, planner, table_family
from muninn.certify.certificate import Certificate
from muninn.certify.evaluate_outcomes import OutcomeEvaluation
from muninn.certify.journal import Journal
from muninn.certify.metrics import resolve
from muninn.certify.outcome_scan import OutcomeScan, episodes_needed
from muninn.certify.outcomes import Outcomes, OutcomeUnits
from muninn.certify.scan import Measuring
from muninn.engines.runtime import log_once
from muninn.errors import CalibrationError, InputError
from muninn.identity.rows import DIGITS
from muninn.monitor.outcomes import OutcomeMonitor
from muninn.parallel import Map, Processes
from muninn.programs.plan import Family, Program
from muninn.progress import silent
from outcome_cases import careless, distance, outcomes, reach

STEPS = 20


def family() -> Family:
    return table_family(planner().sampler, (10, 6, 3, 2))


def certified(**changes: Any) -> Certificate:
    """A certificate of :func:`reach`; arguments of Outcomes and of ``calibrate`` may be changed."""
    own = {key: changes.pop(key) for key in list(changes) if key in Outcomes.__dataclass_fields__}
    settings: dict[str, Any] = {"risk": 0.1, "family": family(), "progress": False}
    return muninn.calibrate(planner(), outcomes(**own), **{**settings, **changes})


@pytest.fixture(scope="module")
def harm() -> Certificate:
    return certified()


@pytest.fixture(scope="module")
def mean() -> Certificate:
    return certified(promise="mean", margin=0.1)


# -- what is promised ----------------------------------------------------------------------------


def test_harm_is_promised_in_words_and_in_the_file(harm: Certificate, tmp_path: Path) -> None:
    assert harm.member > 0 and harm.unit == "episode" and harm.loop == "closed"
    spent = f"{harm.realised[harm.member - 1]['evaluations_mean']:.3g}"
    assert harm.promise() == (
        f"With {spent} of {STEPS} evaluations a call, in at most 10.0% of new episodes the score "
        "falls below full compute's in the same episode, with confidence 95% over the calibration "
        "draw, for episodes like those calibrated (closed loop)."
    )
    assert harm.bound is None and harm.tolerance is None
    loaded = Certificate.load(harm.save(tmp_path / "c"))
    assert loaded.outcome == harm.outcome and loaded.bound is None
    assert loaded.promise() == harm.promise() and loaded.realised == harm.realised


def test_a_mean_is_promised_and_proven_as_soon_as_it_can_be(mean: Certificate) -> None:
    assert "mean score of new episodes is at most 0.1 below full compute's" in mean.promise()
    assert mean.member > 0
    for row in mean.realised:
        assert row["accepted"] == (row["e_value"] >= 1.0 / (0.8 * 0.05))
        assert row["units"] <= 100
    assert min(row["units"] for row in mean.realised) < 100  # stopped where it was proven


def test_every_member_is_tested_on_the_worlds_and_the_noise_of_full_compute() -> None:
    """The family's first member is full compute under another name: nothing falls, ever."""
    full = Program.full(planner().sampler.kind)
    copies = Family((full, table_family(planner().sampler, (20,)).member(1)), "copies")
    made = certified(family=copies)
    row = made.realised[0]
    assert made.member == 1 and row["violations"] == row["rises"] == 0
    assert row["fall_mean"] == 0.0 and row["evaluations_mean"] == STEPS


def test_the_certificate_holds_a_limit_of_the_programs_own_mean(harm: Certificate) -> None:
    assert harm.outcome is not None
    low, seen = harm.outcome["score_at_least"], harm.outcome["score_mean"]
    assert 0.0 < low < seen < 1.0
    assert harm.outcome["promised_confidence"] == pytest.approx(0.96)


def test_the_ruler_says_what_other_noise_does(harm: Certificate) -> None:
    assert harm.outcome is not None
    ruler = harm.outcome["ruler"]
    assert ruler["episodes"] == 20 and ruler["repeats"]
    assert ruler["falls"] + ruler["rises"] > 0  # of the mixture's routes


@pytest.mark.parametrize("made", ["harm", "mean"])
def test_fresh_episodes_find_it_kept(made: str, request: pytest.FixtureRequest) -> None:
    certificate: Certificate = request.getfixturevalue(made)
    assert certificate.outcome is not None
    own = {key: certificate.outcome[key] for key in ("promise", "margin")}
    found = muninn.evaluate(
        planner(), certificate, outcomes(count=200, together=50, **own), progress=False
    )
    assert isinstance(found, OutcomeEvaluation) and found.kept
    assert found.units == 200 and found.evaluations < STEPS
    assert found.interval[0] <= found.realised <= found.interval[1]
    assert found.score > found.score_at_least
    assert found.sentence().startswith("Kept: ") and certificate.promise() in found.sentence()


def test_a_broken_promise_is_found_broken(harm: Certificate) -> None:
    def disturbed(plan: Callable[[Any], Tensor], seed: int) -> bool:
        """Full compute never fails here, the certified program half of the time."""
        calls.append(plan(contexts(1, seed=seed % 2**31)))
        return len(calls) <= 100 or bool(np.random.default_rng(seed).random() < 0.5)

    for promise in ("harm", "mean"):
        calls: list[Tensor] = []
        made = certified(promise=promise, margin=0.0 if promise == "harm" else 0.1)
        own = Outcomes(disturbed, 100, promise=promise, margin=made.outcome["margin"])  # type: ignore[index]
        found = muninn.evaluate(planner(), made, own, progress=False)
        assert not found.kept and found.sentence().startswith("Not kept: ")


def test_it_is_deployed_without_a_bound(harm: Certificate) -> None:
    fast = muninn.cache(planner(), harm)
    trajectory, record = fast(contexts(3), generator=torch.Generator().manual_seed(0))
    assert trajectory.shape[0] == 3 and record.bound is None
    assert record.rank is not None and ((record.rank >= 0.0) & (record.rank <= 1.0)).all()


# -- tuning --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tuned() -> Certificate:
    return certified(family=None, promise="mean", margin=0.1)


def test_a_family_is_found_by_deviation_and_bounded_by_tuning_episodes(tuned: Certificate) -> None:
    spent = [program.most_evaluations(STEPS) for program in tuned.family.programs]
    assert spent[0] == STEPS and spent == sorted(spent, reverse=True) and len(set(spent)) > 3
    assert tuned.member > 0 and tuned.program.most_evaluations(STEPS) <= 6
    assert tuned.family.search is not None and tuned.family.search["evaluations"] in spent
    assert len(tuned.family.tuned_on) >= 20 * DIGITS  # a call of every tuning episode, at least


def test_one_journal_holds_calls_and_episodes_of_a_program() -> None:
    """Published tables are measured on 16 calls when they are thinned, and drive 20 episodes."""
    units = OutcomeUnits(planner(), outcomes(promise="mean", margin=0.1), seed=0)
    scan = OutcomeScan(units, Measuring(units), Journal(), Map(), lambda *_: silent)
    given = [contexts(1, seed=k) for k in range(80)]
    found = scan.family(given, resolve("rms_step")[1], 0.1, groups={"fewsteps"})
    assert len(found) > 2


# -- the same again ------------------------------------------------------------------------------


def figures(certificate: Certificate) -> tuple[Any, ...]:
    return certificate.member, certificate.outcome, certificate.realised, certificate.family


def test_lockstep_and_one_by_one_end_alike(harm: Certificate) -> None:
    alone = certified(together=1)
    assert alone.member == harm.member
    for ours, theirs in zip(alone.realised, harm.realised, strict=True):
        if ours["accepted"]:  # else it depends on where it was stopped
            assert ours["fall_mean"] == pytest.approx(theirs["fall_mean"], abs=0.02)


@pytest.mark.slow
def test_processes_give_the_same_certificate(harm: Certificate) -> None:
    with Processes(2) as workers:
        assert figures(certified(workers=workers)) == figures(harm)


class Stops:
    """Runs episodes until it has had enough."""

    def __init__(self) -> None:
        self.left, self.ran = math.inf, 0

    def __call__(self, plan: Callable[[Any], Tensor], seed: int) -> bool:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        self.ran += 1
        return reach(plan, seed)

    def muninn_identity(self) -> str:
        return "reach"


@pytest.mark.parametrize("more", [{}, {"promise": "mean", "margin": 0.1}])
def test_an_interrupted_calibration_loses_no_finished_episode(
    more: dict[str, Any], tmp_path: Path
) -> None:
    run, path = Stops(), tmp_path / "journal"
    plain = certified(run=run, together=5, **more)
    total, run.ran = run.ran, 0
    for budget in (30, 90, math.inf):
        run.left = budget
        try:
            found = certified(run=run, together=5, resume=path, **more)
        except KeyboardInterrupt:
            continue
    assert figures(found) == figures(plain)
    assert run.ran <= total + 2 * 5 + 2  # a lockstep that was under way, and an example, each time


@pytest.mark.parametrize("last", ["episodes/tune/", "fit/"])
def test_tuning_that_was_interrupted_finds_the_same_family(
    last: str, tmp_path: Path, tuned: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    common: dict[str, Any] = {"family": None, "promise": "mean", "margin": 0.1}
    put_all, left = Journal.put_all, [3]

    def interrupted(journal: Journal, pieces: dict[str, Any]) -> None:
        put_all(journal, pieces)
        left[0] -= any(key.startswith(last) for key in pieces)
        if not left[0]:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "put_all", interrupted)
        certified(**common, resume=tmp_path / "journal")
    assert figures(certified(**common, resume=tmp_path / "journal")) == figures(tuned)


def test_more_episodes_extend_a_mean_but_not_a_count(tmp_path: Path) -> None:
    run = Stops()
    common: dict[str, Any] = {"run": run, "promise": "mean", "margin": 0.06, "family": family()}
    common["together"] = 32  # so that the last lockstep of the first run is not full
    certified(**common, count=80, resume=tmp_path / "mean")
    run.ran = 0
    longer = certified(**common, count=160, resume=tmp_path / "mean")
    assert run.ran <= 80 * (len(longer.realised) + 1)  # nobody draws an episode again
    certified(run=run, count=80, resume=tmp_path / "harm")
    with pytest.raises(CalibrationError, match="another calibration: other episodes"):
        certified(run=run, count=160, resume=tmp_path / "harm")


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"promise": "best"}, "'harm' or 'mean'"),
        ({"promise": "mean"}, "no number of episodes proves 0"),
        ({"margin": 1.0}, "below the range"),
        ({"margin": -0.1}, "margin must be"),
        ({"margin": math.nan}, "margin must be"),
        ({"low": 1.0}, "low < high"),
        ({"high": math.inf}, "low < high"),
        ({"count": 0}, "count is a whole number"),
        ({"together": 0}, "together is a whole number"),
        ({"tune": 2}, "tune is a whole number from 8"),
        ({"time_limit": 0.0}, "seconds above 0"),
        ({"run": 3}, "run is a function"),
    ],
)
def test_outcomes_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        outcomes(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tolerance": 0.1}, "tolerance does not go with Outcomes"),
        ({"unit": "call"}, "unit does not go with"),
        ({"confidence": None}, "with a confidence"),
        ({"risk": 1.5}, "risk must lie"),
    ],
)
def test_arguments_that_do_not_go_with_outcomes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        certified(**changes)


def test_too_few_episodes_are_refused_before_any_runs() -> None:
    run = Stops()
    run.left = 0
    with pytest.raises(CalibrationError, match=r"20 episodes cannot support risk 0.1 .* at least"):
        certified(run=run, count=20)
    with pytest.raises(CalibrationError, match="it takes about 180 even if no outcome changes"):
        certified(run=run, count=100, promise="mean", margin=0.02)
    assert run.ran == 0


@pytest.mark.parametrize("score", [2.0, -0.1, math.nan, None, "good"])
def test_a_score_out_of_range_names_its_episode(score: Any) -> None:
    def run(plan: Callable[[Any], Tensor], seed: int) -> Any:
        plan(contexts(1, seed=seed % 2**31))
        return score

    with pytest.raises(InputError, match=r"run\(\) returned .* for seed \d+"):
        certified(run=run)


def test_an_episode_that_never_plans_is_refused() -> None:
    with pytest.raises(InputError, match="without planning"):
        certified(run=lambda plan, seed: 1.0)


def test_an_episode_without_end_is_named() -> None:
    def endless(plan: Callable[[Any], Tensor], seed: int) -> bool:
        for _ in range(10_000):
            plan(contexts(1, seed=seed % 2**31))
        return True

    own = outcomes(run=endless, together=1, time_limit=0.3)
    units = OutcomeUnits(planner(), own, 0)
    with pytest.raises(CalibrationError, match=r"is not over after 0.3 s"):
        units.measure(family().member(4), "certify", [0])
    with pytest.raises(CalibrationError, match=r"is not over after 0.3 s"):
        units.examples(2)  # the first episode of a calibration


def test_a_run_that_does_not_repeat_itself_is_a_warning_and_is_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="muninn"):
        made = certified(run=careless, together=1, promise="mean", margin=0.5, count=60)
    assert made.outcome is not None and not made.outcome["ruler"]["repeats"]
    assert "ends otherwise when it is run again" in caplog.text


def test_contexts_are_copied_and_have_one_row() -> None:
    held = contexts(1)

    def reuses(plan: Callable[[Any], Tensor], seed: int) -> float:
        held.copy_(contexts(1, seed=seed % 2**31))
        plan(held)
        held.fill_(math.nan)
        return 1.0

    units = OutcomeUnits(planner(), outcomes(run=reuses), 0, met=[])
    units.measure(family().member(1), "certify", [0, 1, 2])
    assert units.met is not None and all(bool(torch.isfinite(row).all()) for row in units.met)
    several = outcomes(run=lambda plan, seed: plan(contexts(2)))
    with pytest.raises(InputError, match="one row"):
        OutcomeUnits(planner(), several, 0).measure(family().member(1), "certify", [0])


def test_contexts_of_another_form_are_refused() -> None:
    own = OutcomeUnits(planner(), outcomes(), 0)
    own.examples(2)
    with pytest.raises(InputError, match="another form"):
        own._planned(family().member(1), [torch.zeros(1, 7)], [1])


def test_a_certificate_of_the_other_kind_is_judged_by_its_own_kind(harm: Certificate) -> None:
    with pytest.raises(InputError, match="promises an outcome"):
        muninn.evaluate(planner(), harm, contexts(60), progress=False)
    with pytest.raises(InputError, match=r"the promise has margin=0.0"):
        muninn.evaluate(planner(), harm, outcomes(margin=0.5), progress=False)
    with pytest.raises(InputError, match="seed 0 is that of the calibration"):
        muninn.evaluate(planner(), harm, outcomes(), seed=0, progress=False)
    with pytest.raises(InputError, match="at least 30"):
        muninn.evaluate(planner(), harm, outcomes(count=10), progress=False)
    with pytest.raises(InputError, match="OutcomeMonitor"):
        muninn.Monitor(harm)


def test_what_to_expect_is_said_beforehand() -> None:
    assert episodes_needed(outcomes(), 0.05) == (
        "about 63 episodes prove a risk of 5.0% if no score falls"
    )
    said = episodes_needed(outcomes(promise="mean", margin=0.02))
    assert (
        "prove a margin of 0.02 if nothing changes" in said and "if 5% of the outcomes do" in said
    )


# -- scores that are not successes ---------------------------------------------------------------


def test_scores_in_a_range_of_their_own() -> None:
    """The same scores on another scale give the same promise on that scale."""
    plain = certified(run=distance, promise="mean", margin=0.1)

    def scaled(plan: Callable[[Any], Tensor], seed: int) -> float:
        return 50.0 + 10.0 * distance(plan, seed)

    other = certified(run=scaled, promise="mean", margin=1.0, low=50.0, high=60.0)
    assert other.member == plain.member
    assert [row["units"] for row in other.realised] == [row["units"] for row in plain.realised]
    assert other.outcome["score_at_least"] == pytest.approx(  # type: ignore[index]
        50.0 + 10.0 * plain.outcome["score_at_least"],
        rel=1e-6,  # type: ignore[index]
    )


# -- watching ------------------------------------------------------------------------------------


def test_the_monitor_hears_a_fallen_mean_and_nothing_else(harm: Certificate) -> None:
    assert harm.outcome is not None
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(100):
        monitor = OutcomeMonitor(harm)
        for score in generator.random(200) < harm.outcome["score_at_least"]:
            monitor.report(bool(score))
        alarms += monitor.alarm is not None
    assert alarms <= 5 + 3 * math.sqrt(100 * 0.05 * 0.95)
    monitor = OutcomeMonitor(harm)
    for _ in range(60):
        monitor.report(False)
    assert monitor.alarm is not None and "promised was at least" in monitor.alarm
    assert monitor.e_value >= 20.0
    for bad in (2.0, math.nan):
        with pytest.raises(InputError, match="outside"):
            monitor.report(bad)


def test_the_monitor_refuses_what_it_cannot_watch(harm: Certificate) -> None:
    with pytest.raises(InputError, match="strictly between"):
        OutcomeMonitor(harm, level=0.0)
    deviation = muninn.calibrate(
        planner(), contexts(72), tolerance=0.5, risk=0.1, family=family(), progress=False
    )
    with pytest.raises(InputError, match=r"muninn.Monitor"):
        OutcomeMonitor(deviation)
    nothing = replace(harm, outcome={**harm.outcome, "score_at_least": 0.0})  # type: ignore[dict-item]
    silent = OutcomeMonitor(nothing)
    for _ in range(50):
        silent.report(0.0)
    assert silent.alarm is None and silent.e_value == 1.0
