"""One planning call, whatever the planner, the clock and the sensors do."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import certify_cases
import loop_cases as cases
from loop_cases import Scripted, VirtualClock, VirtualRunner
from muninn.certify.cached import cache
from muninn.errors import InputError
from muninn.loop.escalation import VARIANTS, Escalation, Execute, Hold, Mode, Needs, State
from muninn.loop.request import CertifiedPrograms, accept_all
from muninn.loop.supervisor import Command, Observation, Supervisor
from muninn.loop.worker import InProcess

BUDGET = 0.1
TICK = 1e-9


def _robot(programs: Scripted, seconds: float = 0.01, **options: Any) -> Supervisor:
    runner = VirtualRunner(programs, lambda job: seconds)
    machine = options.pop("escalation", Escalation())
    return Supervisor(runner, machine, budget=BUDGET, oldest=0.2, **options)


def _call(robot: Supervisor, age: float = 0.0) -> Command:
    now = robot.runner.clock()
    return robot.supervise(Observation(cases.starts(1, 0), now - age), now)


def _reason(command: Command) -> str:
    assert isinstance(command.action, Hold)
    assert command.plan is None
    assert command.seed is None
    assert command.report.action == "hold"
    assert command.report.reason == command.action.reason
    return command.action.reason


# -- what is executed ---------------------------------------------------------------------------


def test_a_nominal_call() -> None:
    programs = Scripted()
    command = _call(_robot(programs))
    assert command.action == Execute("cached", 0, 1.0)
    assert command.plan is not None
    assert torch.equal(command.plan, torch.zeros(*cases.SHAPE).double())
    assert command.seed == programs.ran[0].seeds[0]
    report = command.report
    assert (report.mode, report.signal, report.asked) == ("nominal", 0.5, ("cached",))
    assert report.finished == pytest.approx(0.01)
    assert report.evaluations == 3
    assert json.loads(json.dumps(report.to_json()))["action"] == "execute"


def test_resampling_selects_among_noise_of_its_own() -> None:
    programs = Scripted(rank=0.97, flaws={"resampled": (None, None, None, "it hits a wall")})
    command = _call(_robot(programs))
    assert command.action == Execute("resampled", 2, 0.5)
    first, others = programs.ran
    assert len({*first.seeds, *others.seeds}) == 5
    assert command.seed == others.seeds[2]
    assert command.report.evaluations == 15
    assert command.report.estimate == 0.2


def test_an_override_repeats_the_noise_of_the_call() -> None:
    programs = Scripted(rank=1.0)
    command = _call(_robot(programs))
    assert command.action == Execute("full", 0, 1.0)
    first, full = programs.ran
    assert first.seeds == full.seeds == (command.seed,)


def test_calls_have_noise_of_their_own_and_can_be_replayed() -> None:
    seeds = []
    for _ in range(2):
        programs = Scripted()
        robot = _robot(programs, seed=3)
        for _ in range(3):
            _call(robot)
        seeds.append([job.seeds for job in programs.ran])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_the_mode_outlasts_the_call() -> None:
    programs = Scripted()
    robot = _robot(programs)
    modes = []
    for rank in (0.9, 0.5, 0.8, 0.7, 0.7):
        programs.rank = rank
        modes.append(_call(robot).report.mode)
    assert modes == ["damp", "damp", "damp", "damp", "nominal"]
    robot.state = State(Mode.FULL, 1)
    programs.fails["cached"] = RuntimeError("no route")
    _call(robot)
    assert robot.state == State(Mode.FULL, 0)  # a failed call is not a clear one


def test_an_alarm_runs_full_compute_until_it_is_taken_back() -> None:
    programs = Scripted()
    robot = _robot(programs)
    robot.alarm = "the risk is too high"
    command = _call(robot)
    assert command.action == Execute("full", 0, 1.0, "the risk is too high")
    assert command.report.asked == ("full",)
    robot.alarm = None
    assert _call(robot).report.asked == ("cached",)


# -- faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fails": {"cached": RuntimeError("no route")}}, "RuntimeError: no route"),
        ({"rank": 1.0, "fails": {"full": ValueError("no route")}}, "ValueError: no route"),
        ({"rank": 0.97, "fails": {"resampled": MemoryError()}}, "MemoryError"),
        ({"not_finite": True}, "the plan is not finite"),
        ({"rows": 2}, "1 plans were asked for, 2 came"),
        ({"rank": 0.97, "flaws": {"resampled": ("it hits a wall",) * 4}}, "it hits a wall"),
        ({"rank": 1.0, "flaws": {"full": ("it hits a wall",)}}, "it hits a wall"),
    ],
)
def test_a_failed_plan_holds_with_the_reason(change: dict[str, Any], reason: str) -> None:
    assert reason in _reason(_call(_robot(Scripted(**change))))


def test_a_planner_that_hangs_is_answered_for_at_the_deadline() -> None:
    robot = _robot(Scripted(), seconds=math.inf)
    command = _call(robot)
    assert _reason(command) == "no plan by the deadline"
    assert command.report.finished == BUDGET
    assert command.report.late
    assert robot.log.summary()["deadline_misses"] == 1


def test_in_this_process_a_late_plan_is_not_executed() -> None:
    time = VirtualClock()
    programs, denoiser = cases.ticking(time)
    denoiser.tick[0] = 0.2
    robot = Supervisor(InProcess(programs, time), Escalation(), budget=BUDGET)
    command = _call(robot)
    assert "the deadline passed" in _reason(command)
    assert command.report.late


def test_an_override_that_is_late_holds() -> None:
    programs = Scripted(rank=1.0)
    runner = VirtualRunner(programs, lambda job: 1.0 if job.source == "full" else 0.01)
    robot = Supervisor(runner, Escalation(), budget=BUDGET)
    assert _reason(_call(robot)) == "no plan by the deadline"
    robot.needs = Needs(full=1.0)  # known beforehand: the certified plan, damped
    action = _call(robot).action
    assert isinstance(action, Execute)
    assert (action.source, action.factor) == ("cached", 0.5)


def test_old_and_future_observations_hold() -> None:
    robot = _robot(Scripted())
    assert "0.3 s old, more than 0.2 s" in _reason(_call(robot, age=0.3))
    assert "its clock is another one" in _reason(_call(robot, age=-0.1))
    assert "its clock is another one" in _reason(_call(robot, age=math.nan))
    assert isinstance(_call(robot, age=0.2).action, Execute)
    assert robot.log.summary()["holds"] == 3


def test_a_clock_that_jumps_back_between_calls_holds_once() -> None:
    robot = _robot(Scripted())
    runner = robot.runner
    assert isinstance(runner, VirtualRunner)
    runner.time.now = 100.0
    assert isinstance(_call(robot).action, Execute)
    runner.time.now = 40.0
    assert "the clock went back by 60" in _reason(_call(robot))
    assert isinstance(_call(robot).action, Execute)


def test_a_clock_that_jumps_back_within_a_call_holds() -> None:
    runner = VirtualRunner(Scripted(), lambda job: -5.0)
    robot = Supervisor(runner, Escalation(), budget=BUDGET)
    assert "the clock went back by 5" in _reason(_call(robot))


def test_a_time_of_another_clock_holds() -> None:
    robot = _robot(Scripted())
    other = robot.supervise(Observation(None, 1e6), 1e6)
    assert "the clock went back" in _reason(other)
    assert "the time is nan" in _reason(robot.supervise(Observation(None, 0.0), math.nan))


def test_a_signal_that_cannot_be_read_holds() -> None:
    def broken(record: object) -> Any:
        raise KeyError("rank")

    robot = _robot(Scripted(), escalation=replace(Escalation(), signal=broken))
    robot.state = State(Mode.DAMP, 1)
    assert "KeyError" in _reason(_call(robot))
    assert robot.state == State(Mode.DAMP, 0)


def test_a_certificate_for_another_model_runs_full_compute_and_says_so() -> None:
    other = certify_cases.planner()
    fast = cache(other, cases.certificate(), on_mismatch="full")
    programs = CertifiedPrograms(fast, accept_all)
    robot = Supervisor(InProcess(programs, VirtualClock()), Escalation(), budget=BUDGET)
    command = _call(robot)
    assert command.action == Execute("cached", 0, 1.0)
    assert command.plan is not None
    assert command.seed is not None
    noise = other.draw_noise(seeds=[command.seed])
    assert torch.equal(command.plan[None], other.sample(cases.starts(1, 0), noise=noise))
    assert command.report.fallback is not None
    assert "made for another planner" in command.report.fallback
    assert command.report.signal is None


def test_a_screen_that_raises_is_a_flaw() -> None:
    def screen(plan: object, context: object) -> bool:
        raise ZeroDivisionError("map")

    programs = CertifiedPrograms(cases.fast(), screen)
    robot = Supervisor(InProcess(programs, VirtualClock()), Escalation(), budget=BUDGET)
    assert "ZeroDivisionError: map" in _reason(_call(robot))


@pytest.mark.parametrize("change", [{"budget": 0.0}, {"budget": 1.0, "oldest": math.nan}])
def test_refusals(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match="positive seconds"):
        Supervisor(InProcess(Scripted()), Escalation(), **change)


# -- many faults at once ------------------------------------------------------------------------


def _inject(rng: random.Random, programs: Scripted, runner: VirtualRunner) -> float:
    """Set the faults of one call; how old its observation is."""
    sources = ("cached", "resampled", "full")
    programs.rank = rng.choice([rng.random(), rng.random(), rng.uniform(0.9, 1.0), math.nan])
    programs.estimates = [rng.choice([rng.random(), math.nan]) for _ in range(4)]
    programs.fails = {s: RuntimeError("fault") for s in sources if rng.random() < 0.05}
    programs.flaws = {
        s: tuple(rng.choice([None] * 4 + ["it hits a wall"]) for _ in range(4)) for s in sources
    }
    programs.not_finite = rng.random() < 0.05
    programs.rows = rng.choice([None] * 12 + [1, 3])
    programs.fallback = "certificate for another model" if rng.random() < 0.1 else None
    durations = {s: rng.choice([0.0, 0.02, 0.02, 0.06, 0.2, math.inf]) for s in sources}
    runner.seconds = lambda job: durations[str(job.source)]
    runner.time.now += rng.choice([rng.random()] * 9 + [-rng.random()])
    return rng.choice([0.0, 0.1] * 6 + [0.2001, 5.0, -1.0, math.nan])


def _fly(seed: int) -> int:
    """One run of a dozen calls with faults; how many plans were executed."""
    rng = random.Random(seed)
    programs = Scripted()
    runner = VirtualRunner(programs, lambda job: 0.0)
    machine = Escalation(
        allowed=rng.choice(list(VARIANTS.values())), without_full=rng.choice(["damp", "hold"])
    )
    needs = Needs(*(rng.choice([0.0, 0.0, 0.02, 0.06, 1.0]) for _ in range(3)))
    robot = Supervisor(runner, machine, budget=BUDGET, oldest=0.2, needs=needs, seed=seed)
    executed = 0
    expected = State()
    last = -math.inf
    for _ in range(12):
        age = _inject(rng, programs, runner)
        robot.alarm = "alarm" if rng.random() < 0.1 else None
        now = runner.clock()
        made = len(programs.made)
        command = robot.supervise(Observation(None, now - age), now)
        report = command.report
        assert report.finished <= now + BUDGET + TICK
        signal = math.nan if report.signal is None else report.signal
        expected = machine.observe(expected, signal)
        assert robot.state == expected
        if isinstance(command.action, Hold):
            assert command.action.reason
            assert command.plan is None
        else:
            executed += 1
            assert command.plan is not None
            number = int(command.plan[0, 0])
            assert number >= made, "a plan of an earlier call"
            assert programs.made[number] is None, "a plan that failed the screen"
            assert torch.isfinite(command.plan).all()
            assert 0.0 <= age <= 0.2
            assert now >= last
        last = runner.clock()
    assert robot.log.calls == 12
    return executed


def _fly_many(runs: int) -> None:
    executed = sum(_fly(seed) for seed in range(runs))
    assert 0.1 * 12 * runs < executed < 0.9 * 12 * runs  # neither always nor never


def test_faults_at_random() -> None:
    _fly_many(500)


@pytest.mark.slow
def test_faults_at_random_in_ten_thousand_runs() -> None:
    _fly_many(10_000)


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 0.3)), max_size=12),
    st.sampled_from(list(VARIANTS)),
)
def test_every_call_is_answered_by_the_deadline(
    calls: list[tuple[float, float]], variant: str
) -> None:
    programs = Scripted()
    robot = _robot(programs, escalation=Escalation(allowed=VARIANTS[variant]))
    runner = robot.runner
    assert isinstance(runner, VirtualRunner)
    for rank, seconds in calls:
        programs.rank = rank
        runner.seconds = lambda job, seconds=seconds: seconds  # type: ignore[misc]
        now = runner.clock()
        command = _call(robot)
        assert runner.clock() <= now + BUDGET
        assert isinstance(command.action, Hold) == command.report.late
