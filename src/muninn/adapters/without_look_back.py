"""Plan families for loops whose states cannot be rewritten: tuned without look-back."""

from __future__ import annotations

from dataclasses import replace

from muninn.certify.metrics import Metric, Tolerance
from muninn.certify.paired import Measured, PairedCalls
from muninn.certify.search import Search
from muninn.model.planner import Planner
from muninn.programs.plan import Family, Program
from muninn.progress import bars


class ForwardCalls(PairedCalls):
    """Measures every program without look-back, whatever it says."""

    def measure(self, program: Program, calls: list[int]) -> Measured:
        """Run a program on some calls, paired with Full."""
        forecast = replace(program.forecast, look_back=False)
        return super().measure(replace(program, forecast=forecast), calls)


def tune_without_look_back(
    planner: Planner,
    calls: object,
    *,
    tolerance: Tolerance,
    share: float = 0.03,
    metric: str | Metric = "rms_step",
    seed: int = 0,
    progress: bool = True,
) -> Family:
    """A family of static plans without look-back, from contexts that will not certify it.

    The search is that of :func:`muninn.tune`; its arguments are explained there. Pass the family
    to ``muninn.calibrate(planner, other_calls, family=...)``.

    Raises:
        InputError: there is no call.
    """
    paired = ForwardCalls.for_tuning(planner, calls, metric, seed)
    with bars(progress) as task:
        advance = task("tune: programs tried", 60)
        search = Search(paired, tolerance, share, advance=advance)
        family = search.static_family(*search.rank()).family
    return replace(family, forecast=replace(family.forecast, look_back=False))
