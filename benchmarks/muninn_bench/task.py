"""What a benchmark task is: a world, the planners on it, and what may differ in their plans.

A task is a folder ``tasks/NAME`` whose ``task.py`` exports ``TASK``; the registry finds it there.
Studies are functions of a task. What only some tasks can do is a protocol of its own, below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers
from muninn_bench.networks.trainer import Lesson, Training
from muninn_bench.platform import Platform


class Stream(IntEnum):
    """What an episode is for. No episode serves two purposes: a task draws each stream apart."""

    TRAIN = 0
    TUNE = 1
    CERTIFY = 2
    TEST = 3


@dataclass(frozen=True)
class Result:
    """How an episode ended.

    Attributes:
        success: the world's own signal; None where it has none.
        score: the world's own score, larger is better; None where it has none.
        figures: whatever else is worth a column, by name with its unit (``time_s``).
    """

    success: bool | None = None
    score: float | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


class Episode(Protocol):
    """One run in the world, from a start to a result."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        ...

    @property
    def time(self) -> float:
        """Seconds in the world since the episode began."""
        ...

    def context(self) -> Tensor:
        """What the planner is asked now: one row."""
        ...

    def follow(self, plan: Tensor) -> None:
        """Carry out a plan, (horizon, dim), until the next planning call or the end."""
        ...

    def result(self) -> Result:
        """How it ended; asked for when it is done."""
        ...


class Task(Protocol):
    """A world and the planners on it.

    Attributes:
        name: the folder's.
        extra: of ``muninn-bench``, with the packages it needs; empty if none.
        variants: the planners, by name; the first is the default.
        tolerance: largest deviation between a plan and the full one, in units of ``metric``.
        unit: of the tolerance, in words.
        replans: whether an episode asks for several plans.
    """

    name: str
    extra: str
    variants: tuple[str, ...]
    tolerance: float
    unit: str
    replans: bool

    def planner(self, variant: str) -> Planner:
        """Full compute."""
        ...

    def metric(self, variant: str) -> str | Metric:
        """How plans are compared: a name that :func:`muninn.calibrate` knows, or a function."""
        ...

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> Episode:
        """Episode ``number`` of a stream: a function of the arguments alone."""
        ...


# -- abilities ---------------------------------------------------------------------------------


@runtime_checkable
class Drawable(Protocol):
    """Plans can be drawn on a map."""

    def positions(self, variant: str, plans: Tensor) -> FloatArray:
        """World positions of plans (plans, horizon, dim): (plans, horizon, 2), metres."""
        ...

    def draw(self, axis: Any, variant: str, context: Tensor) -> None:
        """Draw the map, start and goal of a context (one row) on a matplotlib axis."""
        ...


@runtime_checkable
class Timed(Protocol):
    """The world goes on while the robot plans: the closed-loop study can be run."""

    def platform(self, variant: str) -> Platform:
        """The robot on a simulated clock."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """The project can make the task's data and train its planners."""

    def make_data(
        self,
        path: Path,
        count: int | None,
        seed: int,
        workers: Workers,
        source: Path | None = None,
    ) -> None:
        """Write the data file, ``count`` runs or as many as the planners were trained on.

        The ``source`` is a file of others that some data is made from.
        """
        ...

    def training(self, variant: str, out: Path) -> Training:
        """How the planner was trained; the command line overrides parts of it."""
        ...

    def lesson(self, variant: str, data: Path, settings: Training) -> Lesson:
        """What is learned from a data file."""
        ...


@runtime_checkable
class Together(Protocol):
    """Episodes side by side carry out their plans together: faster than one by one."""

    def follow_all(self, episodes: Sequence[Any], plans: Tensor) -> None:
        """:meth:`Episode.follow` of each episode, of plans (episodes, horizon, dim) anywhere."""
        ...


@runtime_checkable
class SideBySide(Protocol):
    """It knows how many of its simulators fit into the memory of one process."""

    @property
    def lanes(self) -> int:
        """Episodes that run side by side."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """The plans of some planners are candidates, of which the task executes one."""

    def choice(self, variant: str) -> Callable[[Tensor, Tensor], Tensor] | None:
        """``choice(plans, contexts)``: the executed row of each plan, (batch,); None where a plan
        is executed itself."""
        ...


@runtime_checkable
class Guided(Protocol):
    """Its planners are guided, by returns for instance."""

    def guided(self, scale: float) -> Task:
        """The same task with another scale of guidance; 0 is none."""
        ...


@runtime_checkable
class Graded(Protocol):
    """It says how hard its calls are."""

    def figures(self, variant: str, plans: Tensor, contexts: Tensor) -> Mapping[str, FloatArray]:
        """Figures of the problem and of the full plan, (calls,) each, by name with the unit."""
        ...


@runtime_checkable
class OwnCalls(Protocol):
    """Users call a framework's object, not a planner: single calls are timed through it."""

    def own_calls(
        self, variant: str, certificate: Certificate
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """``full`` and ``muninn``: the framework's call, drawing its noise, without and with us."""
        ...


def context_rows(task: Task, variant: str, stream: Stream, count: int, seed: int) -> Tensor:
    """First contexts of episodes 0 to ``count`` of a stream, (count, ...)."""
    rows = [task.begin(variant, stream, number, seed).context() for number in range(count)]
    return torch.cat(rows)
