"""The programs that are timed, all with about the same number of evaluations per call.

A gate's threshold is found by bisection on a few calls, so that static plans, gates and the
paper's gate are compared at equal work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.search import MODELS, Candidate, Search
from muninn.engines.rounds import RoundRuntime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.paper.gates import Threshold
from muninn.paper.policy import ProbedPlanner
from muninn.paper.split import Probe, split_of
from muninn.programs.anchors import spread_steps
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Program, Static
from muninn_bench.measure.alternatives import Alternative, AlternativeSearch
from muninn_bench.studies.latency.subjects import SEED, TUNING_CALLS, Subject

GATE_CALLS = 4
SHARE = 0.03
"""Of tuning calls that may be left out of a score; the default of :func:`muninn.certify.tune.tune`."""

THRESHOLDS = (1e-7, 1e3)
TRIALS = 14
MARGIN = 0.9
"""Of the largest threshold that reaches the cap in the tuning calls, so that others do as well."""

OWN_TUNING_CALLS = 16
OWN_CAP = 1.5
OWN_SLACK = 0.25  # evaluations


def bisect(
    evaluations: Callable[[float], float],
    wanted: float,
    low: float = THRESHOLDS[0],
    high: float = THRESHOLDS[1],
    trials: int = TRIALS,
    slack: float = 0.0,
) -> float:
    """The largest threshold, to the trials' resolution, that still asks for ``wanted`` evaluations.

    Args:
        evaluations: per call at a threshold; falls as it grows.
        wanted: evaluations per call.
        low, high: enclose the threshold; halved on a logarithmic scale.
        trials: thresholds to try.
        slack: stop where evaluations are within this of what is wanted, at or above it.

    >>> round(bisect(lambda threshold: 100.0 / threshold, 25.0, 1e-3, 1e3, trials=30), 4)
    4.0
    """
    if not 0.0 < low < high:
        raise InputError(f"thresholds must satisfy 0 < low < high, got {low} and {high}")
    for _ in range(trials):
        middle = math.sqrt(low * high)
        found = evaluations(middle)
        if found >= wanted:
            low = middle
            if slack and found <= wanted + slack:
                break
        else:
            high = middle
    return low


class Programs:
    """Programs of one subject with ``count`` evaluations, each tuned when first asked for.

    Args:
        subject: the planner, and calls to tune on.
        count: evaluations of a call.
        tuning: calls to tune plans and alternatives on, at most as many as the subject has.
    """

    def __init__(self, subject: Subject, count: int, tuning: int = TUNING_CALLS) -> None:
        self.subject = subject
        self.count = count
        self._tuning = tuning

    @property
    def planner(self) -> Planner:
        """The subject's."""
        return self.subject.planner

    @functools.cached_property
    def forecast(self) -> Forecast:
        """The clean trajectory, linear, with look-back."""
        return Forecast("sample", order=1, look_back=True)

    @functools.cached_property
    def full(self) -> Program:
        """Full compute."""
        return Program.full(self.planner.sampler.kind)

    @functools.cached_property
    def static(self) -> Program:
        """Evaluations spread evenly, or the best shortest path where the network is trained."""
        even = Program(self.forecast, Static(spread_steps(len(self.planner.sampler), self.count)))
        if self._calls is None:
            return even
        search = Search(self._calls, 1.0, SHARE)
        paths = [search.program(Candidate(self.forecast, model), self.count) for model in MODELS]
        return min([even, *paths], key=lambda program: search.score(program).excess)

    def alternative(self, name: str) -> Alternative:
        """What a user would pick instead, tuned on the same calls as the static plan."""
        if self._alternatives is None:
            return Alternative.untuned(name, self.planner, self.count)
        return self._alternatives.best(self.count, [name])[name]

    @functools.cached_property
    def _alternatives(self) -> AlternativeSearch | None:
        return None if self._calls is None else AlternativeSearch(self._calls, 1.0, SHARE)

    @functools.cached_property
    def _calls(self) -> PairedCalls | None:
        contexts = self.subject.tuning
        if contexts is None:
            return None
        contexts = contexts[: self._tuning]
        return PairedCalls(self.planner, contexts, len(contexts), rms_step, SEED + 1)

    @functools.cached_property
    def gated(self) -> Program:
        """A gate with a hard cap of ``count`` evaluations, which nearly every call reaches."""
        context, noise = self.subject.batch(GATE_CALLS)

        def fewest(threshold: float) -> float:
            program = Program(self.forecast, Adaptive(threshold, cap=self.count))
            _, record = RoundRuntime(self.planner, program)(context, noise=noise)
            return float(record.evaluations.min())

        threshold = MARGIN * bisect(fewest, self.count)
        return Program(self.forecast, Adaptive(threshold, cap=self.count))

    @functools.cached_property
    def gated_own(self) -> Program:
        """A gate with ``count`` evaluations in the mean: easy calls spend fewer, hard ones more.

        Tuned on calls that are timed; its cap is :data:`OWN_CAP` times the mean, to be reached
        seldom.
        """
        context, noise = self.subject.batch(OWN_TUNING_CALLS)
        cap = round(OWN_CAP * self.count)

        def mean(threshold: float) -> float:
            program = Program(self.forecast, Adaptive(threshold, cap=cap))
            _, record = RoundRuntime(self.planner, program)(context, noise=noise)
            return float(record.evaluations.mean())

        threshold = bisect(mean, self.count, slack=OWN_SLACK)
        return Program(self.forecast, Adaptive(threshold, cap=cap))

    def capped(self, ratio: float) -> Program:
        """The same gate with ``ratio`` times the cap: rows of a batch differ in evaluations."""
        plan = self.gated.plan
        assert isinstance(plan, Adaptive)
        return Program(self.forecast, replace(plan, cap=round(ratio * self.count)))

    @functools.cached_property
    def paper(self) -> ProbedPlanner:
        """The paper's probe with a threshold, at least ``count`` evaluations in the tuning calls.

        Reuse is allowed at every step but the first and the last; the published band, a tenth at
        either end, alone takes 20 of 100 evaluations.
        """
        context, noise = self.subject.batch(GATE_CALLS)
        probe = Probe(split_of(self.planner.denoiser))
        eligible = range(1, len(self.planner.sampler) - 1)

        def gate(threshold: float) -> ProbedPlanner:
            return ProbedPlanner(self.planner, probe, Threshold(threshold), eligible=eligible)

        def mean(threshold: float) -> float:
            _, record = gate(threshold)(context, noise=noise)
            return float(record.evaluations.mean())

        # Every trial is a call with up to all evaluations: narrow from where scores lie.
        return gate(bisect(mean, self.count, 1e-5, 1e1, trials=12, slack=0.5))
