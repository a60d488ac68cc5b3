"""Alternatives are tuned by Muninn's own search, on tuning calls, and not worse than untuned."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import certify_cases
import muninn.certify.calibrate
import muninn.certify.published
import muninn.certify.risk
from analytic import mixture_planner
from muninn.certify.alternatives import allowed_share
from muninn.certify.frontier import Frontier
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import FloatArray, Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.methods import Method, methods
from muninn.programs.spacing import sampler_states
from muninn.programs.table import Table
from muninn_bench.measure.alternatives import (
    Alternative,
    AlternativeSearch,
    available,
    every_order,
)
from muninn_bench.measure.baselines import fixed_skip
from muninn_bench.measure.matched import mean_evaluations, tuning_calls

SHAPE, STEPS, CALLS, COUNT = (8, 2), 40, 24, 7
SCHEDULE = Schedule.cosine(STEPS)


def calls(planner: Planner, seed: int = 3, count: int = CALLS) -> PairedCalls:
    return PairedCalls(planner, None, count, rms_step, seed)


def deviations(alternative: Alternative, paired: PairedCalls) -> FloatArray:
    every = list(range(paired.count))
    return paired.measure_in_batches(alternative.table, every).deviation


@pytest.fixture(scope="module")
def planner() -> Planner:
    return mixture_planner(ddim(SCHEDULE, kind="sample"), SHAPE)


@pytest.fixture(scope="module")
def found(planner: Planner) -> dict[str, Alternative]:
    return AlternativeSearch(calls(planner), 0.05, 0.03).best(COUNT)


def test_all_that_fit_are_tuned_and_spend_what_they_may(
    planner: Planner, found: dict[str, Alternative]
) -> None:
    assert tuple(found) == available(planner) == ("fewsteps", "dpmsolver", "unipc", "taylor")
    noise = planner.draw_noise(seeds=range(3))
    groups = {method.group: method for method in methods(planner.sampler).values()}
    for name, alternative in found.items():
        plans, record = alternative.run(planner)(None, noise)
        assert plans.shape == (3, *SHAPE) and record.evaluations.tolist() == [COUNT] * 3
        assert torch.equal(alternative.sample(planner)(noise=noise), plans)
        assert alternative.evaluations == COUNT and alternative.calls == CALLS
        assert name in groups
        assert alternative.table.states[0] == sampler_states(planner.sampler)[0]
        assert 0 <= alternative.timesteps[-1] <= 4  # both ends are offered, tuning may stop short


def test_the_score_is_that_of_muninns_own_tuner(planner: Planner) -> None:
    """Reuse at a stride is fewer steps (no clipping here), so both must get one score."""
    paired = calls(planner)
    even = Alternative.untuned("fewsteps", planner, COUNT)
    tuner = Frontier(paired, 0.05, 0.1, groups={"fewsteps"})
    ours = tuner.entry(even.table, "fewsteps").excess
    assert ours == pytest.approx(tuner.entry(fixed_skip(planner, COUNT), "skip").excess, rel=1e-3)
    assert ours == np.quantile(deviations(even, paired) / 0.05, 0.9, method="lower")
    best = AlternativeSearch(paired, 0.05, 0.1).best(COUNT, ["fewsteps"])["fewsteps"]
    assert best.excess == tuner.entry(best.table, "fewsteps").excess


def test_tuning_is_no_worse_than_even_spacing_on_its_calls_and_better_on_others(
    planner: Planner, found: dict[str, Alternative]
) -> None:
    tuner = Frontier(calls(planner), 0.05, 0.03, groups={"fewsteps"})
    fresh = calls(planner, seed=77, count=64)
    ratios = {}
    for name, alternative in found.items():
        even = Alternative.untuned(name, planner, COUNT)
        scores = [tuner.entry(one.table, name).score for one in (alternative, even)]
        assert scores[0] <= scores[1] + 1e-9
        tuned, plain = (deviations(one, fresh) for one in (alternative, even))
        ratios[name] = np.median(tuned) / np.median(plain)
    assert max(ratios.values()) < 1.1 and min(ratios.values()) < 0.8, ratios


def test_the_same_calls_give_the_same_alternatives(
    planner: Planner, found: dict[str, Alternative]
) -> None:
    assert AlternativeSearch(calls(planner), 0.05, 0.03).best(COUNT) == found
    for alternative in found.values():
        stored = json.loads(json.dumps(alternative.to_json()))
        assert Alternative.from_json(stored) == alternative
        said = alternative.tuned()
        assert said["method"] == alternative.table.method
        assert said["timesteps"] == [state.timestep for state in alternative.table.states]
        assert (said["excess"], said["calls"]) == (alternative.excess, CALLS)


def test_a_solver_that_explodes_does_not_win(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sampler: Sampler) -> dict[str, Method]:
        offered = methods(sampler)
        second = offered["taylor-2"]

        def exploding(*given: object) -> Table:
            table = second.build(*given)  # type: ignore[arg-type]
            return replace(table, weights=(1e9 * table.array).tolist())

        return {**offered, "taylor-2": second._replace(build=exploding)}

    monkeypatch.setattr(muninn.certify.published, "methods", broken)
    best = AlternativeSearch(calls(planner), 0.05, 0.03).best(COUNT, ["taylor"])["taylor"]
    assert best.table.method.startswith("Taylor series 1") and np.isfinite(best.excess)


def test_a_short_sampler_may_be_asked_anywhere_in_between() -> None:
    schedule = Schedule.cosine(100)
    sampler = ddim(schedule, 10, kind="sample")
    every = mixture_planner(ddim(schedule, kind="sample"), SHAPE)
    planner = Planner(every.denoiser, sampler, SHAPE, dtype=every.dtype)
    best = AlternativeSearch(calls(planner), 0.05, 0.03).best(5)
    steps = {step.timestep for step in sampler.steps}
    asked = {timestep for name in ("dpmsolver", "unipc") for timestep in best[name].timesteps}
    assert asked - steps
    assert set(best["taylor"].timesteps) <= steps


def test_flow_matching_has_solvers_of_its_own_and_no_diffusion_solver() -> None:
    planner = mixture_planner(euler(12), SHAPE)
    best = AlternativeSearch(calls(planner), 0.05, 0.03).best(4)
    spent = {name: alternative.evaluations for name, alternative in best.items()}
    # Heun's method evaluates twice a step, once in the last: it gets one more, not one less.
    assert spent == {"fewsteps": 4, "taylor": 4, "adams": 4, "heun": 5}
    assert Alternative.untuned("heun", planner, 4).evaluations == 5
    assert best["fewsteps"].timesteps[0] == 1.0
    with pytest.raises(InputError, match="choose from fewsteps, taylor, adams, heun"):
        AlternativeSearch(calls(planner), 0.05, 0.03).best(4, ["unipc"])


def test_a_stochastic_sampler_is_shortened_on_its_own_noise() -> None:
    planner = mixture_planner(ddpm(SCHEDULE, kind="sample"), SHAPE)
    best = AlternativeSearch(calls(planner), 0.05, 0.03).best(20)
    assert tuple(best) == ("fewsteps", "dpmsolver")
    noise = planner.draw_noise(seeds=range(4))
    full = planner.sample(noise=noise)
    other = planner.draw_noise(seeds=range(4, 8))
    for alternative in best.values():
        near = rms_step(full, alternative.sample(planner)(noise=noise))
        far = rms_step(full, alternative.sample(planner)(noise=replace(noise, steps=other.steps)))
        assert (near < 0.5 * far).all()
    (whole,) = every_order(planner, ["fewsteps"])
    torch.testing.assert_close(whole.sample(planner)(noise=noise), full, atol=1e-5, rtol=1e-5)


def test_on_every_step_first_order_is_the_sampler_and_higher_ones_show_its_step_size(
    planner: Planner,
) -> None:
    paired = calls(planner, count=8)
    found = {one.table.method: one for one in every_order(planner)}
    assert list(found) == [
        "fewer steps",
        *(f"DPM-Solver++ {order}M" for order in (2, 3)),
        *(f"UniPC {order}" for order in (1, 2, 3)),
        *(f"Taylor series {order}" for order in (1, 2)),
    ]
    sizes = {name: np.median(deviations(one, paired)) for name, one in found.items()}
    same = ("fewer steps", "Taylor series 1", "Taylor series 2")
    assert max(sizes[name] for name in same) < 1e-5
    assert sizes["DPM-Solver++ 2M"] > 1e-3 and sizes["UniPC 3"] > 1e-3
    # Solvers of the same equation agree with each other better than with the sampler.
    noise = planner.draw_noise(seeds=range(8))
    second, third = (
        found[f"DPM-Solver++ {order}M"].run(planner)(None, noise)[0] for order in (2, 3)
    )
    assert (second - third).abs().median() < (second - planner.sample(noise=noise)).abs().median()


def test_the_tuning_calls_are_those_of_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[PairedCalls] = []

    def watched(paired: PairedCalls, *rest: object, **named: object) -> object:
        seen.append(paired)
        return certify_cases.FAMILY

    monkeypatch.setattr(muninn.certify.calibrate, "tune_family", watched)
    contexts = certify_cases.contexts(120)
    made = certify_cases.certificate(calls=contexts, family=None, seed=5)
    found = tuning_calls(certify_cases.planner(), contexts, rms_step, made)
    (theirs,) = seen
    assert found.count == theirs.count == made.counts["tune"]
    every = list(range(found.count))
    assert torch.equal(found.contexts(every), theirs.contexts(every))
    assert torch.equal(found.noise(every).initial, theirs.noise(every).initial)
    # At this share of violations, and not at one more, the certificate is still given.
    certify = made.counts["certify"]
    assert (
        round(allowed_share(made) * certify)
        == muninn.certify.risk.order_statistic(certify, 0.1, 0.95) - 1
    )
    spent = {row["member"]: row["evaluations_mean"] for row in made.realised}
    assert mean_evaluations(made) - 1 < spent[made.member] <= mean_evaluations(made)
