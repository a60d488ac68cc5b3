"""Fresh calls judge the promise, on both sides: a true one is kept, a false one is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
from analytic import mixture_planner
from certify_cases import SHORT_FAMILY, drive
from muninn.certify.certificate import Certificate
from muninn.certify.evaluate import Evaluation, evaluate
from muninn.certify.metrics import rms_step
from muninn.certify.page import page
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import excess_p_value, wilson
from muninn.errors import CertificateError, InputError
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.studies.coverage.mixture import mixture_planner as driven_planner

STEPS = 20
FAMILY = Family.of(
    Forecast("sample", 1),
    (
        Everywhere(),
        *(Static(tuple(sorted({0, *range(0, STEPS, k), STEPS - 1}))) for k in (2, 3, 5, 9, 19)),
    ),
    "static",
)
TOLERANCE = 0.1


def planner() -> Planner:
    return mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), (8, 2))


def contexts(count: int, seed: int, scale: float = 0.3) -> Tensor:
    return scale * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def issued() -> Certificate:
    return muninn.calibrate(
        planner(), contexts(300, 1), tolerance=TOLERANCE, family=FAMILY, batch_size=64,
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def judged(issued: Certificate) -> Evaluation:
    return evaluate(planner(), issued, contexts(400, 2), progress=False)


def test_a_true_promise_is_kept_and_told_in_the_words_of_the_certificate(
    issued: Certificate, judged: Evaluation
) -> None:
    assert 0 < issued.member < len(FAMILY) - 1  # neither end decides what follows
    assert judged.kept
    assert judged.violations <= issued.risk * judged.units
    assert judged.promise == issued.promise()
    told = judged.sentence()
    assert told.startswith(f"Kept: {judged.violations} of 400 new calls went beyond the tolerance")
    assert told.endswith(f"and the promise was: {issued.promise()}")


def test_every_figure_is_that_of_paired_calls_with_the_same_noise(
    issued: Certificate, judged: Evaluation
) -> None:
    seed = call_seed(issued.seed + 1, 0)
    paired = PairedCalls(planner(), contexts(400, 2), 400, rms_step, seed, batch=64)
    measured = paired.measure_in_batches(issued.program, list(range(400)))
    violations = int((measured.deviation > TOLERANCE).sum())
    assert judged.violations == violations
    assert judged.interval == wilson(violations, 400)
    assert judged.p_value == excess_p_value(violations, 400, issued.risk)
    assert judged.deviation["p95"] == pytest.approx(np.quantile(measured.deviation, 0.95))
    assert judged.deviation["max"] == measured.deviation.max()
    assert judged.evaluations == measured.evaluations.mean()
    covered = measured.deviation <= issued.bound(measured.estimate)
    assert judged.coverage == covered.mean()
    assert abs(judged.coverage - (1 - issued.risk)) < 0.05
    assert 0.0 < judged.seconds["certified"] < judged.seconds["full"]  # with a third of the work


def test_a_share_above_the_promised_one_is_kept_only_as_far_as_calls_can_tell(
    judged: Evaluation,
) -> None:
    above = replace(judged, violations=22, p_value=excess_p_value(22, 400, 0.05))
    assert above.risk == 0.05 and above.kept
    assert above.sentence().startswith("Not refuted: 22 of 400 new calls")
    assert f"p = {above.p_value:.2g} if the promise is true" in above.sentence()
    assert str(judged) == judged.sentence()


def test_the_page_says_where_calls_take_more_than_full_compute(judged: Evaluation) -> None:
    assert judged.evaluations_most == judged.evaluations and judged.slower == 0.0  # a static plan
    assert f"| {judged.evaluations:.1f} of {judged.steps} |" in page(judged.to_json())
    looks = replace(judged, evaluations=18.8, evaluations_most=110, slower=0.1)
    told = page(looks.to_json())
    assert "on average, at most 110; more than full compute in 10.0% of calls |" in told


@pytest.mark.parametrize("confidence", [0.95, None])
def test_a_program_that_was_exchanged_is_reported(
    issued: Certificate, confidence: float | None
) -> None:
    altered = replace(issued, member=len(FAMILY) - 1, confidence=confidence)
    found = evaluate(planner(), altered, contexts(400, 2), progress=False)
    assert not found.kept
    assert found.interval[0] > issued.risk
    assert found.sentence().startswith("Not kept: ")
    marginal = None if confidence else issued.counts["certify"]
    assert found.p_value == excess_p_value(found.violations, 400, issued.risk, marginal)


class Sized(torch.nn.Module):
    """Plans as large as the context says: so are their deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = planner().denoiser
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return context[:, :1, None] * self.inner(x, timestep, None)


def test_contexts_unlike_those_calibrated_are_reported() -> None:
    sized = replace(planner(), denoiser=Sized())
    made = muninn.calibrate(
        sized, 1.0 + contexts(150, 1, 0.1), tolerance=TOLERANCE, family=FAMILY, progress=False
    )
    assert evaluate(sized, made, 1.0 + contexts(150, 2, 0.1), progress=False).kept
    assert not evaluate(sized, made, 4.0 + contexts(150, 2, 0.1), progress=False).kept


