"""Which steps to evaluate: static plans, adaptive gates, and families ordered by aggressiveness.

A *plan* is a pattern of evaluated steps; what a robot follows is a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from muninn.errors import InputError
from muninn.model.sampler import Kind
from muninn.model.schedule import FloatArray
from muninn.programs.forecast import AnyForecast, Forecast
from muninn.programs.kinds import Part


class Plan(Part):
    """A plan of any kind: what an engine needs of it.

    ``emphasis`` weighs the error estimate by ``exp(emphasis)`` at the first step and by 1 at the
    last; it is below 0 where later evaluations repair early errors.
    """

    part, kinds = "plan", {}
    fixed: ClassVar[bool]  # for every trajectory the same: nothing need be read from a device
    emphasis: float = 0.0

    def next(self, step: int, steps: int, used: int, growth: FloatArray, scale: float) -> int:
        """The next step to evaluate, in (step, steps), after the evaluation at ``step``.

        Args:
            steps: length of the sampler; its last step is always evaluated.
            used: evaluations of this call so far.
            growth: cumulated error estimate per unit of ``scale``, (steps,).
            scale: size of the forecast's highest difference; NaN while its history is too short.
        """
        raise NotImplementedError

    def within(self, step: int, steps: int, used: int, growth: FloatArray, scale: float) -> int:
        """:meth:`next`, kept after ``step`` and within the sampler."""
        return min(max(self.next(step, steps, used, growth, scale), step + 1), steps - 1)


@dataclass(frozen=True)
class Everywhere(Plan, kind="everywhere"):
    """Full compute: the denoiser at every step. Member 0 of every family."""

    fixed: ClassVar[bool] = True

    def next(self, step: int, steps: int, used: int, growth: FloatArray, scale: float) -> int:
        return step + 1


@dataclass(frozen=True)
class Static(Plan, kind="static"):
    """Evaluations at fixed steps, the same for every trajectory."""

    fixed: ClassVar[bool] = True
    anchors: tuple[int, ...]  # increasing; the first is 0, the last is the sampler's last step

    def __post_init__(self) -> None:
        anchors = tuple(int(anchor) for anchor in self.anchors)
        object.__setattr__(self, "anchors", anchors)
        if not anchors or anchors[0] != 0 or any(np.diff(anchors) <= 0):
            raise InputError(
                f"anchors must increase from step 0 to the last step, got {anchors[:8]}..."
            )

    def next(self, step: int, steps: int, used: int, growth: FloatArray, scale: float) -> int:
        return min((anchor for anchor in self.anchors if anchor > step), default=steps - 1)


@dataclass(frozen=True)
class Adaptive(Plan, kind="adaptive"):
    """Evaluates as soon as the accumulated error estimate passes a threshold.

    The estimate depends only on past evaluations, so the decision is taken once per evaluation,
    ahead of the steps it skips. Spends more on calls whose predictions bend more.
    """

    fixed: ClassVar[bool] = False
    threshold: float  # accumulated estimate, in units of the trajectory
    dense: int = 3  # steps at the start that are always evaluated
    longest: int = 1_000_000  # most steps between two evaluations
    cap: int = 1_000_000  # most evaluations of a call; the last step is always among them
    emphasis: float = 0.0

    def __post_init__(self) -> None:
        if not self.threshold >= 0.0:
            raise InputError(f"threshold must be at least 0, got {self.threshold}")
        if self.dense < 1 or self.longest < 1 or self.cap < self.dense + 1:
            raise InputError(
                f"need dense >= 1, longest >= 1 and cap >= dense + 1, got dense={self.dense}, "
                f"longest={self.longest}, cap={self.cap}"
            )
        if not math.isfinite(self.emphasis):
            raise InputError(f"emphasis must be finite, got {self.emphasis}")

    def __str__(self) -> str:
        """In words, for whoever inspects a certificate.

        >>> print(Adaptive(0.00019857, dense=20, cap=60))
        gate at an estimated error of 0.000199, the first 20 steps evaluated, at most 60 evaluations
        """
        said = [f"gate at an estimated error of {self.threshold:.3g}"]
        said.append(f"the first {self.dense} steps evaluated")
        most = Adaptive.longest  # that is, no limit
        said += [f"at most {self.longest} steps apart"] * (self.longest < most)
        return ", ".join(said + [f"at most {self.cap} evaluations"] * (self.cap < most))

    def next(self, step: int, steps: int, used: int, growth: FloatArray, scale: float) -> int:
        if used >= self.cap - 1:
            return steps - 1
        if step + 1 < self.dense or not np.isfinite(scale):
            return step + 1
        allowed = self.threshold / scale if scale > 0.0 else np.inf
        passing = int(np.searchsorted(growth, allowed, side="right"))
        return min(max(passing, step + 1), step + self.longest, steps - 1)


class AnyProgram(Part):
    """A program of any kind: one deployable way to run a planner."""

    part, kinds = "program", {}

    @property
    def fixed(self) -> bool:
        """Whether it evaluates the same for every trajectory: nothing is read from a device."""
        raise NotImplementedError

    def most_evaluations(self, steps: int) -> int:
        """Of a call that does not fail, with a sampler of so many steps."""
        raise NotImplementedError


@dataclass(frozen=True)
class Program(AnyProgram, kind="loop"):
    """The sampler's own loop, evaluated where a plan says, on forecasts elsewhere."""

    forecast: AnyForecast
    plan: Plan

    def __str__(self) -> str:
        return (
            "full compute" if isinstance(self.plan, Everywhere) else f"{self.plan}, {self.forecast}"
        )

    @property
    def fixed(self) -> bool:
        """Whether its plan is."""
        return self.plan.fixed

    def most_evaluations(self, steps: int) -> int:
        cap, anchors = getattr(self.plan, "cap", steps), getattr(self.plan, "anchors", None)
        return min(cap, steps if anchors is None else len(anchors))

    @classmethod
    def full(cls, kind: Kind) -> Program:
        """Full compute."""
        return cls(Forecast(kind, 0, look_back=False), Everywhere())

    def to_json(self) -> dict[str, Any]:
        parts = {"forecast": self.forecast.to_json(), "plan": self.plan.to_json()}
        return {self.part: self.kind, **parts}

    @classmethod
    def read(cls, **values: Any) -> Program:
        """A program from the JSON of its parts."""
        forecast, plan = values.pop("forecast", {}), values.pop("plan", {})
        return cls(AnyForecast.from_json(forecast), Plan.from_json(plan), **values)


