"""One planning call of a robot, from an observation to an action, whatever the planner does.

    with WorkerProcess(build) as worker:                       # build() -> CertifiedPrograms
        supervisor = Supervisor(worker, Escalation(), needs=times.needs(), budget=0.1)
        command = supervisor.supervise(Observation(context, taken), now=time.monotonic())

A command executes a screened plan of this very call, or holds and says why. No exception leaves
:meth:`Supervisor.supervise`; with a worker process it answers by the deadline.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.context import Context
from muninn.errors import InputError
from muninn.loop.deadline import LatencyLog
from muninn.loop.escalation import Ask, Candidate, Escalation, Execute, Hold, Needs, Stage, State
from muninn.loop.request import Reply, Request
from muninn.loop.worker import Failure, Runner


@dataclass(frozen=True)
class Observation:
    """What the robot knows: a context of one row, and when it was sensed, on the runner's clock."""

    context: Context
    taken: float


@dataclass(frozen=True)
class CallReport:
    """What happened in one call; plain values, for telemetry.

    Attributes:
        call: its number, from 0.
        began, finished, deadline: on the runner's clock.
        mode: after the call's signal.
        signal: rank (or the paper's rho) of the certified plan; None if there was none.
        action: ``execute`` or ``hold``.
        estimate, source, factor: of the plan that is executed.
        reason: why it held, or did less than the mode asks for.
        fallback: why the certified program was run with full compute, if it was.
        evaluations: denoiser evaluations of all plans of the call.
        asked: sources that were asked for plans, in order.
        late: a plan was asked for and the deadline passed.
    """

    call: int
    began: float
    finished: float
    deadline: float
    mode: str
    signal: float | None
    estimate: float | None
    action: str
    source: str | None
    factor: float | None
    reason: str | None
    fallback: str | None
    evaluations: int
    asked: tuple[str, ...]
    late: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Command:
    """What the robot is to do now.

    Attributes:
        action: :class:`Execute`, or :class:`Hold`: the platform's safety action, for this call.
        plan: to execute, (horizon, dim); None for a hold.
        seed: of the noise the plan was drawn from, so that full compute can be run beside it.
    """

    action: Execute | Hold
    plan: Tensor | None
    seed: int | None
    report: CallReport


