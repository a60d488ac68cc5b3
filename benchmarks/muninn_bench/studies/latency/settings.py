"""How much is measured: on a GPU, on a CPU, and in a smoke test."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cell:
    """One point of the growth grid.

    Attributes:
        axis: what is varied here, ``base`` for the point that all lines share.
        horizon, steps, dim, batch: of the planner and the call.
        width: features at the U-Net's finest level; the others have 2, 4 and 8 times as many.
    """

    axis: str = "base"
    horizon: int = 128
    steps: int = 100
    dim: int = 6
    batch: int = 1
    width: int = 32

    def value(self) -> int:
        """The value of what is varied; 0 for the base."""
        return 0 if self.axis == "base" else int(getattr(self, self.axis))


def grid(base: Cell, **values: tuple[int, ...]) -> tuple[Cell, ...]:
    """The base and one cell for every other value of every axis.

    >>> [cell.value() for cell in grid(Cell(), horizon=(32, 512), batch=(64,))]
    [0, 32, 512, 64]
    """
    cells = [base]
    for axis, points in values.items():
        for point in points:
            change: dict[str, int] = {axis: point}
            cells.append(replace(base, axis=axis, **change))
    return tuple(cells)


MOST_WORK = 5_000_000_000_000
"""Rows times parameters times horizon: the evaluation of 256 plans by the largest planner."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run.

    Attributes:
        evaluations: of every method that skips some, per call.
        warm_up, timed: rounds; every method takes part in each, unless its calls are long. On a
            GPU graphs and compiled methods take part in all of the warm-up.
        calls: distinct calls; round ``i`` plans call ``i % calls`` with every method.
        turn_seconds: a method whose calls take ``k`` times as long takes part in every ``k``-th
            round only, so that slow baselines do not use up the time of the run.
        longest_stride: but at least in every such round.
        batches: rows of the throughput measurements; those that would take minutes are left out
            (:meth:`batches_of`).
        batch_timed: rounds of each.
        growth: cells of the growth grid.
        growth_timed: rounds of each cell.
        compile: whether compiled methods take part.
        tuning: calls on which plans and alternatives are tuned.
    """

    evaluations: int = 20
    warm_up: int = 50
    timed: int = 100
    calls: int = 20
    turn_seconds: float = 0.025
    longest_stride: int = 10
    batches: tuple[int, ...] = (16, 256, 1024)
    batch_timed: int = 10
    growth: tuple[Cell, ...] = ()
    growth_timed: int = 5
    compile: bool = True
    tuning: int = 32

    def stride(self, seconds: float) -> int:
        """A method takes part in every such round, given how long one of its calls takes.

        >>> [
        ...     Settings(turn_seconds=0.03, longest_stride=8).stride(seconds)
        ...     for seconds in (0.01, 0.1, 9.0)
        ... ]
        [1, 3, 8]
        """
        if math.isinf(self.turn_seconds):
            return 1
        return min(max(round(seconds / self.turn_seconds), 1), self.longest_stride)

    def batches_of(self, parameters: int, horizon: int) -> tuple[int, ...]:
        """The batches of a planner whose work is not too much for a benchmark of minutes.

        >>> Settings().batches_of(63_000_000, 256), Settings().batches_of(63_000_000, 16)
        ((16, 256), (16, 256, 1024))
        """
        return tuple(rows for rows in self.batches if rows * parameters * horizon <= MOST_WORK)

    def lighter(self) -> Settings:
        """For planners that no target names: fewer timed rounds, nothing compiled."""
        return replace(self, timed=min(self.timed, 60), compile=False)


CUDA = Settings(
    calls=16,
    growth=grid(
        Cell(),
        horizon=(32, 512),
        steps=(25, 200),
        dim=(32, 128),
        batch=(16, 64),
        width=(64, 136),
    ),
)

CPU = Settings(
    warm_up=3,
    timed=60,
    turn_seconds=math.inf,
    batches=(16,),
    growth=grid(
        Cell(horizon=64, steps=50),
        horizon=(32, 128),
        steps=(25, 100),
        dim=(32, 128),
        batch=(4, 16),
        width=(16, 64),
    ),
    growth_timed=3,
)


def sizes(device: str, quick: bool) -> Settings:
    """The settings of a device; ``quick`` is a smoke test of the whole run."""
    chosen = CUDA if device == "cuda" else CPU
    if not quick:
        return chosen
    base = Cell(horizon=16, steps=10, width=8)
    return replace(
        chosen,
        warm_up=1,
        timed=3,
        calls=3,
        batches=(4,),
        batch_timed=1,
        growth=grid(base, horizon=(32,), steps=(20,), dim=(8,), batch=(2,), width=(16,)),
        growth_timed=2,
        tuning=4,
    )