@dataclass(frozen=True)
class Family:
    """Programs from conservative to aggressive; member 0 is Full. Frozen before certification."""

    programs: tuple[AnyProgram, ...]
    name: str  # for people: "frontier", "static", "adaptive"
    # What tuning found at the fewest evaluations: which method won, and by how much.
    search: dict[str, Any] | None = field(default=None, compare=False)
    # Marks of the calls that it was tuned on: they cannot certify it.
    tuned_on: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        first = self.programs[0] if self.programs else None
        full = isinstance(first, Program) and isinstance(first.plan, Everywhere)
        if len(self.programs) < 2 or not full:
            raise InputError(
                "a family needs full compute (Everywhere) as member 0 and at least one other member"
            )

    @classmethod
    def of(cls, forecast: AnyForecast, plans: Sequence[Plan], name: str) -> Family:
        """A family whose members share a forecast."""
        return cls(tuple(Program(forecast, plan) for plan in plans), name)

    def __len__(self) -> int:
        return len(self.programs)

    def member(self, index: int) -> AnyProgram:
        """The program at a position."""
        return self.programs[index]

    def to_json(self) -> dict[str, Any]:
        """Plain values for a certificate or a family file.

        Members that share a forecast are written as families were before tables existed.
        """
        tuned = {"tuned_on": self.tuned_on} if self.tuned_on else {}
        loops = [program for program in self.programs if isinstance(program, Program)]
        shared = len(loops) == len(self.programs) and len({loop.forecast for loop in loops}) == 1
        if shared and self.search is None:
            plans = [loop.plan.to_json() for loop in loops]
            forecast = loops[0].forecast.to_json()
            return {"name": self.name, "forecast": forecast, "plans": plans, **tuned}
        programs = [program.to_json() for program in self.programs]
        return {"name": self.name, "programs": programs, "search": self.search, **tuned}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Family:
        """The family that :meth:`to_json` described."""
        tuned_on = data.get("tuned_on", "")
        if "programs" not in data:
            plans = [Plan.from_json(plan) for plan in data["plans"]]
            family = cls.of(AnyForecast.from_json(data["forecast"]), plans, data["name"])
            return replace(family, tuned_on=tuned_on)
        programs = tuple(map(AnyProgram.from_json, data["programs"]))
        return cls(programs, data["name"], data["search"], tuned_on)
