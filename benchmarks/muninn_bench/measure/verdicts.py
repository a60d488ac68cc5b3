"""What must hold of a study's figures, and whether it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Criterion:
    """One thing that must hold, and whether it did."""

    setting: str
    name: str
    passed: bool
    detail: str

    def __str__(self) -> str:
        return f"{'PASS' if self.passed else 'FAIL'}  {self.setting}: {self.name}: {self.detail}"


def verdicts(criteria: Sequence[Criterion]) -> str:
    """The section of a page that counts and lists the verdicts."""
    failed = sum(not criterion.passed for criterion in criteria)
    lines = "\n".join(str(criterion) for criterion in criteria)
    return f"## Verdicts: {len(criteria) - failed} pass, {failed} fail\n\n```\n{lines}\n```"


def share_limit(bound: float, count: int) -> float:
    """Largest share seen in ``count`` trials that a probability explains: 3 standard errors more.

    >>> round(share_limit(0.05, 500), 4)
    0.0792
    """
    return bound + 3.0 * math.sqrt(bound * (1.0 - bound) / count)
