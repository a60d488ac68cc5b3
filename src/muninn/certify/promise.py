"""What a certificate promises, in one plain sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muninn.certify.metrics import in_words

if TYPE_CHECKING:
    from muninn.certify.certificate import Certificate


def promise_of(made: Certificate) -> str:
    """The promise of a certificate, its conditions included.

    Where only full compute keeps it, that comes first, with what to do about it.
    """
    certainty = "averaged over calibrations"
    if made.confidence is not None:
        certainty = f"with confidence {made.confidence:.0%} over the calibration draw"
    whose = "contexts" if made.outcome is None else "episodes"
    conditions = f"{certainty}, for {whose} like those calibrated ({made.loop} loop)"
    promised = f"{_what(made)}, {conditions}"
    steps = made.identity["sampler"]["steps"]
    if not made.member:
        loosen = "tolerance" if made.outcome is None else "margin"
        return (
            f"No speed-up: only full compute, with all {steps} evaluations a call, keeps the "
            f"promise that {promised}; allow a larger {loosen} or risk, or calibrate on more "
            f"{made.unit}s."
        )
    means = {row["member"]: row["evaluations_mean"] for row in made.realised}
    spent = means.get(made.member, made.program.most_evaluations(steps))
    most = {row["member"]: row["evaluations_max"] for row in made.realised}.get(made.member)
    mean = "" if made.program.fixed else f" on average{f' and {most} at most' if most else ''}"
    return f"With {spent:.3g} of {steps} evaluations a call{mean}, {promised}."


def _what(made: Certificate) -> str:
    share = f"most {made.risk:.1%} of new"
    if made.outcome is not None and made.outcome["promise"] == "mean":
        by = f"at most {made.outcome['margin']:g}"
        return f"the mean score of new episodes is {by} below full compute's"
    if made.outcome is not None:
        by = f"by more than {made.outcome['margin']:g} " if made.outcome["margin"] else ""
        return (
            f"in at {share} episodes the score falls {by}below full compute's in the same episode"
        )
    full = "full compute" if made.reference is None else "the reference's full compute"
    kind, _, judge = made.metric.partition(":")
    if kind == "harm":
        one = "a call" if made.unit == "call" else "one of their calls"
        return f"in at {share} {made.unit}s {one} fails {in_words(judge)} where {full} passes it"
    if made.unit != "call":
        who = f"at {share} episodes (worst call) deviate"
    elif made.loop == "closed":
        who = f"in at {share} episodes, a randomly chosen call deviates"
    else:
        who = f"at {share} calls deviate"
    named = made.tolerance is None
    size = f"{made.tolerance_name}(context)" if named else f"{made.tolerance:g}"
    return f"{who} from {full} by more than {size} ({in_words(made.metric)})"
