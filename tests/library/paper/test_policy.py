"""Algorithm 1 against a loop written out by hand, and what it promises and does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import paper_cases as cases
from muninn.errors import DenoiserError, InputError
from muninn.model.denoiser import ClassifierFreeGuidance, GradientGuidance
from muninn.model.planner import Planner
from muninn.paper.envelope import fit_envelope
from muninn.paper.epsilon import used_epsilon
from muninn.paper.gates import Accumulated, Threshold, paper_budget
from muninn.paper.policy import ProbedPlanner
from muninn.paper.score import relative_l1
from muninn.paper.split import GuidedSplit, Probe

KINDS = [("ddim", "epsilon"), ("ddim", "sample"), ("ddpm", "epsilon"), ("ddpm", "sample")]


def _policy(planner: Planner, tolerance: float, **options: Any) -> ProbedPlanner:
    gate = paper_budget(planner, cases.envelope(planner), tolerance, units="appendix")
    return ProbedPlanner(planner, cases.probe(planner), gate, **options)


def _context(rows: int) -> Tensor:
    return torch.linspace(-0.5, 0.5, 2 * rows).view(rows, 2)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_full_compute_is_bit_identical_without_a_budget(name: str, kind: Any) -> None:
    planner = cases.planner(name, kind)
    noise = planner.draw_noise(4, generator=torch.Generator().manual_seed(1))
    policy = _policy(planner, 1e-12)
    cached, record = policy(_context(4), noise=noise)
    assert torch.equal(cached, planner.sample(_context(4), noise=noise))
    assert (record.evaluations == cases.STEPS).all()
    assert record.bound is not None
    assert not record.bound.any()


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_algorithm_by_hand(name: str, kind: Any) -> None:
    planner = cases.planner(name, kind)
    policy = _policy(planner, 0.5)
    gate: Any = policy.gate
    noise = planner.draw_noise(1, generator=torch.Generator().manual_seed(2))
    cached, record = policy(None, noise=noise)

    wave: Any = planner.denoiser
    x = planner.start(noise, None)
    budget, held, before = np.float32(0.5), x, torch.zeros(1)
    evaluated = []
    for step in range(cases.STEPS):
        told = planner.timestep(step, 1)
        feature = wave.feature(wave.stem(x, told, None), x)
        cost = np.float32(np.inf)
        if step in gate.envelope.eligible:
            score = relative_l1(feature, before)
            cost = np.float32(gate.weights[step]) * np.float32(gate.envelope(step, score)[0])
        before = feature
        if cost <= budget:
            budget -= cost
            x = planner.sampler.step(x, held, step, noise.at(step, slice(None)), "epsilon")
            x = cases.pin_start(x, None)
        else:
            evaluated.append(step)
            prediction = wave(x, told, None)
            held = used_epsilon(planner.sampler, x, prediction, step)
            x = planner.advance(x, prediction, step, noise.at(step, slice(None)), None)
    assert 2 < len(evaluated) < cases.STEPS
    assert record.evaluated[0].nonzero()[0].tolist() == evaluated
    assert torch.allclose(cached, x, atol=1e-6)
    assert record.bound is not None
    assert record.bound[0] == pytest.approx(0.5 - budget, abs=1e-6)
    assert record.rho[0] == pytest.approx((0.5 - budget) / 0.5, abs=1e-6)


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("age", [None, 2])
def test_batch_equals_loop(name: str, kind: Any, age: int | None) -> None:
    planner = cases.planner(name, kind, gain=3.0)
    noise = planner.draw_noise(seeds=range(6))
    context = 3.0 * _context(6)
    patterns = set()
    for tolerance in (0.2, 0.4, 0.8):
        policy = _policy(planner, tolerance, longest_age=age)
        together, record = policy(context, noise=noise)
        patterns |= {(tolerance, *row) for row in record.evaluated.tolist()}
        for row in range(6):
            pick = torch.tensor([row])
            alone, own = policy(context[pick], noise=noise.select(pick))
            assert torch.allclose(alone[0], together[row], atol=1e-5)
            assert (own.evaluated[0] == record.evaluated[row]).all()
            assert own.charged is not None
            assert record.charged is not None
            assert own.charged[0] == pytest.approx(record.charged[row], rel=1e-4, abs=1e-7)
    assert len(patterns) > 3  # rows of one batch decided differently


def test_budget_is_never_overspent() -> None:
    planner = cases.planner()
    for tolerance in (0.01, 0.1, 1.0, 10.0):
        _, record = _policy(planner, tolerance)(noise=planner.draw_noise(seeds=range(8)))
        assert record.bound is not None
        assert (record.bound <= tolerance * (1 + 1e-6)).all()
        assert (record.rho <= 1 + 1e-6).all()


def test_ends_are_always_evaluated_and_age_is_capped() -> None:
    planner = cases.planner()
    _, record = _policy(planner, 100.0)(noise=planner.draw_noise(3))
    assert record.evaluated[:, [0, 1, -2, -1]].all()
    assert (record.evaluations == 4).all()
    _, capped = _policy(planner, 100.0, longest_age=3)(noise=planner.draw_noise(3))
    for row in capped.evaluated:
        assert np.diff(row.nonzero()[0]).max() == 4


def test_stem_runs_once_a_step_and_the_core_only_where_evaluated() -> None:
    planner = cases.planner()
    policy = _policy(planner, 0.3)
    wave: Any = planner.denoiser
    wave.counts.update(stem=0, core=0)
    _, record = policy(2.0 * _context(5), noise=planner.draw_noise(seeds=range(5)))
    assert wave.counts == {"stem": 5 * cases.STEPS, "core": int(record.evaluations.sum())}


def test_guided_reuse_skips_both_forwards_and_the_gradient() -> None:
    inner = cases.planner()
    wave: Any = inner.denoiser
    gradients = 0

    def objective(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        nonlocal gradients
        gradients += len(x)
        return x.square().sum(dim=(1, 2))

    guidance = GradientGuidance(
        ClassifierFreeGuidance(wave, lambda context: None, 1.5), objective, 0.1, inner.sampler
    )
    planner = Planner(guidance, inner.sampler, cases.SHAPE, condition=cases.pin_start)
    split = GuidedSplit(guidance, GuidedSplit(guidance.denoiser, wave))
    policy = ProbedPlanner(planner, Probe(split), Accumulated(0.2))
    wave.counts.update(stem=0, core=0)
    _, record = policy(_context(3), noise=planner.draw_noise(seeds=range(3)))
    spent = int(record.evaluations.sum())
    assert spent < 3 * cases.STEPS
    assert gradients == spent
    # conditional stem at every step; the unconditional forward is whole, at evaluations only
    assert wave.counts == {"stem": 3 * cases.STEPS + spent, "core": 2 * spent}
    full = ProbedPlanner(planner, Probe(split), Threshold(-1.0))
    noise = planner.draw_noise(seeds=range(3))
    assert torch.equal(full(_context(3), noise=noise)[0], planner.sample(_context(3), noise=noise))


def test_cache_is_half_precision_under_autocast() -> None:
    planner = cases.planner()
    policy = ProbedPlanner(planner, cases.probe(planner), Threshold(1e9))
    noise = planner.draw_noise(seeds=range(2))
    exact, first = policy(noise=noise)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, second = policy(noise=noise)
    assert (first.evaluated == second.evaluated).all()
    assert rounded.dtype == torch.float32
    assert 1e-5 < float((exact - rounded).abs().max()) < 0.05  # what eight bits of epsilon lose


def test_certificate_of_the_paper_does_not_hold() -> None:
    """Dhat stays below the tolerance while nearly every trajectory leaves it (docs/paper.md)."""
    planner = cases.planner(gain=3.0)
    fitted = fit_envelope(cases.pairs(planner, 700), 0.05)  # strict: the index is not void
    gate = paper_budget(planner, fitted, 0.3, units="algorithm")
    policy = ProbedPlanner(planner, cases.probe(planner), gate)
    noise = planner.draw_noise(seeds=range(10_000, 10_200))
    cached, record = policy(noise=noise)
    deviation = (planner.sample(noise=noise) - cached).flatten(1).norm(dim=1) / cases.SHAPE[
        0
    ] ** 0.5
    assert record.bound is not None
    assert (record.bound <= 0.3 + 1e-6).all()
    assert float((deviation > 0.3).float().mean()) > 0.5  # the promise was 5%


def test_bad_input_is_refused() -> None:
    planner = cases.planner()
    with pytest.raises(InputError, match="eligible must be"):
        _policy(planner, 0.1, eligible=(0, 1))
    with pytest.raises(InputError, match="longest_age"):
        _policy(planner, 0.1, longest_age=0)
    broken = Planner(lambda x, t, c: torch.full_like(x, float("nan")), planner.sampler, cases.SHAPE)
    wave: Any = planner.denoiser

    class Bad(type(wave)):  # type: ignore[misc]
        def core(self, hidden: Any, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
            return torch.full_like(x, float("nan"))

    policy = ProbedPlanner(broken, Probe(Bad(planner.sampler)), Threshold(0.1))
    with pytest.raises(DenoiserError, match="not finite"):
        policy(noise=planner.draw_noise(1))
