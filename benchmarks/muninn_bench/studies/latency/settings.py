"""How much is measured: on a GPU, on a CPU, and in a smoke test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MOST_WORK = 5_000_000_000_000
"""Rows times parameters times horizon: the evaluation of 256 plans by the largest planner."""


@dataclass(frozen=True)
class Settings:
    """Sizes of a run.

    Every way takes part in every round, unless its calls are ``k`` times as long as
    ``turn_seconds``: then in every ``k``-th, so that slow baselines do not use up the time of the
    run. Graphs and compiled networks take part in all of the warm-up. Round ``i`` plans call
    ``i % calls`` in every way. Growth has every size with its base value and the values that it
    is varied to, one size at a time; ``width`` is that of the U-Net's finest level.
    """

    evaluations: int = 20  # per call, of every way that skips some
    warm_up: int = 50  # rounds, as all that are timed
    timed: int = 100
    calls: int = 20
    turn_seconds: float = 0.025
    longest_stride: int = 10
    batches: tuple[int, ...] = (16, 256, 1024)
    batch_timed: int = 10
    growth: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    growth_timed: int = 5
    compile: bool = True
    tuning: int = 32  # calls on which programs and alternatives are tuned

    def stride(self, seconds: float) -> int:
        """A way takes part in every such round, given how long one of its calls takes.

        >>> thirty = Settings(turn_seconds=0.03, longest_stride=8)
        >>> [thirty.stride(seconds) for seconds in (0.01, 0.1, 9.0)]
        [1, 3, 8]
        """
        return min(max(round(seconds / self.turn_seconds), 1), self.longest_stride)

    def batches_of(self, parameters: int, horizon: int) -> tuple[int, ...]:
        """The batches that a planner does not take minutes for.

        >>> Settings().batches_of(63_000_000, 256), Settings().batches_of(63_000_000, 16)
        ((16, 256), (16, 256, 1024))
        """
        return tuple(rows for rows in self.batches if rows * parameters * horizon <= MOST_WORK)

    def lighter(self) -> Settings:
        """For planners that no target names: fewer timed rounds, nothing compiled."""
        return replace(self, timed=min(self.timed, 60), compile=False)


def _growth(*values: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return dict(zip(("horizon", "steps", "dim", "batch", "width"), values, strict=True))


_LARGE = _growth((128, 32, 512), (100, 25, 200), (6, 32, 128), (1, 16, 64), (32, 64, 136))
CUDA = Settings(calls=16, growth=_LARGE)
CPU = Settings(
    warm_up=3,
    timed=60,
    turn_seconds=math.inf,
    batches=(16,),
    growth=_growth((64, 32, 128), (50, 25, 100), (6, 32, 128), (1, 4, 16), (32, 16, 64)),
    growth_timed=3,
)


def sizes(device: str, smoke: bool) -> Settings:
    """The settings of a device, or of a smoke test of the whole run on it."""
    chosen = CUDA if device == "cuda" else CPU
    if not smoke:
        return chosen
    small = _growth((16, 32), (10, 20), (6, 8), (1, 2), (8, 16))
    few = replace(chosen, evaluations=5, warm_up=1, timed=2, calls=2, tuning=2, compile=False)
    return replace(few, batches=(2,), batch_timed=1, growth=small, growth_timed=1)
