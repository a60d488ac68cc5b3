"""What a certificate promises, in one plain sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muninn.certify.certificate import Certificate


def promise_of(made: Certificate) -> str:
    """The promise of a certificate, its conditions included."""
    certainty = "averaged over calibrations"
    if made.confidence is not None:
        certainty = f"with confidence {made.confidence:.0%} over the calibration draw"
    whose = "contexts" if made.outcome is None else "episodes"
    return f"{_what(made)}, {certainty}, for {whose} like those calibrated ({made.loop} loop)."


def _what(made: Certificate) -> str:
    share = f"most {made.risk:.1%} of new"
    if made.outcome is not None and made.outcome["promise"] == "mean":
        by = f"at most {made.outcome['margin']:g}"
        return f"The mean score of new episodes is {by} below full compute's"
    if made.outcome is not None:
        by = f"by more than {made.outcome['margin']:g} " if made.outcome["margin"] else ""
        return (
            f"In at {share} episodes the score falls {by}below full compute's in the same episode"
        )
    full = "full compute" if made.reference is None else "the reference's full compute"
    kind, _, judge = made.metric.partition(":")
    if kind == "harm":
        one = "a call" if made.unit == "call" else "one of their calls"
        return f"In at {share} {made.unit}s {one} fails {judge} where {full} passes it"
    if made.unit != "call":
        who = f"At {share} episodes (worst call) deviate"
    elif made.loop == "closed":
        who = f"In at {share} episodes, a randomly chosen call deviates"
    else:
        who = f"At {share} calls deviate"
    named = made.tolerance is None
    size = f"{made.tolerance_name}(context)" if named else f"{made.tolerance:g}"
    return f"{who} from {full} by more than {size} ({made.metric})"
