"""What a user would pick instead of Muninn, given what Muninn gets: spacing and order tuned.

Every comparison takes its alternatives from here. Each is a table of one published method, the
best that :class:`muninn.certify.frontier.Frontier` finds of that method on tuning calls, never on
test calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from muninn.certify import alternatives as published
from muninn.certify.frontier import Frontier
from muninn.certify.metrics import Tolerance
from muninn.certify.paired import PairedCalls
from muninn.context import Context
from muninn.engines.choose import runtime_for
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.programs.methods import Method, methods
from muninn.programs.spacing import sampler_states, spread_steps
from muninn.programs.table import Table
from muninn.record import Record
from muninn_bench.measure.protocol import Run

Sample = Callable[..., Tensor]
"""``sample(context, noise=noise)``: trajectories (batch, horizon, dim)."""

FEWSTEPS, TAYLOR, HEUN = published.FEWSTEPS, published.TAYLOR, published.HEUN
NAMES, OF_FLOWS, available = published.NAMES, published.OF_FLOWS, published.available


@dataclass(frozen=True)
class Alternative:
    """A published method with few evaluations, as it came out of tuning."""

    name: str  # a group of muninn.programs.methods
    table: Table
    excess: float  # its score on the tuning calls
    calls: int  # how many they were

    @property
    def evaluations(self) -> int:
        """Of a call."""
        return len(self.table.states)

    @property
    def timesteps(self) -> list[float]:
        """At which the network is evaluated, in order."""
        return [state.timestep for state in self.table.states]

    def run(self, planner: Planner) -> Run:
        """The alternative on a planner's engine, as a method of a comparison."""
        return partial(_called, runtime_for(planner, self.table))

    def sample(self, planner: Planner) -> Sample:
        """The same as a sampling function."""
        run = self.run(planner)
        return lambda context=None, *, noise: run(context, noise)[0]

    def to_json(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        return {**vars(self), "table": self.table.to_json()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Alternative:
        """The inverse of :meth:`to_json`."""
        return cls(**{**stored, "table": Table.from_json(stored["table"])})

    @classmethod
    def untuned(cls, name: str, planner: Planner, count: int) -> Alternative:
        """Evenly spread over the sampler's own steps, of middle order, for networks whose plans
        mean nothing."""
        found = _of_group(planner, name)
        method = found[(len(found) - 1) // 2]
        return cls(name, _evenly(planner, method, count), math.nan, 0)

    def tuned(self) -> dict[str, Any]:
        """What a result says of it (docs/architecture.md)."""
        return {
            "method": self.table.method,
            "timesteps": self.timesteps,
            "excess": self.excess,
            "calls": self.calls,
        }


def _of_group(planner: Planner, name: str) -> list[Method]:
    if name not in available(planner):
        raise InputError(f"no alternative {name} here; choose from {', '.join(available(planner))}")
    return [method for method in methods(planner.sampler).values() if method.group == name]


def _evenly(planner: Planner, method: Method, count: int) -> Table:
    states = sampler_states(planner.sampler)
    chosen = spread_steps(len(states), (count + 2) // 2 if method.twice else count)
    return method.build(planner.sampler, [states[step] for step in chosen])


def _called(runtime: Runtime, context: Context, noise: Noise) -> tuple[Tensor, Record]:
    return runtime(context, noise=noise)


class AlternativeSearch:
    """The best of every alternative at a number of evaluations; a function of its calls alone.

    ``paired`` are tuning calls, none of them tested on; ``share`` is that of calls that may exceed
    the tolerance, as Muninn's tuner has it.
    """

    def __init__(self, paired: PairedCalls, tolerance: Tolerance, share: float) -> None:
        self._names = available(paired.planner)
        self._all = Frontier(paired, tolerance, share, groups=self._names)
        self._frontiers: dict[str, Frontier] = {}

    def best(self, count: int, names: Sequence[str] | None = None) -> dict[str, Alternative]:
        """Every alternative at ``count`` evaluations a call, tuned; Heun at one more if that is
        even.

        ``count`` is at least 2 and at most the sampler's steps; ``names`` are by default all that
        the sampler has.
        """
        found = {}
        for name in names or self._names:
            if name not in self._frontiers:
                _of_group(self._all.planner, name)
                self._frontiers[name] = self._all.restricted({name})
            entry = self._frontiers[name].best(count | (name == HEUN))
            assert isinstance(entry.program, Table)
            found[name] = Alternative(name, entry.program, entry.excess, self._all.paired.count)
        return found


def every_order(planner: Planner, names: Sequence[str] | None = None) -> list[Alternative]:
    """The alternatives on all of the sampler's own steps, in every order."""
    return [
        Alternative(name, _evenly(planner, method, len(planner.sampler)), math.nan, 0)
        for name in (names or available(planner))
        for method in _of_group(planner, name)
        if not method.twice
    ]