class Supervisor:
    """Ties planner, escalation and deadline together.

    Args:
        runner: where plans are computed.
        escalation: the machine.
        needs: worst times, from :meth:`muninn.loop.deadline.Times.needs`; zeros try everything.
        budget: seconds from ``now`` to the deadline of a call.
        oldest: seconds that an observation may be old when a call begins.
        seed: of all noise.

    Attributes:
        state: mode and hysteresis; a new episode may set ``State()``.
        alarm: set it, to the reason, to have every call planned with full compute (an alarm of the
            monitor); None to trust the certified program again.
        log: latencies, misses and reasons for holding.
    """

    def __init__(
        self,
        runner: Runner,
        escalation: Escalation,
        *,
        budget: float,
        oldest: float = math.inf,
        needs: Needs | None = None,
        seed: int = 0,
    ) -> None:
        if not budget > 0.0 or not oldest > 0.0:
            raise InputError(f"budget and oldest are positive seconds, got {budget} and {oldest}")
        self.runner = runner
        self.escalation = escalation
        self.needs = needs or Needs()
        self.budget = budget
        self.oldest = oldest
        self.seed = seed
        self.state = State()
        self.alarm: str | None = None
        self.log = LatencyLog()
        self._calls = 0
        self._last = -math.inf

    def supervise(self, observation: Observation, now: float) -> Command:
        """The command for an observation; ``now`` is the runner's clock at the robot's tick."""
        turn = _Turn(self._calls, now, now, now + self.budget)
        self._calls += 1
        try:
            action = self._run(turn, observation)
        except Exception as error:  # a robot must be answered, whatever broke
            action = Hold(f"{type(error).__name__}: {error}")
        if turn.signal is None:
            self.state = self.escalation.observe(self.state, math.nan)
        self._last = turn.at if math.isfinite(turn.at) else self._last
        return self._command(turn, action)

    def _run(self, turn: _Turn, observation: Observation) -> Execute | Hold:
        refusal = self._refusal(turn, observation)
        call = Stage(turn.deadline, self.needs, failure=refusal, alarm=self.alarm)
        if refusal is None:
            call = self._look_at_clock(turn, call)
        while isinstance(action := self.escalation.step(self.state.mode, call, turn.at), Ask):
            request = Request(action.source, observation.context, self._seeds(turn.call, action))
            turn.asked.append(action.source)
            reply = self.runner.ask(request, turn.deadline)
            call = self._look_at_clock(turn, self._take(turn, call, request, reply))
        return action

    def _refusal(self, turn: _Turn, observation: Observation) -> str | None:
        """Why no plan can be made for this observation at this time."""
        if not math.isfinite(turn.began):
            return f"the time is {turn.began}"
        if turn.began < self._last:
            return f"the clock went back by {self._last - turn.began:.3g} s"
        age = turn.began - observation.taken
        if not age >= 0.0:
            return f"the observation was taken {-age:.3g} s from now; its clock is another one"
        if age > self.oldest:
            return f"the observation is {age:.3g} s old, more than {self.oldest:g} s"
        return None

    def _look_at_clock(self, turn: _Turn, call: Stage) -> Stage:
        before, turn.at = turn.at, self.runner.clock()
        if not turn.at >= before:
            call = replace(call, failure=f"the clock went back by {before - turn.at:.3g} s")
        return call

    def _seeds(self, call: int, ask: Ask) -> tuple[int, ...]:
        """Full compute repeats the certified plan's noise; candidates have noise of their own."""
        first = 1 if ask.source == "resampled" else 0
        return tuple(call_seed(self.seed, call, first + draw) for draw in range(ask.count))

    def _take(self, turn: _Turn, call: Stage, request: Request, reply: Reply | Failure) -> Stage:
        if isinstance(reply, Failure):
            return replace(call, failure=reply.reason)
        source, rows = request.source, len(request.seeds)
        record, came = reply.record, len(reply.trajectories)
        if not rows == came == len(reply.flaws) == len(record.estimate):
            return replace(call, failure=f"{rows} plans were asked for, {came} came")
        turn.replies[source] = (request, reply)
        found = tuple(
            Candidate(
                float(record.estimate[row]),
                # The responder's verdict; that a plan is finite is checked here once more.
                reply.flaws[row] if plan.isfinite().all() else "the plan is not finite",
                source == "full" or record.fallback[row] is not None,
            )
            for row, plan in enumerate(reply.trajectories)
        )
        if source == "resampled":
            return replace(call, resampled=found)
        if source == "full":
            return replace(call, full=found[0])
        # A plan of full compute says nothing about how hard this call is to cache.
        signal = math.nan if found[0].full else float(self.escalation.signal(record)[0])
        if not math.isnan(signal):
            turn.signal = signal
            self.state = self.escalation.observe(self.state, signal)
        return replace(call, cached=found[0])

    def _command(self, turn: _Turn, action: Execute | Hold) -> Command:
        plan, seed, estimate = None, None, None
        executed = action if isinstance(action, Execute) else None
        if executed is not None:
            request, reply = turn.replies[executed.source]
            plan, seed = reply.trajectories[executed.row], request.seeds[executed.row]
            estimate = float(reply.record.estimate[executed.row])
        # A runner stops waiting at the deadline itself: a hold then is a miss.
        end = turn.at > turn.deadline if executed else turn.at >= turn.deadline
        late = end and bool(turn.asked)
        took = turn.at - turn.began
        held = None if executed else action.reason
        self.log.add(took if took >= 0.0 else 0.0, late=late, hold=held)  # a clock gone mad: NaN
        records = {source: reply.record for source, (_, reply) in turn.replies.items()}
        report = CallReport(
            turn.call,
            turn.began,
            turn.at,
            turn.deadline,
            self.state.mode.name.lower(),
            turn.signal,
            estimate,
            "execute" if executed else "hold",
            executed.source if executed else None,
            executed.factor if executed else None,
            action.reason,
            records["cached"].fallback[0] if "cached" in records else None,
            sum(int(record.evaluations.sum()) for record in records.values()),
            tuple(turn.asked),
            late,
        )
        return Command(action, plan, seed, report)


@dataclass
class _Turn:
    """What one call has gathered; lives and dies inside :meth:`Supervisor.supervise`."""

    call: int
    began: float
    at: float
    deadline: float
    asked: list[str] = field(default_factory=list)
    replies: dict[str | int, tuple[Request, Reply]] = field(default_factory=dict)
    signal: float | None = None
