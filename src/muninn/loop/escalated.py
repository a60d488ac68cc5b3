"""Certify a program that escalates, as one member: unit episode, escalation and deadlines included.

The cached program's certificate does not cover it in closed loop: damping, other samples and
overrides lead the robot to other states, and a sample that was selected is not a random one. So the
supervisor that will be deployed drives fresh episodes, full compute runs beside every plan it
executes, on that plan's own noise, and the worst call of each episode counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from muninn.certify.metrics import (
    Metric,
    Tolerance,
    in_words,
    measure,
    metric_name,
    resolve,
    tolerances,
)
from muninn.certify.paired import call_seed, full_compute
from muninn.certify.risk import require_units
from muninn.errors import InputError
from muninn.loop.supervisor import Command, Observation, Supervisor
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray

Supervise = Callable[[Observation, float], Command]


@dataclass(frozen=True)
class EscalatedVerdict:
    """Whether an escalated program keeps its promise."""

    excess: FloatArray  # worst deviation over tolerance of each episode, (episodes,)
    allowed: int  # episodes that might have exceeded the tolerance
    calls: int
    holds: int  # calls that executed no plan
    tolerance: float | str  # a number, or the name of the function
    risk: float
    confidence: float | None
    metric: str

    @property
    def violations(self) -> int:
        """Episodes beyond the tolerance."""
        return int(np.count_nonzero(self.excess > 1.0))

    @property
    def certified(self) -> bool:
        """Whether there is a promise."""
        return self.violations <= self.allowed

    def promise(self) -> str:
        """The promise in one plain sentence, or that there is none."""
        seen = f"{self.violations} of {len(self.excess)} episodes exceeded {self.tolerance}"
        if not self.certified:
            return f"No promise: {seen} ({in_words(self.metric)}), {self.allowed} were allowed."
        certainty = "averaged over calibrations"
        if self.confidence is not None:
            certainty = f"with confidence {self.confidence:.0%} over the calibration draw"
        return (
            f"At most {self.risk:.1%} of new episodes execute a plan that deviates from full "
            f"compute by more than {self.tolerance} ({in_words(self.metric)}), {certainty}, for "
            f"episodes like those driven ({seen}; {self.holds} of {self.calls} calls held)."
        )


def certify_escalated(
    build: Callable[[int], Supervisor],
    drive: Callable[[Supervise, int], None],
    episodes: int,
    *,
    planner: Planner,
    tolerance: Tolerance,
    metric: str | Metric = "rms_step",
    risk: float = 0.05,
    confidence: float | None = 0.95,
    reference: Planner | None = None,
    seed: int = 0,
) -> EscalatedVerdict:
    """Drive fresh episodes with the supervisor to be deployed and count those that deviate.

    The program must be frozen before: its certificate, which the ranks refer to, comes from other
    episodes. The seeds used here are none of :func:`muninn.calibrate`'s.

    Args:
        build: ``build(seed)`` makes the supervisor of one episode, its noise drawn from the seed.
            Where deadlines bind, its runner must be late as often as the robot's: give it the
            latencies recorded there, on a virtual clock.
        drive: ``drive(supervise, seed)`` runs one episode, acting on every command.
        episodes: how many to drive; 59 at least for the defaults, fewer are a CalibrationError.
        planner: what is cached; draws the noise.
        tolerance, metric, risk, confidence, reference: as in :func:`muninn.calibrate`.
        seed: of the episodes.
    """
    name, deviation = resolve(metric)
    allowed = require_units(episodes, risk, confidence, "episodes") - 1
    excess = np.zeros(episodes)
    calls = holds = 0
    supervisor: Supervisor
    seen: list[float]

    def supervise(observation: Observation, now: float) -> Command:
        command = supervisor.supervise(observation, now)
        if command.plan is None or command.seed is None:
            seen.append(0.0)  # a hold executes no plan, so none deviates
            return command
        noise = planner.draw_noise(seeds=[command.seed])
        full = full_compute(reference or planner, observation.context, noise).cpu()
        found = measure(deviation, full, command.plan[None].to(full.dtype), observation.context)
        seen.append(float(found[0] / tolerances(tolerance, observation.context, 1)[0]))
        return command

    for unit in range(episodes):
        supervisor, seen = build(call_seed(seed, unit, 0, 0, 0)), []
        drive(supervise, call_seed(seed, unit, 1, 0, 0))
        if not seen:
            raise InputError(f"episode {unit} ended without planning once; check drive()")
        excess[unit] = max(seen)
        calls += supervisor.log.calls
        holds += sum(supervisor.log.holds.values())
    limit = metric_name(tolerance) if callable(tolerance) else float(tolerance)
    return EscalatedVerdict(excess, allowed, calls, holds, limit, risk, confidence, name)
