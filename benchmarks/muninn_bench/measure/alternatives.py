"""What a user would pick instead of Muninn, given what Muninn gets: spacing and order tuned.

Every comparison takes its alternatives from here. They are tuned on tuning calls, never on test
calls, by the score of Muninn's own :class:`muninn.certify.search.Search`: the deviation over
tolerance that all but the allowed share of the calls stay below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
from muninn.certify.search import Candidate, Search
from torch import Tensor

from muninn.certify.metrics import Tolerance, measure
from muninn.certify.paired import PairedCalls
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.programs.anchors import SegmentModel, spread_steps
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Static
from muninn_bench.measure.baselines import (
    State,
    distinct,
    sampler_states,
    spacings,
    trained_states,
    visiting,
)
from muninn_bench.measure.multistep import ORDERS, MultistepPlanner, Solver
from muninn_bench.measure.protocol import Run, batches, fixed_cost
from muninn_bench.measure.taylor import TaylorPlanner

Sample = Callable[..., Tensor]
"""``sample(context, noise=noise)``: trajectories (batch, horizon, dim)."""

FEWSTEPS, TAYLOR = "fewsteps", "taylor"
METHODS: dict[str, tuple[int, ...]] = {
    FEWSTEPS: (1,),
    **{str(solver): orders for solver, orders in ORDERS.items()},
    TAYLOR: (1, 2),
}
"""Names of the alternatives, and the orders that are tried of each."""

FIRST_CALLS = 16
KEEP = 3
"""All spacings are tried on the first tuning calls; the best of them, with every order, on all."""

EMPHASES = (-4.0, -2.0, 0.0)
"""Of the shortest paths, as in :mod:`muninn.certify.search`."""


@dataclass(frozen=True)
class Alternative:
    """A sampler with few evaluations, as it came out of tuning."""

    name: str  # one of METHODS
    order: int  # of the solver or the series
    spacing: str  # how its states were found
    states: tuple[State, ...]  # at which the network is evaluated, noisiest first
    excess: float  # its score on the tuning calls
    calls: int  # how many they were

    @property
    def evaluations(self) -> int:
        """Of a call."""
        return len(self.states)

    def sample(self, planner: Planner) -> Sample:
        """The alternative on a planner: that of tuning, or one with the same model and sampler."""
        return _sample(self.name, self.order, self.states, planner)

    def run(self, planner: Planner) -> Run:
        """The same as a method of a comparison."""
        return fixed_cost(self.sample(planner), self.evaluations)

    def to_json(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {**vars(self), "states": [list(state) for state in self.states]}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Alternative:
        """The inverse of :meth:`to_json`."""
        return cls(**{**stored, "states": tuple(State(*state) for state in stored["states"])})

    @classmethod
    def untuned(cls, name: str, planner: Planner, count: int) -> Alternative:
        """Evenly spread over the sampler's own steps, for networks whose plans mean nothing."""
        states = sampler_states(planner.sampler)
        visited = tuple(states[step] for step in spread_steps(len(states), count))
        return cls(name, _middle(name), "even", visited, math.nan, 0)

    def tuned(self) -> dict[str, Any]:
        """What a result says of it (docs/architecture.md)."""
        every = {**vars(self), "timesteps": [state.timestep for state in self.states]}
        return {key: every[key] for key in ("order", "spacing", "timesteps", "excess", "calls")}


