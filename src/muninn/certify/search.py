"""Scores of programs on tuning calls; every score is journalled, so nothing runs twice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from muninn.certify.journal import Journal
from muninn.certify.metrics import Tolerance
from muninn.certify.paired import PairedCalls
from muninn.programs.plan import Program
from muninn.progress import Advance


@dataclass(frozen=True)
class Score:
    """How a program did on tuning calls.

    Attributes:
        excess: deviation over tolerance that all but the allowed share stay below.
        evaluations: mean per call.
        most: largest number of evaluations of a call.
    """

    excess: float
    evaluations: float
    most: int


class Search:
    """Scores programs on the tuning calls; every score is journalled, so nothing runs twice."""

    def __init__(
        self,
        paired: PairedCalls,
        tolerance: Tolerance,
        share: float,
        journal: Journal,
        advance: Advance,
    ) -> None:
        self.paired = paired
        self.share = share
        self._tolerance = paired.tolerance(tolerance, list(range(paired.count)))
        self._journal = journal
        self._advance = advance

    def score(self, program: Program, most_calls: int | None = None) -> Score:
        """Score of a program on the first ``most_calls`` tuning calls, all by default."""
        count = min(most_calls or self.paired.count, self.paired.count)
        described = {"forecast": program.forecast.to_json(), "plan": program.plan.to_json()}
        name = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:24]
        key = f"tune/{name}/{count}"
        stored = self._journal.get(key)
        if stored is None:
            measured = self.paired.measure_in_batches(program, list(range(count)))
            excess = measured.deviation / self._tolerance[:count]
            stored = [
                # "lower": one call about to change its mode must not rank a program by itself
                float(np.quantile(excess, 1.0 - self.share, method="lower")),
                float(measured.evaluations.mean()),
                int(measured.evaluations.max()),
            ]
            self._journal.put(key, stored)
        self._advance(1)
        return Score(*stored)
