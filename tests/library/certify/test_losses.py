"""Losses that see the context: what a fast plan breaks that full compute does not."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import muninn
from certify_cases import TOLERANCE, contexts, planner, table_family
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import (
    drop,
    harm,
    max_step,
    measure,
    metric_name,
    rms_step,
    takes_context,
    tuning_metric,
)  # fmt: skip
from muninn.errors import InputError


def above(plan: Tensor, context: Any) -> Tensor:
    """Ends above a line that the context says."""
    return plan[:, -1, 0] > context[:, 0]


def height(plan: Tensor, context: Any) -> Tensor:
    return plan[:, -1, 0] - context[:, 0]


FULL = torch.tensor([2.0, 2.0, 0.0, 0.0]).view(4, 1, 1)
FAST = torch.tensor([3.0, 0.5, 2.0, -1.0]).view(4, 1, 1)
LINE = torch.ones(4, 1)


def test_harm_is_what_the_fast_plan_breaks_and_full_compute_does_not() -> None:
    assert measure(harm(above), FULL, FAST, LINE).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert harm(above).tolerance == 0.5  # type: ignore[attr-defined]
    assert metric_name(harm(above)) == "harm:above"


def test_a_drop_is_how_much_a_score_falls() -> None:
    assert measure(drop(height), FULL, FAST, LINE).tolist() == [0.0, 1.5, 0.0, 1.0]
    assert metric_name(drop(height)) == "drop:height"


class Own:
    def __call__(self, full: Tensor, fast: Tensor, context: Any) -> Tensor:
        return rms_step(full, fast) * context[:, 0]


@pytest.mark.parametrize(
    ("metric", "wants"),
    [
        (rms_step, False),
        (max_step, False),
        (harm(above), True),
        (Own(), True),
        (lambda full, fast, context: full, True),
        (lambda full, fast, scale=2.0: full, False),
        (partial(lambda scale, full, fast: full, 2.0), False),
        (torch.dist, False),
    ],
)
def test_a_metric_is_given_the_context_if_it_asks_for_it(metric: Any, wants: bool) -> None:
    assert takes_context(metric) is wants


def test_tuning_prefers_closer_plans_where_nothing_is_lost() -> None:
    tuning = tuning_metric(harm(above))
    found = measure(tuning, FULL, FAST, LINE)
    assert found[1] > 1.0 > 0.5 > max(found[0], found[2], found[3])
    near = measure(tuning, FULL, FULL + 1e-3, LINE)
    assert (near < found).all()
    assert tuning_metric(rms_step) is rms_step


@pytest.fixture(scope="module")
def issued() -> Certificate:
    family = table_family(planner().sampler, (10, 6, 4, 3, 2))
    return muninn.calibrate(
        planner(), contexts(200), metric=harm(above_zero), risk=0.1, family=family, progress=False
    )


def above_zero(plan: Tensor, context: Any) -> Tensor:
    assert len(plan) == len(context)
    return plan[:, -1, 0] > 0.0


def test_harm_of_calls_is_certified_with_its_own_tolerance(
    issued: Certificate, tmp_path: Path
) -> None:
    assert issued.member > 0 and issued.tolerance == 0.5
    assert (
        "in at most 10.0% of new calls a call fails above zero where full compute passes it, "
        in issued.promise()
    )
    loaded = Certificate.load(issued.save(tmp_path / "c"))
    found = muninn.evaluate(
        planner(), loaded, contexts(150, seed=5), metric=harm(above_zero), progress=False
    )
    assert found.kept


def test_a_family_is_tuned_for_harm() -> None:
    made = muninn.calibrate(
        planner(), contexts(220), metric=harm(above_zero), risk=0.1, progress=False
    )
    loose = muninn.calibrate(
        planner(), contexts(220), tolerance=TOLERANCE, risk=0.1, progress=False
    )
    assert 0 < made.realised[-1]["evaluations_mean"] <= loose.realised[-1]["evaluations_mean"]


def test_other_metrics_have_no_tolerance_of_their_own() -> None:
    for metric in ("rms_step", drop(height)):
        with pytest.raises(InputError, match="tolerance must be a number, got None"):
            muninn.calibrate(planner(), contexts(100), metric=metric, progress=False)
