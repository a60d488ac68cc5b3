"""Calibration: units, metrics, references, and a promise kept on fresh calls."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from certify_cases import (
    FAMILY,
    SHORT_FAMILY,
    TOLERANCE,
    certificate,
    contexts,
    drive,
    planner,
)
from muninn.certify.calibrate import calibrate, split_units
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import in_words, rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import choose_member, order_statistic
from muninn.certify.units import Episodes
from muninn.engines.runtime import Runtime
from muninn.errors import CalibrationError
from muninn_bench.studies.coverage.mixture import mixture_planner
from muninn_bench.studies.coverage.settings import next_contexts


def test_too_few_calls_say_how_many_and_that_many_work() -> None:
    with pytest.raises(CalibrationError, match=r"30 calls or episodes are too few.*confidence 0.9"):
        certificate(calls=contexts(30))
    with pytest.raises(CalibrationError) as refusal:
        certificate(calls=contexts(30))
    needed = int(str(refusal.value).split("give at least ")[1].split(",")[0])
    issued = certificate(calls=contexts(needed))
    assert sum(issued.counts.values()) == needed


# -- certificates ----------------------------------------------------------------------------


def realised_risk(issued: Certificate, rows: int = 3000, **fields: Any) -> float:
    own = fields.get("planner", planner())
    metric, tolerance = fields.get("metric", rms_step), fields.get("tolerance", TOLERANCE)
    context = contexts(rows, seed=99)
    noise = own.draw_noise(rows, generator=torch.Generator().manual_seed(5))
    cached, _ = Runtime(own, issued.program)(context, noise=noise)
    limit = tolerance(context) if callable(tolerance) else tolerance
    return float((metric(own.sample(context, noise=noise), cached) > limit).float().mean())


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_a_certificate_holds_on_fresh_calls_and_says_what_it_did(sampler: str) -> None:
    tolerance = TOLERANCE if sampler == "ddim" else 0.38
    issued = certificate(planner=planner(sampler), calls=contexts(300), tolerance=tolerance)
    assert 0 < issued.member < len(FAMILY)
    assert realised_risk(issued, planner=planner(sampler), tolerance=tolerance) <= 0.1
    assert issued.counts == {"tune": 0, "certify": 255, "bound": 45}
    last = issued.realised[issued.member - 1]
    assert last["member"] == issued.member and last["accepted"]
    assert last["violations"] < order_statistic(255, 0.1, 0.95)
    assert last["evaluations_mean"] == len(FAMILY.member(issued.member).plan.anchors)  # type: ignore
    assert len(issued.estimates) == 255
    assert (issued.unit, issued.loop, issued.metric) == ("call", "open", "rms_step")


def test_the_confident_version_is_never_more_aggressive_than_the_marginal_one() -> None:
    for seed in range(3):
        calls = contexts(120, seed)
        confident = certificate(calls=calls, seed=seed)
        marginal = certificate(calls=calls, seed=seed, confidence=None)
        assert marginal.confidence is None
        assert confident.member <= marginal.member


def test_a_looser_tolerance_never_costs_more() -> None:
    members = [certificate(tolerance=eta).member for eta in (1e-6, 0.02, 0.05, 0.2, 10.0)]
    assert members == sorted(members)
    assert members[0] == 0 and members[-1] == len(FAMILY) - 1


def first_channel(full: Tensor, cached: Tensor) -> Tensor:
    return (full - cached)[:, :, 0].abs().amax(dim=1)


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("rms_step", "rms_step"),
        ("max_step", "max_step"),
        ("executed:2", "executed:2:max_step"),
        (first_channel, "first_channel"),
    ],
)
def test_any_metric_may_be_certified(metric: Any, name: str) -> None:
    issued = certificate(metric=metric)
    assert issued.metric == name
    looser = certificate(metric=metric, tolerance=5.0)
    assert looser.member == len(FAMILY) - 1
    assert in_words(name) in issued.promise()


def test_an_executed_prefix_tolerates_more_than_the_whole_plan() -> None:
    calls = contexts(200)
    whole = certificate(calls=calls, metric="max_step")
    prefix = certificate(calls=calls, metric="executed:1")
    assert prefix.member > whole.member


def tight_on_the_left(context: Tensor) -> Tensor:
    return torch.where(context[:, 0] < 0.0, 0.01, 0.2)


def test_the_tolerance_may_depend_on_the_context() -> None:
    calls = contexts(200)
    issued = certificate(calls=calls, tolerance=tight_on_the_left)
    assert issued.tolerance is None and issued.tolerance_name == "tight_on_the_left"
    tight = certificate(calls=calls, tolerance=0.01)
    loose = certificate(calls=calls, tolerance=0.2)
    assert tight.member <= issued.member <= loose.member
    assert tight.member < loose.member
    assert realised_risk(issued, tolerance=tight_on_the_left) <= 0.1


def test_a_planner_without_context_takes_a_number_of_calls() -> None:
    def origin(x: Tensor, timestep: Tensor, context: None) -> Tensor:
        return 0.8 * torch.tanh(x) / (1.0 + 0.05 * timestep.view(-1, 1, 1))

    own = replace(planner(), denoiser=origin)
    issued = certificate(planner=own, calls=72)
    assert sum(issued.counts.values()) == 72
    assert issued.member > 0


def test_recorded_episodes_are_certified_by_their_worst_call() -> None:
    calls, labels = contexts(240), [call // 3 for call in range(240)]
    episodes = certificate(calls=calls, unit="episode", episode_of=labels)
    assert (episodes.unit, episodes.loop) == ("episode", "open")
    assert sum(episodes.counts.values()) == 80
    assert episodes.member <= certificate(calls=calls).member
    assert len(episodes.estimates) == 3 * episodes.counts["certify"]
    assert "episodes (worst call)" in episodes.promise()


def short_certificate(**changes: Any) -> Certificate:
    """Six steps and a coarse family, cheap enough to drive episodes one call at a time."""
    return certificate(
        planner=mixture_planner("ddim", steps=6), calls=Episodes(drive, 44), family=SHORT_FAMILY,
        risk=0.2, **{"tolerance": 0.3, **changes},
    )  # fmt: skip


def test_closed_loop_episodes_are_driven_by_each_member_itself() -> None:
    issued = short_certificate()
    assert (issued.unit, issued.loop) == ("episode", "closed")
    assert issued.counts == {"tune": 0, "certify": 37, "bound": 7}
    assert "closed loop" in issued.promise()
    # By hand: every member drives its own episodes, full compute shadowed at its states.
    own, split = mixture_planner("ddim", steps=6), split_units(44, 0.2, 0.95, tune=False, seed=0)
    excess = np.zeros((37, 4))
    for place, unit in enumerate(split["certify"]):
        for member in (1, 2, 3):
            context = contexts(1, call_seed(0, unit))
            for call in range(2):
                noise = own.draw_noise(seeds=[call_seed(0, unit, call)])
                plan, _ = Runtime(own, SHORT_FAMILY.member(member))(context, noise=noise)
                distance = float(rms_step(own.sample(context, noise=noise), plan))
                excess[place, member] = max(excess[place, member], distance / 0.3)
                context = next_contexts(context, plan)
    assert issued.member == choose_member(excess, 0.2, 0.95)
    assert 0 < issued.member < 3  # neither trivial end


def test_a_random_call_of_a_random_episode_is_a_unit_too() -> None:
    calls, episodes = short_certificate(unit="call"), short_certificate()
    assert (calls.unit, calls.loop) == ("call", "closed")
    assert len(calls.estimates) == calls.counts["certify"]
    assert calls.member >= episodes.member


def test_a_closed_loop_family_can_be_tuned_on_episodes_of_its_own() -> None:
    issued = certificate(
        planner=mixture_planner("ddim", steps=5), calls=Episodes(drive, 60), tolerance=0.5,
        family=None, risk=0.3,
    )  # fmt: skip
    assert issued.counts["tune"] == 16
    assert issued.loop == "closed"


# -- reference -------------------------------------------------------------------------------


def test_a_reference_in_double_precision_is_the_truth() -> None:
    double = replace(planner(), dtype=torch.float64)
    issued = certificate(reference=double)
    assert issued.realised[0]["member"] == 0
    assert 0.0 < issued.realised[0]["deviation_mean"] < 1e-4
    assert issued.member == certificate().member
    assert issued.bound(np.array([0.0]))[0] > 0.0


def test_full_compute_beyond_the_tolerance_is_refused() -> None:
    double = replace(planner(), dtype=torch.float64)
    with pytest.raises(CalibrationError, match=r"full compute itself.*deploy in higher precision"):
        certificate(reference=double, tolerance=1e-9)
    with pytest.raises(CalibrationError, match="full compute itself"):
        short_certificate(
            reference=replace(mixture_planner("ddim", steps=6), dtype=torch.float64),
            tolerance=1e-9,
        )


# -- the per-call bound ----------------------------------------------------------------------


def test_the_per_call_bound_covers_on_average_over_calibrations() -> None:
    own, covered = planner(), []
    context = contexts(1500, seed=50)
    noise = own.draw_noise(1500, generator=torch.Generator().manual_seed(5))
    full = own.sample(context, noise=noise)
    for seed in range(12):
        issued = certificate(calls=contexts(72, seed=seed), seed=seed)
        cached, record = Runtime(own, issued.program)(context, noise=noise)
        deviation = rms_step(full, cached).double().numpy()
        covered.append(np.mean(deviation <= issued.bound(record.estimate)))
    units = 11  # of the bound split; the expected coverage is 11 / 12 exactly
    error = math.sqrt(units / ((units + 1) ** 2 * (units + 2)) / len(covered))
    assert np.mean(covered) >= 0.9 - 3 * error
    assert abs(np.mean(covered) - units / (units + 1)) < 4 * error + 0.02


# -- side effects ----------------------------------------------------------------------------


def test_calibrating_leaves_the_planner_as_it_was() -> None:
    own = planner()
    before = own.identity()
    calls = contexts(72)
    kept = calls.clone()
    certificate(planner=own, calls=calls)
    assert own.identity() == before
    assert torch.equal(calls, kept)


def test_the_units_behind_a_certificate_are_paired_with_the_seed_given() -> None:
    issued = certificate(seed=8)
    split = split_units(72, 0.1, 0.95, tune=False, seed=8)["certify"]
    paired = PairedCalls(planner(), contexts(72), 72, rms_step, call_seed(8, 0))
    measured = paired.measure(issued.program, split)
    np.testing.assert_allclose(np.sort(measured.estimate), issued.estimates, rtol=1e-4)
    assert calibrate.__kwdefaults__["confidence"] == 0.95
