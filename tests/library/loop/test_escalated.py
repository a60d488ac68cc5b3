"""A program that escalates, certified as one member on a closed-form planner."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import loop_cases as cases
from muninn.certify.metrics import rms_step
from muninn.certify.risk import order_statistic
from muninn.errors import CalibrationError, InputError
from muninn.loop.escalated import Supervise, certify_escalated
from muninn.loop.escalation import VARIANTS, Escalation, Execute, Hold
from muninn.loop.request import CertifiedPrograms
from muninn.loop.supervisor import Command, Observation, Supervisor
from muninn.loop.worker import InProcess

EPISODES = 60
MACHINE = Escalation(warn=0.6, resample=0.7, full=0.85, clear=0.5)  # escalates often


def feasible(plan: torch.Tensor, context: object) -> bool:
    """Free space is a disc around the origin."""
    return bool(plan.norm(dim=1).max() < 2.2)


def build(seed: int, machine: Escalation = MACHINE, programs: str = "loops") -> Supervisor:
    """The supervisor to be deployed, for one episode; no deadline binds here."""
    certified = CertifiedPrograms(cases.fast("closed", programs), feasible)
    runner = InProcess(certified, cases.VirtualClock())
    return Supervisor(runner, machine, budget=1.0, seed=seed)


def drive(supervise: Supervise, seed: int) -> None:
    """Three calls; damping shortens the move, a hold stays where it is."""
    context = cases.starts(1, seed)
    for _ in range(3):
        command = supervise(Observation(context, 0.0), 0.0)
        if isinstance(command.action, Execute) and command.plan is not None:
            move = 0.6 * context + 0.4 * command.plan[None, 1] - context
            context = context + command.action.factor * move


BOTH = pytest.mark.parametrize("programs", ["loops", "tables"])


def tolerance(programs: str) -> float:
    """Of the certificate that is escalated."""
    found = cases.certificate("closed", programs).tolerance
    assert found is not None
    return found


@BOTH
def test_the_escalated_program_is_certified_by_episodes_of_its_own(programs: str) -> None:
    commands: list[Command] = []

    def watched(supervise: Supervise, seed: int) -> None:
        def watching(observation: Observation, now: float) -> Command:
            commands.append(supervise(observation, now))
            return commands[-1]

        drive(watching, seed)

    verdict = certify_escalated(
        lambda seed: build(seed, programs=programs),
        watched,
        EPISODES,
        planner=cases.planner(),
        tolerance=tolerance(programs),
        risk=0.2,
    )
    done = {command.action.source for command in commands if isinstance(command.action, Execute)}
    assert done == {"cached", "resampled", "full"}
    assert verdict.calls == len(commands) == 3 * EPISODES
    assert verdict.holds == sum(isinstance(command.action, Hold) for command in commands)
    assert verdict.allowed == order_statistic(EPISODES, 0.2, 0.95) - 1
    assert verdict.certified == (verdict.violations <= verdict.allowed)
    assert verdict.certified
    assert "At most 20.0% of new episodes" in verdict.promise()
    assert "(root mean square a step)" in verdict.promise()  # in words, no name of a function


def test_a_metric_of_plans_and_contexts_is_given_the_context_of_the_call() -> None:
    met: list[torch.Tensor] = []

    def near_start(full: torch.Tensor, fast: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        assert isinstance(context, torch.Tensor) and len(context) == len(full)
        met.append(context)
        return (fast - full).norm(dim=(1, 2)) / (1.0 + context.norm(dim=1))

    verdict = certify_escalated(
        build, drive, EPISODES, planner=cases.planner(), tolerance=10.0, metric=near_start, risk=0.2
    )
    assert verdict.certified and len(met) == verdict.calls - verdict.holds


@BOTH
def test_the_deviation_is_that_of_the_executed_plan_from_full_compute_on_its_own_noise(
    programs: str,
) -> None:
    planner = cases.planner()
    by_hand: list[float] = []

    def watched(supervise: Supervise, seed: int) -> None:
        worst = [0.0]

        def watching(observation: Observation, now: float) -> Command:
            command = supervise(observation, now)
            if command.plan is not None and command.seed is not None:
                noise = planner.draw_noise(seeds=[command.seed])
                full = planner.sample(observation.context, noise=noise)
                worst.append(float(rms_step(full, command.plan[None])[0]))
                if isinstance(command.action, Execute) and command.action.source == "full":
                    assert worst[-1] == 0.0
            return command

        drive(watching, seed)
        by_hand.append(max(worst))

    limit = tolerance(programs)
    verdict = certify_escalated(
        lambda seed: build(seed, programs=programs),
        watched,
        EPISODES,
        planner=planner,
        tolerance=limit,
        risk=0.2,
    )
    np.testing.assert_allclose(verdict.excess * limit, by_hand, rtol=1e-6)
    assert max(by_hand) > 0.0


def test_a_promise_that_is_broken_is_not_given() -> None:
    never = Escalation(allowed=VARIANTS["muninn-only"])
    verdict = certify_escalated(
        lambda seed: build(seed, never),
        drive,
        EPISODES,
        planner=cases.planner(),
        tolerance=1e-6,
        risk=0.2,
    )
    assert not verdict.certified
    assert verdict.violations > verdict.allowed
    assert verdict.promise().startswith("No promise")


@BOTH
def test_an_override_on_the_same_noise_never_deviates_more_in_open_loop(programs: str) -> None:
    """So a certificate of single calls covers full-compute overrides without a new calibration."""
    override = Escalation(
        warn=0.3, resample=0.3, full=0.3, clear=0.2, allowed=VARIANTS["full-override"]
    )
    never = Escalation(allowed=VARIANTS["muninn-only"])
    planner = cases.planner()
    better = 0
    for call in range(30):
        context = cases.starts(1, call)
        found = []
        for machine in (never, override):
            command = build(call, machine, programs).supervise(Observation(context, 0.0), 0.0)
            if command.plan is None or command.seed is None:
                break
            full = planner.sample(context, noise=planner.draw_noise(seeds=[command.seed]))
            found.append(float(rms_step(full, command.plan[None])[0]))
        if len(found) == 2:
            assert found[1] <= found[0]
            better += found[1] < found[0]
    assert better > 5


def test_refusals() -> None:
    planner = cases.planner()
    with pytest.raises(CalibrationError, match="at least 59"):
        certify_escalated(build, drive, 58, planner=planner, tolerance=0.1)
    with pytest.raises(InputError, match="without planning"):
        certify_escalated(build, lambda supervise, seed: None, 59, planner=planner, tolerance=0.1)
