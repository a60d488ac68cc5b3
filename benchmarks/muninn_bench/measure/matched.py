"""How alternatives are matched to a certificate: same share, no fewer evaluations, same calls."""

from __future__ import annotations

from muninn.certify.alternatives import matched_evaluations
from muninn.certify.calibrate import split_units
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.units import OpenLoop
from muninn.context import Context, batch_size
from muninn.errors import InputError
from muninn.model.planner import Planner


def mean_evaluations(certificate: Certificate) -> int:
    """The same of the certified program on its own calls."""
    for row in certificate.realised:
        if row["member"] == certificate.member:
            return matched_evaluations(float(row["evaluations_mean"]))
    return int(certificate.identity["sampler"]["steps"])  # member 0: full compute


def tuning_calls(
    planner: Planner, contexts: Context, metric: Metric, certificate: Certificate
) -> PairedCalls:
    """The calls of a calibration that tuned its family: same contexts, same noise.

    Planner, contexts (all of them) and metric are those that ``calibrate`` was given; the
    certificate, of ``unit="call"``, is what came out.
    """
    count = batch_size(contexts)
    if not count:
        raise InputError("tuning needs at least one call")
    split = split_units(
        count, certificate.risk, certificate.confidence, tune=True, seed=certificate.seed
    )
    whole = PairedCalls(planner, contexts, count, metric, call_seed(certificate.seed, 0))
    return OpenLoop(whole, 1.0, "call", None).for_tuning(split["tune"])
