"""One planning call of a robot, from an observation to an action, whatever the planner does.

    with WorkerProcess(build) as worker:                       # build() -> CertifiedPrograms
        supervisor = Supervisor(worker, Escalation(), needs=times.needs(), budget=0.1)
        command = supervisor.supervise(Observation(context, taken), now=time.monotonic())

A command executes a screened plan of this very call, or holds and says why. No exception leaves
:meth:`Supervisor.supervise`; with a worker process it answers by the deadline.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.context import Context
from muninn.errors import InputError
from muninn.loop.deadline import LatencyLog
from muninn.loop.escalation import Candidate, Escalation, Execute, Hold, Needs, Stage, State
from muninn.loop.request import Reply, Request
from muninn.loop.worker import Runner


@dataclass(frozen=True)
class Observation:
    """What the robot knows: a context of one row, and when it was sensed, on the runner's clock."""

    context: Context
    taken: float


@dataclass
class CallReport:
    """What happened in one call; plain values, for telemetry, filled in while it lasts."""

    call: int  # from 0
    began: float  # on the runner's clock, like the next two
    finished: float
    deadline: float
    mode: str = ""  # after the call's signal
    signal: float | None = None  # the rank (or the paper's rho) of the certified plan
    estimate: float | None = None  # of the plan that is executed, like source and factor
    action: str = "hold"  # or "execute"
    source: str | None = None
    factor: float | None = None
    reason: str | None = None  # why it held, or did less than the mode asks for
    fallback: str | None = None  # why the certified program was run with full compute
    evaluations: int = 0  # of all plans that were asked for
    asked: tuple[str, ...] = ()
    late: bool = False  # a plan was asked for and the deadline passed

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Command:
    """What the robot is to do now."""

    action: Execute | Hold
    plan: Tensor | None  # to execute, (horizon, dim); None for a hold
    seed: int | None  # of the plan's noise, so that full compute can be run beside it
    report: CallReport


@dataclass(eq=False)
class Supervisor:
    """Ties planner, escalation and deadline together.

    ``alarm``, set to a reason, has every call planned with full compute (an alarm of the monitor);
    None trusts the certified program again. A new episode may set ``state`` to ``State()``.
    """

    runner: Runner  # where plans are computed
    escalation: Escalation
    _: KW_ONLY
    budget: float  # seconds from ``now`` to the deadline of a call
    oldest: float = math.inf  # seconds that an observation may be old when a call begins
    needs: Needs | None = None  # worst times, from Times.needs(); None tries everything
    seed: int = 0  # of all noise
    state: State = field(default_factory=State, init=False)  # mode and hysteresis
    alarm: str | None = field(default=None, init=False)
    log: LatencyLog = field(default_factory=LatencyLog, init=False)
    _calls: int = field(default=0, init=False)
    _last: float = field(default=-math.inf, init=False)

    def __post_init__(self) -> None:
        if not self.budget > 0.0 or not self.oldest > 0.0:
            raise InputError(
                f"budget and oldest are positive seconds, got {self.budget} and {self.oldest}"
            )

    def supervise(self, observation: Observation, now: float) -> Command:
        """The command for an observation; ``now`` is the runner's clock at the robot's tick."""
        report = CallReport(self._calls, now, now, now + self.budget)
        self._calls += 1
        try:
            command = self._run(report, observation)
        except Exception as error:  # a robot must be answered, whatever broke
            command = Command(Hold(f"{type(error).__name__}: {error}"), None, None, report)
        if report.signal is None:
            self.state = self.escalation.observe(self.state, math.nan)
        self._last = report.finished if math.isfinite(report.finished) else self._last
        report.mode, report.reason = self.state.mode.name.lower(), command.action.reason
        # A runner stops waiting at the deadline itself: a hold then is a miss. No plan is late.
        held = isinstance(command.action, Hold)
        report.late = held and bool(report.asked) and report.finished >= report.deadline
        took = max(0.0, report.finished - report.began)  # 0 for a clock gone mad, NaN included
        self.log.add(took, late=report.late, hold=report.reason if held else None)
        return command

    def _run(self, report: CallReport, observation: Observation) -> Command:
        refusal = self._refusal(report.began, observation)
        call = Stage(report.deadline, self.needs or Needs(), failure=refusal, alarm=self.alarm)
        if refusal is None:
            call = self._look_at_clock(report, call)
        answered: dict[str, tuple[Request, Reply]] = {}
        while True:
            action = self.escalation.step(self.state.mode, call, report.finished)
            if isinstance(action, Hold):
                return Command(action, None, None, report)
            if isinstance(action, Execute):
                request, reply = answered[action.source]
                plan, seed = reply.trajectories[action.row], request.seeds[action.row]
                report.action, report.source = "execute", action.source
                report.factor = action.factor
                report.estimate = float(reply.record.estimate[action.row])
                return Command(action, plan, seed, report)
            # Full compute repeats the certified plan's noise; candidates have noise of their own.
            first = 1 if action.source == "resampled" else 0
            draws = range(first, first + action.count)
            seeds = tuple(call_seed(self.seed, report.call, draw) for draw in draws)
            request = Request(action.source, observation.context, seeds)
            report.asked += (action.source,)
            found = self.runner.ask(request, report.deadline)
            if isinstance(found, Reply):
                answered[action.source] = (request, found)
            call = self._look_at_clock(report, self._take(report, call, request, found))

    def _refusal(self, now: float, observation: Observation) -> str | None:
        """Why no plan can be made for this observation at this time."""
        if not math.isfinite(now):
            return f"the time is {now}"
        if now < self._last:
            return f"the clock went back by {self._last - now:.3g} s"
        age = now - observation.taken
        if not age >= 0.0:
            return f"the observation was taken {-age:.3g} s from now; its clock is another one"
        if age > self.oldest:
            return f"the observation is {age:.3g} s old, more than {self.oldest:g} s"
        return None

    def _look_at_clock(self, report: CallReport, call: Stage) -> Stage:
        before, report.finished = report.finished, self.runner.clock()
        if report.finished >= before:
            return call
        return replace(call, failure=f"the clock went back by {before - report.finished:.3g} s")

    def _take(self, report: CallReport, call: Stage, request: Request, reply: Reply | str) -> Stage:
        if isinstance(reply, str):
            return replace(call, failure=reply)
        record, rows, came = reply.record, len(request.seeds), len(reply.trajectories)
        if not rows == came == len(reply.flaws) == len(record.estimate):
            return replace(call, failure=f"{rows} plans were asked for, {came} came")
        report.evaluations += int(record.evaluations.sum())
        found = tuple(
            Candidate(
                float(record.estimate[row]),
                # The responder's verdict; that a plan is finite is checked here once more.
                reply.flaws[row] if plan.isfinite().all() else "the plan is not finite",
                request.source == "full" or record.fallback[row] is not None,
            )
            for row, plan in enumerate(reply.trajectories)
        )
        if request.source == "resampled":
            return replace(call, resampled=found)
        if request.source == "full":
            return replace(call, full=found[0])
        report.fallback = record.fallback[0]
        # A plan of full compute says nothing about how hard this call is to cache.
        signal = math.nan if found[0].full else float(self.escalation.signal(record)[0])
        if not math.isnan(signal):
            report.signal = signal
            self.state = self.escalation.observe(self.state, signal)
        return replace(call, cached=found[0])
