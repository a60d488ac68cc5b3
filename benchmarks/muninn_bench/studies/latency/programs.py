"""The programs that are timed, all with about the same number of evaluations per call.

A gate's threshold is found by bisection on a few calls, so that static plans, gates and the
paper's gate are compared at equal work.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from muninn.certify.frontier import Frontier
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.engines.rounds import RoundRuntime
from muninn.model.schedule import FloatArray
from muninn.paper.gates import Threshold
from muninn.paper.policy import ProbedPlanner
from muninn.paper.split import Probe, split_of
from muninn.programs.caches import forecast
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, AnyProgram, Program
from muninn.programs.spacing import sampler_states, spread_steps
from muninn_bench.measure.alternatives import Alternative, AlternativeSearch
from muninn_bench.studies.latency.variants import SEED, TUNING_CALLS, TimedVariant

FORECAST = Forecast("sample", order=1, look_back=True)
"""The clean trajectory, linear, with look-back."""

SHARE = 0.03  # of tuning calls that a score may leave out, as in muninn.certify.tune
GATE_CALLS = 4
MARGIN = 0.9
"""Of the largest threshold that reaches the cap in the tuning calls, so that others do as well."""

OWN_TUNING_CALLS, OWN_CAP = 16, 1.5
OWN_SLACK = 0.25  # evaluations


def bisect(
    evaluations: Callable[[float], float],
    wanted: float,
    low: float = 1e-7,
    high: float = 1e3,
    trials: int = 14,
    slack: float = 0.0,
) -> float:
    """The largest threshold, to the trials' resolution, that still asks for ``wanted`` evaluations.

    ``evaluations`` of a threshold fall as it grows. The interval is halved on a logarithmic scale;
    evaluations at most ``slack`` above the wanted ones are near enough to stop.

    >>> round(bisect(lambda threshold: 100.0 / threshold, 25.0, 1e-3, 1e3, trials=30), 4)
    4.0
    """
    for _ in range(trials):
        middle = math.sqrt(low * high)
        found = evaluations(middle)
        low, high = (middle, high) if found >= wanted else (low, middle)
        if slack and wanted <= found <= wanted + slack:
            break
    return low


class TunedPrograms:
    """Programs of one planner with ``count`` evaluations, each tuned when first asked for.

    Plans and alternatives are tuned on ``tuning`` calls, at most as many as the variant has.
    """

    def __init__(self, variant: TimedVariant, count: int, tuning: int = TUNING_CALLS) -> None:
        self.variant = variant
        self.planner = variant.planner
        self.count = count
        self.full = Program.full(self.planner.sampler.kind)
        self._calls: PairedCalls | None = None
        if variant.tuning is not None:
            contexts = variant.tuning[:tuning]
            self._calls = PairedCalls(self.planner, contexts, len(contexts), rms_step, SEED + 1)

    @functools.cached_property
    def static(self) -> AnyProgram:
        """The best table of the frontier; evaluations spread evenly where weights are random."""
        if self._calls is not None:
            return Frontier(self._calls, 1.0, SHARE).best(self.count).program
        states = sampler_states(self.planner.sampler)
        evenly = [states[step] for step in spread_steps(len(states), self.count)]
        return forecast(self.planner.sampler, evenly, FORECAST.quantity, FORECAST.order)

    @functools.cached_property
    def _alternatives(self) -> AlternativeSearch | None:
        return None if self._calls is None else AlternativeSearch(self._calls, 1.0, SHARE)

    def alternative(self, name: str) -> Alternative:
        """What a user would pick instead, tuned on the same calls as the static plan."""
        if self._alternatives is None:
            return Alternative.untuned(name, self.planner, self.count)
        return self._alternatives.best(self.count, [name])[name]

    def _spent(self, threshold: float, cap: int, calls: int) -> FloatArray:
        """Evaluations of a gate in each of the first calls."""
        context, noise = self.variant.batch(calls)
        program = Program(FORECAST, Adaptive(threshold, cap=cap))
        _, record = RoundRuntime(self.planner, program)(context, noise=noise)
        return record.evaluations.astype(float)

    @functools.cached_property
    def _tight(self) -> float:
        """Threshold at which nearly every call reaches a cap of ``count`` evaluations."""
        spent = functools.partial(self._spent, cap=self.count, calls=GATE_CALLS)
        return MARGIN * bisect(lambda tried: spent(tried).min(), self.count)

    def capped(self, ratio: float) -> Program:
        """A gate with ``ratio`` times the cap: rows of a batch differ in evaluations."""
        return Program(FORECAST, Adaptive(self._tight, cap=round(ratio * self.count)))

    @property
    def gated(self) -> Program:
        """A gate with a hard cap of ``count`` evaluations, which nearly every call reaches."""
        return self.capped(1.0)

    @functools.cached_property
    def gated_own(self) -> Program:
        """A gate with ``count`` evaluations in the mean: easy calls spend fewer, hard ones more.

        Tuned on calls that are timed; its cap is :data:`OWN_CAP` times the mean, to be reached
        seldom.
        """
        cap = round(OWN_CAP * self.count)
        spent = functools.partial(self._spent, cap=cap, calls=OWN_TUNING_CALLS)
        threshold = bisect(lambda tried: spent(tried).mean(), self.count, slack=OWN_SLACK)
        return Program(FORECAST, Adaptive(threshold, cap=cap))

    @functools.cached_property
    def paper(self) -> ProbedPlanner:
        """The paper's probe with a threshold, at least ``count`` evaluations in the tuning calls.

        Reuse is allowed at every step but the first and the last; the published band, a tenth at
        either end, alone takes 20 of 100 evaluations.
        """
        context, noise = self.variant.batch(GATE_CALLS)
        probe = Probe(split_of(self.planner.denoiser))
        eligible = range(1, len(self.planner.sampler) - 1)

        def gate(threshold: float) -> ProbedPlanner:
            return ProbedPlanner(self.planner, probe, Threshold(threshold), eligible=eligible)

        def mean(threshold: float) -> float:
            return float(gate(threshold)(context, noise=noise)[1].evaluations.mean())

        # Every trial is a call with up to all evaluations: narrow from where scores lie.
        return gate(bisect(mean, self.count, 1e-5, 1e1, trials=12, slack=0.5))
