"""Alternatives are tuned by Muninn's own score, on tuning calls, and not worse than untuned."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from muninn.certify.search import Search
from torch import Tensor

import certify_cases
import muninn.certify.calibrate
import muninn.certify.risk
from analytic import mixture_planner
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn_bench.measure import alternatives
from muninn_bench.measure.alternatives import (
    METHODS,
    Alternative,
    AlternativeSearch,
    available,
    deviations,
    every_order,
)
from muninn_bench.measure.baselines import (
    distinct,
    fixed_skip,
    sampler_states,
    spacings,
    trained_states,
)
from muninn_bench.measure.matched import allowed_share, mean_evaluations, tuning_calls

SHAPE, STEPS, CALLS, COUNT = (8, 2), 40, 24, 7
SCHEDULE = Schedule.cosine(STEPS)


def calls(planner: Planner, seed: int = 3, count: int = CALLS) -> PairedCalls:
    return PairedCalls(planner, None, count, rms_step, seed)


@pytest.fixture(scope="module")
def planner() -> Planner:
    return mixture_planner(ddim(SCHEDULE, kind="sample"), SHAPE)


@pytest.fixture(scope="module")
def found(planner: Planner) -> dict[str, Alternative]:
    return AlternativeSearch(calls(planner), 0.05, 0.03).best(COUNT)


# -- spacings ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 7, 39, 40])
def test_spacings_visit_both_ends_and_no_state_twice(planner: Planner, count: int) -> None:
    ways = spacings(sampler_states(planner.sampler), count)
    assert len(set(ways.values())) == len(ways) >= 1
    for places in ways.values():
        assert len(places) == count and places[0] == 0 and places[-1] == STEPS - 1
        assert (np.diff(places) >= 1).all()


def test_powers_say_where_states_are_dense(planner: Planner) -> None:
    ways = spacings(sampler_states(planner.sampler), 9)
    middle = {name: places[4] for name, places in ways.items()}
    assert middle["t ~ u^0.5"] < middle["t ~ u^1"] < middle["t ~ u^2"]  # step 0 is the noisiest
    # t ~ u^2 in closed form: timesteps 39 u^2 at u = 1, 7/8, ..., 0
    timesteps = [STEPS - 1 - place for place in ways["t ~ u^2"]]
    assert timesteps == [39, 30, 22, 15, 10, 5, 2, 1, 0]
    with pytest.raises(InputError, match="between 2 and 40"):
        spacings(sampler_states(planner.sampler), 41)


def test_places_are_moved_apart_within_their_range() -> None:
    assert distinct(np.array([0.0, 0.0, 0.0, 3.0]), 4) == (0, 1, 2, 3)
    assert distinct(np.array([0.0, 8.9, 8.95, 9.0]), 10) == (0, 7, 8, 9)


def test_every_trained_state_between_the_ends_of_a_short_sampler() -> None:
    schedule = Schedule.cosine(100)
    sampler = ddim(schedule, 16, kind="epsilon")
    states = trained_states(sampler, schedule.alpha_bar)
    assert [state.timestep for state in states] == list(range(90, -1, -1))
    own = {state.timestep: state for state in sampler_states(sampler)}
    for state in states:
        if state.timestep in own:
            assert state == pytest.approx(own[state.timestep], abs=1e-9)
    assert trained_states(sampler, None) == sampler_states(sampler)
    for table in (Schedule.linear(100).alpha_bar, schedule.alpha_bar[:50]):
        with pytest.raises(InputError, match="table"):
            trained_states(sampler, table)


# -- tuning ------------------------------------------------------------------------------------


def test_all_that_fit_are_tuned_and_spend_what_they_may(
    planner: Planner, found: dict[str, Alternative]
) -> None:
    assert tuple(found) == available(planner)
    noise = planner.draw_noise(seeds=range(3))
    for name, alternative in found.items():
        plans, record = alternative.run(planner)(None, noise)
        assert plans.shape == (3, *SHAPE) and record.evaluations.tolist() == [COUNT] * 3
        assert alternative.evaluations == COUNT and alternative.calls == CALLS
        assert alternative.order in METHODS[name]
        assert alternative.states[0] == sampler_states(planner.sampler)[0]
        assert alternative.states[-1].timestep == 0


def test_the_score_is_that_of_muninns_own_tuner(planner: Planner) -> None:
    """Reuse at a stride is fewer steps (no clipping here), so both must get one score."""
    paired = calls(planner)
    search = AlternativeSearch(paired, 0.05, 0.1)
    even = Alternative.untuned("fewsteps", planner, COUNT)
    ours = search._score("fewsteps", 1, even.states, CALLS)
    theirs = Search(paired, 0.05, 0.1, Journal(None, {}), lambda count: None)
    assert ours == pytest.approx(theirs.score(fixed_skip(planner, COUNT)).excess, rel=1e-3)
    deviation = deviations(even.run(planner), paired, CALLS)
    assert ours == np.quantile(deviation / 0.05, 0.9, method="lower")


def test_tuning_is_no_worse_than_even_spacing_on_its_calls_and_better_on_others(
    planner: Planner, found: dict[str, Alternative]
) -> None:
    search = AlternativeSearch(calls(planner), 0.05, 0.03)
    fresh = calls(planner, seed=77, count=64)
    ratios = {}
    for name, alternative in found.items():
        even = Alternative.untuned(name, planner, COUNT)
        assert alternative.excess <= search._score(name, even.order, even.states, CALLS) + 1e-9
        tuned, plain = (deviations(one.run(planner), fresh, 64) for one in (alternative, even))
        ratios[name] = np.median(tuned) / np.median(plain)
    assert max(ratios.values()) < 1.1 and min(ratios.values()) < 0.8, ratios


def test_the_same_calls_give_the_same_alternatives(
    planner: Planner, found: dict[str, Alternative]
) -> None:
    assert AlternativeSearch(calls(planner), 0.05, 0.03).best(COUNT) == found
    for alternative in found.values():
        stored = json.loads(json.dumps(alternative.to_json()))
        assert Alternative.from_json(stored) == alternative
        assert alternative.tuned()["timesteps"] == [state.timestep for state in alternative.states]


def test_a_solver_that_explodes_does_not_win(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = alternatives._sample

    def broken(name: str, order: int, states: tuple, used: Planner) -> Callable[..., Tensor]:
        sample = real(name, order, states, used)
        if order != 2:
            return sample
        return lambda context, noise: sample(context, noise=noise) * float("nan")

    monkeypatch.setattr(alternatives, "_sample", broken)
    best = AlternativeSearch(calls(planner), 0.05, 0.03).best(COUNT, ["taylor"])["taylor"]
    assert best.order == 1 and np.isfinite(best.excess)


def test_a_short_sampler_may_be_asked_anywhere_in_between() -> None:
    pytest.importorskip("diffusers")
    schedule = Schedule.cosine(100)
    sampler = ddim(schedule, 10, kind="sample")
    every = mixture_planner(ddim(schedule, kind="sample"), SHAPE)
    planner = Planner(every.denoiser, sampler, SHAPE, dtype=every.dtype)
    best = AlternativeSearch(calls(planner), 0.05, 0.03, schedule.alpha_bar).best(5)
    asked = {state.timestep for name in ("dpmsolver", "unipc") for state in best[name].states}
    assert asked - {step.timestep for step in sampler.steps}
    steps = {step.timestep for step in sampler.steps}
    assert {state.timestep for state in best["taylor"].states} <= steps


def test_flow_matching_has_fewer_euler_steps_and_no_diffusion_solver() -> None:
    planner = mixture_planner(euler(12), SHAPE)
    best = AlternativeSearch(calls(planner), 0.05, 0.03).best(4)
    assert tuple(best) == ("fewsteps", "taylor")
    assert best["fewsteps"].states[0].timestep == 1.0
    with pytest.raises(InputError, match="choose from fewsteps, taylor"):
        AlternativeSearch(calls(planner), 0.05, 0.03).best(4, ["unipc"])


def test_a_stochastic_sampler_is_refused_with_the_way_out() -> None:
    planner = mixture_planner(ddpm(SCHEDULE, kind="sample"), SHAPE)
    with pytest.raises(InputError, match="same model and a deterministic sampler"):
        AlternativeSearch(calls(planner), 0.05, 0.03)


def test_on_every_step_first_order_is_the_sampler_and_higher_ones_show_its_step_size(
    planner: Planner,
) -> None:
    paired = calls(planner)
    found = {(one.name, one.order): one for one in every_order(planner)}
    assert {name: sum(key[0] == name for key in found) for name in METHODS} == {
        name: len(orders) for name, orders in METHODS.items()
    }
    sizes = {key: np.median(deviations(one.run(planner), paired, 8)) for key, one in found.items()}
    assert max(sizes["fewsteps", 1], sizes["taylor", 1], sizes["taylor", 2]) < 1e-5
    assert sizes["dpmsolver", 2] > 1e-3 and sizes["unipc", 3] > 1e-3
    # Solvers of the same equation agree with each other better than with the sampler.
    noise = planner.draw_noise(seeds=range(8))
    second, third = (found["dpmsolver", order].run(planner)(None, noise)[0] for order in (2, 3))
    assert (second - third).abs().median() < (second - planner.sample(noise=noise)).abs().median()


def test_without_diffusers_its_solvers_are_not_offered(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        alternatives, "find_spec", lambda name: None if name == "diffusers" else find_spec(name)
    )
    assert available(planner) == ("fewsteps", "taylor")


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
