"""Watches an outcome certificate: scores in, an alarm out when the program's own mean is refuted.

In deployment there is no full compute beside the program, so that harm cannot be watched. What can
be: the certificate holds a number that the program's own mean score is above. Evidence against that
is a fair bet, which may be looked at after every episode (:mod:`muninn.certify.betting`).
"""

from __future__ import annotations

import math

from muninn.certify.betting import MeanEvidence
from muninn.certify.certificate import Certificate
from muninn.engines.runtime import log_once
from muninn.errors import InputError


class OutcomeMonitor:
    """Tests "the mean score is at least what the certificate says" while a robot runs.

    Args:
        certificate: of an outcome.
        level: probability of ever raising a false alarm while the mean is as promised.
    """

    def __init__(self, certificate: Certificate, *, level: float = 0.05) -> None:
        outcome = certificate.outcome
        if outcome is None:
            raise InputError(
                "this certificate promises a deviation: watch it with muninn.Monitor, which "
                "compares calls with full compute"
            )
        if not 0.0 < level < 1.0:
            raise InputError(f"level lies strictly between 0 and 1, got {level}")
        self.certificate, self.level = certificate, level
        self.promised: float = outcome["score_at_least"]
        self._low, self._high = outcome["low"], outcome["high"]
        # A limit at the end of the range cannot be refuted: nothing lies below it.
        self._evidence = (
            MeanEvidence(self.promised - self._high, self.promised - self._low)
            if self._low < self.promised < self._high
            else None
        )
        self.episodes, self.total = 0, 0.0
        self.alarm: str | None = None  # stays; calibrate again

    def report(self, score: float | bool) -> None:
        """Take the score of one episode, in the range of the certificate."""
        value = float(score)
        if not self._low <= value <= self._high:  # NaN, too
            raise InputError(f"the score {value} is outside of {self._low:g} to {self._high:g}")
        self.episodes += 1
        self.total += value
        if self._evidence is None:
            return
        self._evidence.add([self.promised - value])
        if self.alarm is None and self._evidence.highest >= -math.log(self.level):
            self.alarm = (
                f"monitor alarm: the mean score of {self.episodes} episodes is "
                f"{self.total / self.episodes:.3g}, promised was at least {self.promised:.3g} "
                f"(level {self.level:g}); calibrate again"
            )
            log_once(self.alarm)

    @property
    def e_value(self) -> float:
        """Evidence against the promised mean, at its highest."""
        return 1.0 if self._evidence is None else self._evidence.e_value
