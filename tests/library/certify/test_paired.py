"""Paired runs: the same noise for both, whatever the batch, and full compute once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from analytic import Counting
from certify_cases import FAMILY, STEPS, contexts, planner
from muninn.certify.metrics import rms_step
from muninn.certify.paired import Measured, PairedCalls, call_seed, full_compute
from muninn.engines.runtime import Runtime
from muninn.errors import DenoiserError, InputError
from muninn.programs.plan import Program


def paired(count: int = 8, sampler: str = "ddim", seed: int = 3) -> PairedCalls:
    return PairedCalls(planner(sampler), contexts(count), count, rms_step, seed)


POSITIONS = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(st.tuples(st.integers(0, 3), POSITIONS), st.tuples(st.integers(0, 3), POSITIONS))
def test_seeds_of_different_positions_differ(
    one: tuple[int, tuple[int, ...]], other: tuple[int, tuple[int, ...]]
) -> None:
    first, second = call_seed(one[0], *one[1]), call_seed(other[0], *other[1])
    assert 0 <= first < 2**63
    assert (first == second) == (one == other)


def test_the_seed_of_an_episode_is_not_that_of_its_first_call() -> None:
    # A SeedSequence pads with zeros; a world drawn from the episode's seed would know the noise.
    assert call_seed(7, 3) != call_seed(7, 3, 0)


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_the_noise_of_a_call_depends_on_nothing_but_its_number(sampler: str) -> None:
    calls = paired(sampler=sampler)
    whole, part = calls.noise(list(range(8))), calls.noise([5, 2])
    assert torch.equal(part.initial, whole.initial[[5, 2]])
    assert list(part.steps) == list(whole.steps)
    for step, draw in part.steps.items():
        assert torch.equal(draw, whole.steps[step][[5, 2]])


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
def test_full_compute_deviates_from_itself_by_exactly_nothing(sampler: str) -> None:
    measured = paired(sampler=sampler).measure(Program.full("sample"), [0, 3, 4])
    assert measured.deviation.tolist() == [0.0, 0.0, 0.0]
    assert measured.evaluations.tolist() == [STEPS] * 3


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
@pytest.mark.parametrize("member", [1, 5])
def test_a_measurement_is_the_deviation_of_a_run_with_the_same_noise(
    sampler: str, member: int
) -> None:
    calls, chosen = paired(sampler=sampler), [1, 6, 2]
    measured = calls.measure(FAMILY.member(member), chosen)
    own, noise = calls.contexts(chosen), calls.noise(chosen)
    cached, record = Runtime(calls.planner, FAMILY.member(member))(own, noise=noise)
    full = calls.planner.sample(own, noise=noise)
    np.testing.assert_allclose(measured.deviation, rms_step(full, cached).double().numpy())
    np.testing.assert_array_equal(measured.estimate, record.estimate)
    np.testing.assert_array_equal(measured.evaluations, record.evaluations)
    assert (measured.deviation > 0.0).all()


def test_a_measurement_does_not_depend_on_the_batch() -> None:
    calls = paired()
    together = calls.measure(FAMILY.member(4), list(range(8)))
    apart = Measured.join([calls.measure(FAMILY.member(4), [call]) for call in range(8)])
    np.testing.assert_allclose(together.deviation, apart.deviation, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(together.evaluations, apart.evaluations)


def test_full_trajectories_are_computed_once() -> None:
    counting = Counting(planner().denoiser)
    calls = PairedCalls(replace(planner(), denoiser=counting), contexts(8), 8, rms_step, 0)
    calls.full([0, 1, 2])
    calls.full([2, 1, 3])
    assert counting.rows == [3] * STEPS + [1] * STEPS
    again = calls.full([3, 0])
    assert len(counting.rows) == 2 * STEPS
    assert torch.allclose(
        again, planner().sample(calls.contexts([3, 0]), noise=calls.noise([3, 0]))
    )


def test_a_reference_in_higher_precision_shares_the_noise() -> None:
    single = planner()
    double = replace(single, dtype=torch.float64)
    calls = PairedCalls(single, contexts(6), 6, rms_step, 0, reference=double)
    truth = calls.full(list(range(6)))
    assert truth.dtype == torch.float64
    measured = calls.measure(Program.full("sample"), list(range(6)))
    assert (measured.deviation > 0.0).all() and (measured.deviation < 1e-4).all()
    own = single.sample(calls.context, noise=calls.noise(list(range(6)))).double()
    np.testing.assert_allclose(measured.deviation, rms_step(truth, own).numpy(), atol=1e-7)


def test_full_compute_that_is_not_finite_stops_before_anything_is_certified() -> None:
    def broken(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return torch.where(timestep.view(-1, 1, 1) < 5, float("nan"), 0.0) * x

    bad = replace(planner(), denoiser=broken)
    with pytest.raises(DenoiserError, match="not finite; check the network before"):
        full_compute(bad, contexts(2), bad.draw_noise(2))
    with pytest.raises(DenoiserError, match="not finite"):
        PairedCalls(bad, contexts(2), 2, rms_step, 0).measure(FAMILY.member(5), [0])


def test_context_and_count_must_agree() -> None:
    with pytest.raises(InputError, match="the context has 5 calls but 6 were announced"):
        PairedCalls(planner(), contexts(5), 6, rms_step, 0)


def test_tolerances_follow_the_chosen_calls() -> None:
    calls = paired()
    both = calls.tolerance(lambda context: context[:, 0] ** 2 + 1.0, [4, 1])
    np.testing.assert_allclose(both, calls.context[[4, 1], 0] ** 2 + 1.0)
