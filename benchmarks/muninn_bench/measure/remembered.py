"""Calls that programs are certified on, for many tolerances: each program runs once."""

from __future__ import annotations

from muninn.certify.journal import Journal
from muninn.certify.paired import Measured, PairedCalls
from muninn.certify.scan import Measuring, Scan
from muninn.certify.units import OpenLoop
from muninn.parallel import Map
from muninn.programs.plan import AnyProgram, Family
from muninn.progress import Task as Bars


class Remembered(PairedCalls):
    """Calls that every program runs once on: what it does there is the same for all tolerances."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._measured: dict[tuple[AnyProgram, int, int], Measured] = {}

    def measure(self, program: AnyProgram, calls: list[int]) -> Measured:
        """Run a program on some consecutive calls, paired with Full; or say what it did."""
        key = (program, calls[0], len(calls))
        if key not in self._measured:
            self._measured[key] = super().measure(program, calls)
            self.forget(program)
        return self._measured[key]


def certified_member(
    certify: PairedCalls, family: Family, tolerance: float, allowed: int, bar: Bars
) -> int:
    """The last member that keeps the tolerance on the calls, but for the allowed number of them.

    Full compute is its own truth and not checked.
    """
    measuring = Measuring(OpenLoop(certify, tolerance, "call", None))
    scan = Scan(measuring, family, Journal(), Map(), bar)
    return scan.choose(list(range(certify.count)), allowed, check_full=False, running=False)[0]