def _middle(name: str) -> int:
    """The order that spacings are first tried with."""
    orders = METHODS[name]
    return orders[(len(orders) - 1) // 2]


def _sample(name: str, order: int, states: Sequence[State], planner: Planner) -> Sample:
    if name == FEWSTEPS:
        return visiting(planner, states).sample
    if name == TAYLOR:
        step_of = {state: step for step, state in enumerate(sampler_states(planner.sampler))}
        return TaylorPlanner(planner, [step_of[state] for state in states], order).sample
    return MultistepPlanner(planner, states, cast(Solver, name), order).sample


class AlternativeSearch:
    """The best of every alternative at a number of evaluations; a function of its calls alone.

    ``paired`` are tuning calls, none of them tested on; ``share`` is that of calls that may exceed
    the tolerance, as Muninn's tuner has it; ``alpha_bar`` is the model's training table, for
    samplers that skip trained timesteps.

    Raises:
        InputError: the sampler is stochastic. Solvers of the deterministic equation would be
            straw men there; tune them for the same model with a deterministic sampler.
    """

    def __init__(
        self,
        paired: PairedCalls,
        tolerance: Tolerance,
        share: float,
        alpha_bar: FloatArray | None = None,
    ) -> None:
        sampler = paired.planner.sampler
        if sampler.stochastic:
            raise InputError(
                f"{sampler.name!r} is stochastic, and these alternatives are deterministic: tune "
                "them for a planner with the same model and a deterministic sampler"
            )
        self._paired = paired
        self._share = share
        self._tolerance = paired.tolerance(tolerance, list(range(paired.count)))
        self._states = trained_states(sampler, alpha_bar)
        self._static = Search(paired, tolerance, share)
        self._scores: dict[tuple[str, int, tuple[State, ...], int], float] = {}

    def best(self, count: int, names: Sequence[str] | None = None) -> dict[str, Alternative]:
        """Every alternative at ``count`` evaluations a call, tuned.

        ``count`` is at least 2 and at most the sampler's steps; ``names`` are by default all that
        fit the sampler and what is installed.
        """
        offered = available(self._paired.planner)
        unknown = [name for name in names or () if name not in offered]
        if unknown:
            raise InputError(
                f"no alternative {', '.join(unknown)} here; choose from {', '.join(offered)}"
            )
        return {name: self._best(name, count) for name in (names or offered)}

    def _best(self, name: str, count: int) -> Alternative:
        own = self._states if name != TAYLOR else sampler_states(self._paired.planner.sampler)
        ways = self._spacings(own, count)
        first = sorted(
            (self._score(name, _middle(name), states, FIRST_CALLS), place)
            for place, states in enumerate(ways.values())
        )
        kept = [list(ways)[place] for _, place in first[:KEEP]]
        excess, place, order = min(
            (self._score(name, order, ways[spacing], self._paired.count), place, order)
            for place, spacing in enumerate(kept)
            for order in METHODS[name]
        )
        spacing = kept[place]
        return Alternative(name, order, spacing, ways[spacing], excess, self._paired.count)

    def _spacings(self, states: Sequence[State], count: int) -> dict[str, tuple[State, ...]]:
        """Simple spacings, and shortest paths over errors priced as for Muninn's static plans."""
        found = dict(spacings(states, count))
        sampler = self._paired.planner.sampler
        at = {state.timestep: float(place) for place, state in enumerate(states)}
        held = [quantity for quantity in sampler.kinds if quantity != "v"]
        forecasts = [Forecast(quantity, 0, look_back=False) for quantity in held]
        forecasts.append(Forecast("sample", 1, look_back=True))
        for forecast in forecasts:
            for emphasis in EMPHASES:
                candidate = Candidate(forecast, SegmentModel(0.5, emphasis))
                plan = self._static.program(candidate, count).plan
                assert isinstance(plan, Static)
                if len(plan.anchors) == count:
                    places = [at[sampler.steps[step].timestep] for step in plan.anchors]
                    name = f"shortest path, {forecast.quantity} {forecast.order}, {emphasis:g}"
                    found[name] = distinct(np.array(places), len(states))
        ways: dict[tuple[State, ...], str] = {}
        for name, chosen in found.items():
            ways.setdefault(tuple(states[place] for place in chosen), name)
        return {name: visited for visited, name in ways.items()}

    def _score(self, name: str, order: int, states: tuple[State, ...], most_calls: int) -> float:
        """Deviation over tolerance that all but the share of the first calls stay below."""
        paired, count = self._paired, min(most_calls, self._paired.count)
        key = (name, order, states, count)
        if key not in self._scores:
            run = fixed_cost(_sample(name, order, states, paired.planner), len(states))
            excess = deviations(run, paired, count) / self._tolerance[:count]
            # "lower", as in muninn.certify.search: one call that changes its mode must not decide
            self._scores[key] = float(np.quantile(excess, 1.0 - self._share, method="lower"))
        return self._scores[key]


def deviations(run: Run, paired: PairedCalls, count: int) -> FloatArray:
    """Deviations of a method from full compute on the first ``count`` calls; inf if it fails."""
    parts = []
    for calls in batches(paired, count):
        plans, _ = run(paired.contexts(calls), paired.noise(calls))
        full = paired.full(calls)
        failed = ~plans.isfinite().flatten(1).all(dim=1)
        plans[failed] = full[failed].to(plans.dtype)
        parts.append(np.where(failed.cpu(), np.inf, measure(paired.metric, full, plans)))
    return np.concatenate(parts)


def available(planner: Planner) -> tuple[str, ...]:
    """The alternatives that a planner has here: no diffusion solver for a flow."""
    if planner.sampler.flow or find_spec("diffusers") is None:
        return FEWSTEPS, TAYLOR
    return tuple(METHODS)


def every_order(planner: Planner, names: Sequence[str] | None = None) -> list[Alternative]:
    """The alternatives on all of the sampler's own steps, in every order."""
    return [
        replace(Alternative.untuned(name, planner, len(planner.sampler)), order=order)
        for name in (names or available(planner))
        for order in METHODS[name]
    ]
