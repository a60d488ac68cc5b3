"""A second look for doubtful calls: a short table first, more where it may have failed.

A table's own differences cost no evaluation and tell which calls bend more than others. Most calls
need few evaluations; to spend on all of them what the worst need is what a single table does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray
from muninn.programs.plan import AnyProgram, Everywhere, Program
from muninn.programs.table import Table, nearest_steps

TINY = 1e-12
"""Added to a difference before its logarithm is taken: it may be exactly 0."""


@dataclass(frozen=True)
class SecondLook(AnyProgram, kind="second look"):
    """Runs ``first``; calls whose doubt is above ``limit`` are planned again with ``second``."""

    first: Table
    second: AnyProgram  # a longer table, or full compute
    weights: tuple[float, ...]  # of the logarithm of the error estimate of each gap of ``first``
    limit: float

    def __post_init__(self) -> None:
        try:
            weights, limit = tuple(map(float, self.weights)), float(self.limit)
        except (TypeError, ValueError) as error:
            raise InputError(f"a second look holds two programs and numbers; {error}") from error
        full = isinstance(self.second, Program) and isinstance(self.second.plan, Everywhere)
        if not (isinstance(self.first, Table) and (full or isinstance(self.second, Table))):
            raise InputError("a second look is made of two tables, or a table and full compute")
        if not weights or not np.isfinite([*weights, limit]).all():
            raise InputError("a second look needs finite weights, one a gap, and a finite limit")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "limit", limit)

    def __str__(self) -> str:
        return f"{self.first}; if in doubt, {self.second}"

    @property
    def fixed(self) -> bool:
        """Never: what a call needs shows on the way."""
        return False

    def most_evaluations(self, steps: int) -> int:
        return len(self.first.states) + self.second.most_evaluations(steps)

    def doubtful(self, differences: FloatArray) -> npt.NDArray[np.bool_]:
        """Which calls are planned again, from :func:`differences` (calls, gaps) of the first."""
        doubt: FloatArray = np.log(differences + TINY) @ np.array(self.weights)
        return ~(doubt <= self.limit)  # so that NaN is doubtful

    def to_json(self) -> dict[str, Any]:
        both = {"first": self.first.to_json(), "second": self.second.to_json()}
        return {self.part: self.kind, **both, "weights": list(self.weights), "limit": self.limit}

    @classmethod
    def read(cls, **values: Any) -> SecondLook:
        """A second look from the JSON of its parts."""
        first, second = values.pop("first", {}), values.pop("second", {})
        return cls(Table.from_json(first), AnyProgram.from_json(second), **values)


def judged_steps(sampler: Sampler, table: Table) -> list[int]:
    """The sampler's steps to which a table charges the error estimates of its gaps."""
    return sorted(set(nearest_steps(sampler, table.states)[:-1]))
