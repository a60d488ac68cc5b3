"""Tune: find a forecast and a plan family on calls of their own, before anything is certified.

Nothing here needs to be sound, only good: the certificate is valid for whatever family comes out.
"""

from __future__ import annotations

from typing import Literal

from muninn.certify.journal import Journal
from muninn.certify.metrics import Metric, Tolerance
from muninn.certify.paired import PairedCalls, median_seconds
from muninn.certify.search import Search
from muninn.engines.choose import runtime_for
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.programs.plan import Family
from muninn.progress import Task, bars

Objective = Literal["evaluations", "time"]


def tune(
    planner: Planner,
    calls: object,
    *,
    tolerance: Tolerance,
    share: float = 0.03,
    metric: str | Metric = "rms_step",
    objective: Objective = "evaluations",
    seed: int = 0,
    progress: bool = True,
) -> Family:
    """A plan family for later certification, from contexts that will not be used for it.

    Args:
        planner: what will be deployed.
        calls: batched contexts, or a number of calls.
        tolerance, metric: as in :func:`muninn.calibrate`.
        share: of calls that may exceed the tolerance; slightly below the risk to be certified.
        objective: ``evaluations`` or measured ``time``.
        seed: of the noise.
        progress: show a progress bar.
    """
    paired = PairedCalls.for_tuning(planner, calls, metric, seed)
    with bars(progress) as task:
        return tune_family(
            paired, tolerance, share, objective=objective, journal=Journal(), task=task
        )


def tune_family(
    paired: PairedCalls,
    tolerance: Tolerance,
    share: float,
    *,
    objective: Objective,
    journal: Journal,
    task: Task,
) -> Family:
    """The family with the fewest evaluations (or the least time) at the promised deviation."""
    if objective not in ("evaluations", "time"):
        raise InputError(f"objective is 'evaluations' or 'time', got {objective!r}")
    if not 0.0 <= share < 1.0:
        raise InputError(f"share must lie in [0, 1), got {share}")
    search = Search(paired, tolerance, share, journal, task("tune: programs tried", 120))
    ranked, budget = search.rank()
    static = search.static_family(ranked, budget)
    priced = [candidate.forecast for candidate in ranked if candidate.model is not None]
    adaptive = search.adaptive_family(list(dict.fromkeys(priced))[:2])
    if adaptive is None:
        return static.family
    if objective == "time":
        runs = [runtime_for(paired.planner, found.program) for found in (adaptive, static)]
        first = list(range(min(7, paired.count)))
        spent = median_seconds(runs, paired.contexts(first), paired.noise(first))
    else:
        spent = [search.score(found.program).evaluations for found in (adaptive, static)]
    return adaptive.family if spent[0] < spent[1] else static.family