def test_a_closed_loop_and_a_number_of_calls_are_judged_too() -> None:
    own = driven_planner("ddim", steps=6)
    closed = muninn.calibrate(
        own, muninn.Episodes(drive, 28), tolerance=0.3, risk=0.2, family=SHORT_FAMILY,
        progress=False,
    )  # fmt: skip
    found = evaluate(own, closed, muninn.Episodes(drive, 20), progress=False)
    assert found.kept and found.units == 20 and "20 new episodes went" in found.sentence()
    other = replace(closed, member=3, tolerance=0.01)
    assert not evaluate(own, other, muninn.Episodes(drive, 20), progress=False).kept
    with pytest.raises(InputError, match=r"closed loop: give muninn\.Episodes"):
        evaluate(own, closed, 400, progress=False)
    alone = planner()
    counted = muninn.calibrate(
        alone, 90, tolerance=TOLERANCE, risk=0.1, family=FAMILY, progress=False
    )
    assert evaluate(alone, counted, 60, progress=False).kept


def test_functions_of_the_user_are_asked_for_by_name(issued: Certificate) -> None:
    def limit(context: Tensor) -> Tensor:
        return torch.full((len(context),), TOLERANCE)

    named = replace(issued, tolerance=None, tolerance_name=limit.__qualname__, metric="own")
    with pytest.raises(InputError, match=r"unknown metric 'own'.*pass a callable"):
        evaluate(planner(), named, contexts(60, 2), tolerance=limit)
    with pytest.raises(InputError, match="promise is in 'own', got 'rms_step'"):
        evaluate(planner(), named, contexts(60, 2), tolerance=limit, metric=rms_step)
    named = replace(named, metric="rms_step")
    for wrong in (None, TOLERANCE, rms_step):
        with pytest.raises(InputError, match=r"tolerance 'test_func.*limit', got .*pass the one"):
            evaluate(planner(), named, contexts(60, 2), tolerance=wrong)
    with pytest.raises(InputError, match=r"tolerance 0\.1, got 0\.2; pass the one"):
        evaluate(planner(), issued, contexts(60, 2), tolerance=0.2)
    found = evaluate(planner(), named, contexts(60, 2), tolerance=limit, progress=False)
    assert "limit(context) (root mean square a step)" in found.sentence()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"planner": mixture_planner(ddim(Schedule.cosine(20), kind="sample"), (8, 2), seed=1)},
         CertificateError, "made for another planner"),
        ({"planner": None}, InputError, r"muninn\.Planner, got NoneType"),
        ({"contexts": contexts(58, 2)}, InputError, "58 calls cannot judge.*at least 59 new ones"),
        ({"contexts": contexts(300, 1)}, InputError, "300 of these contexts were calibrated"),
        ({"contexts": torch.cat([contexts(300, 1)[150:151], contexts(60, 2)]).double()}, InputError,
         "1 of these contexts were calibrated or tuned on: only new"),
        ({"contexts": contexts(60, 2)[:, :1]}, CertificateError, "give contexts like those"),
        ({"contexts": {"goal": contexts(60, 2)}}, CertificateError, "give contexts like those"),
        ({"contexts": contexts(60, 2).double()}, CertificateError, r"\.to\(torch\.float32\)"),
        ({"contexts": torch.zeros(2)}, InputError, r"context\[None\] for one call"),
        ({"contexts": muninn.Episodes(drive, 60)}, InputError, "open loop: give contexts, or a"),
        ({"seed": 0}, InputError, "seed 0 is that of the calibration; take another"),
        ({"seed": 0.5}, InputError, "seed must be a whole number"),
        ({"reference": planner()}, CertificateError, "reference.*the one of calibration"),
    ],
)  # fmt: skip
def test_what_cannot_judge_is_refused_with_what_would(
    issued: Certificate, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"planner": planner(), "contexts": contexts(60, 2), **changes}
    with pytest.raises(error, match=message):
        evaluate(given.pop("planner"), issued, given.pop("contexts"), **given)


def test_an_iterator_of_contexts_is_taken_by_both_verbs(
    issued: Certificate, judged: Evaluation
) -> None:
    parts = iter(contexts(300, 1).split(70))
    made = muninn.calibrate(
        planner(), parts, tolerance=TOLERANCE, family=FAMILY, batch_size=64, progress=False
    )
    assert made.realised == issued.realised
    found = evaluate(planner(), made, iter(contexts(400, 2).split(70)), progress=False)
    assert replace(found, seconds=judged.seconds) == judged


def test_contexts_of_few_kinds_are_not_taken_for_calibrated_ones(issued: Certificate) -> None:
    kinds, generator = contexts(12, 1), torch.Generator().manual_seed(0)
    drawn = kinds[torch.randint(12, (380,), generator=generator)]
    settings = {"tolerance": TOLERANCE, "family": FAMILY, "progress": False}
    made = muninn.calibrate(planner(), drawn[:300], **settings)
    assert evaluate(planner(), made, drawn[300:], progress=False).units == 80
    with pytest.raises(InputError, match="of these contexts were calibrated or tuned on"):
        evaluate(planner(), issued, contexts(300, 1)[[0, 0, 299, 299]].repeat(20, 1))


def test_an_evaluation_is_written_as_plain_values(
    judged: Evaluation, issued: Certificate, tmp_path: Path
) -> None:
    again = json.loads(json.dumps(judged.to_json()))
    assert again["kept"] is True and again["sentence"] == judged.sentence()
    assert again["units"] == 400
    path = issued.save(tmp_path / "c.safetensors")
    from_file = muninn.evaluate(planner(), path, contexts(400, 2), progress=False)
    assert replace(from_file, seconds=judged.seconds) == judged
