"""Tune: find a family of programs on calls of their own, before anything is certified.

Nothing here needs to be sound, only good: the certificate is valid for whatever family comes out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Literal, get_args

from muninn.certify.examine import require_eval
from muninn.certify.frontier import Frontier, ladder
from muninn.certify.gates import gate_forecast, gate_members
from muninn.certify.journal import Journal
from muninn.certify.metrics import Metric, Tolerance
from muninn.certify.paired import PairedCalls, median_seconds
from muninn.certify.scores import Entry
from muninn.certify.second_look import look_members
from muninn.engines.choose import runtime_for
from muninn.errors import InputError
from muninn.identity.rows import row_marks
from muninn.model.planner import Planner, require_planner
from muninn.parallel import Map, Workers, workers_of
from muninn.programs.plan import Family, Program
from muninn.progress import Task, bars

Objective = Literal["evaluations", "time", "worst"]
"""Tuning minimises evaluations of a call in the mean, its time, or those of the worst call."""

SAFE = (4.0, 2.0, 1.5)
"""Evaluations of the first members over the fewest found: few tuning calls may mislead."""

ABOVE, BELOW = 2, 3
"""Rungs of the ladder on either side of the fewest found that become members."""

START = 8
"""Evaluations with which the search begins."""

GATES_FROM = 14
"""Evaluations from which gates are tried: with fewer, no planner here was better off with one."""

TIMED = 7


def tune(
    planner: Planner,
    calls: object,
    *,
    tolerance: Tolerance,
    share: float = 0.03,
    metric: str | Metric = "rms_step",
    objective: Objective = "evaluations",
    seed: int = 0,
    workers: Workers = None,
    progress: bool = True,
) -> Family:
    """A plan family for later certification, from contexts that will not be used for it.

    Args:
        planner: what will be deployed.
        calls: batched contexts, or a number of calls.
        tolerance, metric: as in :func:`muninn.calibrate`.
        share: of calls that may exceed the tolerance; slightly below the risk to be certified.
        objective: ``evaluations`` in the mean, measured ``time``, or evaluations of the ``worst``
            call, which leaves programs that take as many for every call.
        seed: of the noise.
        workers: who tries programs, as in :func:`muninn.calibrate`; tables are fitted here.
        progress: show a progress bar.
    """
    require_planner(planner, "muninn.tune(planner, calls)")
    require_eval(planner)
    paired = PairedCalls.for_tuning(planner, calls, metric, seed)
    with workers_of(workers, planner.device) as crew, bars(progress) as task:
        return tune_family(
            paired, tolerance, share, objective=objective, journal=Journal(), task=task,
            workers=crew,
        )  # fmt: skip


def require_objective(objective: str) -> None:
    """Raise InputError unless it is one that tuning knows."""
    if objective not in get_args(Objective):
        raise InputError(f"objective is 'evaluations', 'time' or 'worst', got {objective!r}")


def tune_family(
    paired: PairedCalls,
    tolerance: Tolerance,
    share: float,
    *,
    objective: Objective,
    journal: Journal,
    task: Task,
    workers: Map | None = None,
    groups: Collection[str] | None = None,
) -> Family:
    """The frontier around the fewest evaluations that keep the tolerance on the tuning calls.

    ``groups`` are the methods to choose from, as in :class:`muninn.certify.frontier.Frontier`; all
    by default, and then second looks and gates, too.
    """
    require_objective(objective)
    if not 0.0 <= share < 1.0:
        raise InputError(f"share must lie in [0, 1), got {share}")
    advance = task("tune: programs tried", None)
    frontier = Frontier(paired, tolerance, share, journal, advance, workers, groups=groups)
    return frontier_family(frontier, objective, groups is None and objective != "worst")


def frontier_family(
    frontier: Frontier, objective: Objective = "evaluations", adaptive: bool = True
) -> Family:
    """Members from conservative to aggressive, around the fewest evaluations that suffice.

    With ``adaptive`` also second looks and gates, which spend more on calls that need it.
    """
    rungs = [rung for rung in ladder(frontier.steps) if frontier.offers(rung)]
    entries: list[Entry] = []
    fewest = frontier.steps
    report: dict[str, Any] = {"notes": frontier.notes}
    full = Program.full(frontier.paired.planner.sampler.kind)
    marks = row_marks(frontier.paired.context)
    if rungs and (lost := _hopeless(frontier, rungs)) is not None:
        frontier.notes.append(f"hardly any call keeps the tolerance with {rungs[0]} evaluations")
        return Family((full, lost.program), "frontier", report, marks)
    if rungs:
        at = _cheapest_rung(frontier, rungs)
        fewest = rungs[at]
        chosen = {at + offset for offset in range(-ABOVE, BELOW + 1)}
        for factor in SAFE:
            chosen.add(min(range(len(rungs)), key=lambda k: abs(rungs[k] - factor * fewest)))
        for place in sorted(place for place in chosen if 0 <= place < len(rungs)):
            if place < at - ABOVE:
                entries.append(frontier.quick(rungs[place]))
            else:
                entries.append(frontier.best(rungs[place], at <= place <= at + 1))
        report = frontier.report(fewest)
    looks = look_members(frontier, rungs, fewest) if adaptive and rungs else []
    gates: list[Entry] = []
    if adaptive and (fewest >= GATES_FROM or not entries):
        gates = gate_members(frontier, gate_forecast(frontier, fewest), float(frontier.steps))
        if objective == "time":
            gates = _worth_their_time(frontier, gates, entries)
    spent = {"table": float(fewest), "second look": _fewest(looks), "gate": _fewest(gates)}
    winner = min(spent, key=lambda kind: spent[kind])
    looks = [entry for entry in looks if winner == "second look" or not entry.cautious]
    if looks and winner != "gate":
        # Tables about as safe as a second look might end the scan before it: between those that
        # are far on the safe side and the fewest, second looks only.
        far = SAFE[-1] * fewest
        entries = [e for e in entries if not fewest < e.evaluations < far] + looks
    if gates and (winner != "table" or not entries):
        # Some calls are at a fork: tables take another route there even with more evaluations, and
        # one such table would end the scan. Gates are the safe members.
        least = spent[winner] if winner == "second look" else 0.0
        entries = [e for e in gates if e.evaluations > least]
        entries += looks if winner == "second look" else []
    if winner != "table":
        report |= {"winner": winner} | ({"tables": fewest} if frontier.methods else {})
        report |= {"evaluations": spent[winner]} if math.isfinite(spent[winner]) else {}
    cheaper = [entry for entry in entries if entry.evaluations < frontier.steps]
    entries = cheaper or entries[:1]
    if not entries:
        raise InputError(
            "no program with fewer evaluations was found for this planner; use it as it is"
        )
    entries = safer_first(entries)
    programs = dict.fromkeys(entry.program for entry in entries)
    return Family((full, *programs), "frontier", report, marks)


def _fewest(entries: list[Entry]) -> float:
    """The fewest evaluations, in the mean, of those that keep the tolerance; infinite if none."""
    return min((entry.evaluations for entry in entries if entry.kept), default=math.inf)


def safer_first(entries: list[Entry]) -> list[Entry]:
    """Entries from many evaluations to few, without those that a cheaper one is as safe as.

    The scan stops at the first member that fails: one with more evaluations that exceeds the
    tolerance on more tuning calls would only end it early.
    """

    def danger(entry: Entry) -> tuple[float, float]:
        # Where no tuning call is beyond the tolerance, the one that comes nearest says most.
        return entry.beyond, entry.score if entry.beyond else entry.worst

    kept: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (entry.evaluations, *danger(entry))):
        if not kept or entry.cautious or danger(entry) < danger(kept[-1]):
            kept.append(entry)
    return kept[::-1]


def _start(rungs: list[int]) -> int:
    """The place of the rung with which the search begins."""
    return min(range(len(rungs)), key=lambda k: abs(rungs[k] - START))


def _hopeless(frontier: Frontier, rungs: list[int]) -> Entry | None:
    """A table with the most evaluations on offer, if even that would not do; else None.

    It is looked at only where the search would have to climb: where few suffice it costs nothing.
    """
    if frontier.best(rungs[_start(rungs)], move=False).kept:
        return None
    return frontier.hopeless(rungs[0])


def _cheapest_rung(frontier: Frontier, rungs: list[int]) -> int:
    """The place of the fewest evaluations that keep the tolerance; fine for tuning only.

    From few evaluations, which cost little to try, to as many as it takes; then in between. Moves
    of anchors cost most and change the answer by a rung or two: they come last.
    """
    kept, missed, stride = -1, len(rungs), 2
    place = _start(rungs)
    while missed - kept > 1:
        if frontier.best(rungs[place], move=False).kept:
            kept = place
        else:
            missed = place
        if missed == len(rungs):
            place = min(kept + stride, len(rungs) - 1)
        elif kept < 0:
            place = max(missed - stride, 0)
        else:
            place = (kept + missed) // 2
        stride *= 2
    kept = max(kept, 0)
    while kept + 1 < len(rungs) and frontier.best(rungs[kept + 1]).kept:
        kept += 1
    return kept


def _worth_their_time(frontier: Frontier, gates: list[Entry], tables: list[Entry]) -> list[Entry]:
    """The gates, if one takes less time on the planner's engine than a table with as many or more
    evaluations: a gate decides on the way, which a table need not."""
    rivals = [e for e in tables if gates and e.evaluations >= gates[-1].evaluations]
    if not rivals:
        return gates
    paired, first = frontier.paired, list(range(min(TIMED, frontier.paired.count)))
    rival = min(rivals, key=lambda entry: entry.evaluations)
    runs = [runtime_for(frontier.planner, entry.program) for entry in (gates[-1], rival)]
    spent = median_seconds(runs, paired.contexts(first), paired.noise(first))
    return gates if spent[0] < spent[1] else []
