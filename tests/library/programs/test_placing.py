"""Prices of anchors, against least squares by hand, brute force and tables."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from analytic import mixture_planner
from fitting_cases import gaussian
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray, Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs import placing
from muninn.programs.anchors import Chain, full_chain
from muninn.programs.methods import methods
from muninn.programs.placing import LEAST_NOISE, POWERS, SHARPNESS, TYPICAL, Placing
from muninn.programs.spacing import sampler_states, spacings

STEPS, CALLS = 14, 24
SCHEDULE = Schedule.linear(100, end=0.06)
SAMPLERS = {
    "ddim": ddim(SCHEDULE, STEPS, kind="epsilon"),
    "clipped": ddim(SCHEDULE, STEPS, kind="epsilon", clip=0.8, keep_epsilon=True),
    "ddpm": ddpm(SCHEDULE, STEPS, kind="sample"),
    "euler": euler(STEPS),
}


def placed(planner: Planner, calls: int = CALLS, chain: Chain | None = None) -> Placing:
    noise = planner.draw_noise(seeds=range(calls))
    chain = chain or full_chain(planner, None, noise, calls, 32)
    free = torch.ones(planner.shape, dtype=torch.bool)
    return Placing(planner, chain, noise, free)


@pytest.mark.parametrize("power", [0.0, 0.6])
def test_a_price_is_the_error_of_least_squares(
    power: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placing, "TRIMMED", 0.0)
    planner, anchors = mixture_planner(SAMPLERS["ddim"]), (0, 4, 9)
    found = placed(planner).prices(np.array([anchors]), power)[0]
    noise = planner.draw_noise(seeds=range(CALLS))
    chain = full_chain(planner, None, noise, CALLS, 32)
    known, errors = [noise.initial.flatten().double().numpy()], []
    for anchor, end in zip(anchors, (*anchors[1:], STEPS), strict=True):
        clean = planner.sampler.convert(
            chain.states[anchor], chain.predictions[anchor], anchor, "sample"
        )
        known.append(clean.flatten().double().numpy())
        target = chain.states[end].flatten().double().numpy()
        matrix = np.stack(known, axis=1)
        left = target - matrix @ np.linalg.lstsq(matrix, target, rcond=None)[0]
        level = planner.sampler.steps[end].noise if end < STEPS else 0.0
        errors.append(np.sqrt((left**2).sum() / CALLS) / max(level, LEAST_NOISE) ** power)
    assert found == pytest.approx(
        (np.array(errors) ** SHARPNESS).sum() ** (1 / SHARPNESS), rel=1e-4
    )


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_table_is_cheaper_than_the_least_squares_of_its_anchors(name: str) -> None:
    planner = mixture_planner(SAMPLERS[name])
    prices, own = placed(planner), sampler_states(planner.sampler)
    anchors = (0, 3, 6, 10)
    least = prices.prices(np.array([anchors]), TYPICAL)[0]
    tables = [
        method.build(planner.sampler, [own[step] for step in anchors])
        for method in methods(planner.sampler).values()
        if not method.twice
    ]
    priced = [prices.price(table) for table in tables]
    assert len(priced) >= 5
    assert all(price is not None and price > (1 - 1e-6) * least for price in priced)


@pytest.mark.parametrize("name", ["ddim", "clipped", "euler"])
def test_a_table_of_all_steps_is_full_compute(name: str) -> None:
    planner = mixture_planner(SAMPLERS[name])
    own, prices = sampler_states(planner.sampler), placed(planner)
    every = methods(planner.sampler)["fewsteps"]
    few = prices.price(every.build(planner.sampler, own[::3]))
    full = prices.price(every.build(planner.sampler, own))
    assert few is not None and full is not None
    assert full < 1e-3 * few


def test_between_two_steps_there_is_no_price() -> None:
    planner = mixture_planner(SAMPLERS["euler"])
    between = [sampler_states(planner.sampler)[0], sampler_states(planner.sampler)[4]]
    between[1] = between[1]._replace(timestep=between[1].timestep + 1e-3)
    table = methods(planner.sampler)["fewsteps"].build(planner.sampler, between)
    assert placed(planner).price(table) is None


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_anchors_are_nearly_the_cheapest_of_all(name: str, count: int) -> None:
    prices = placed(mixture_planner(SAMPLERS[name]))
    found = prices.best(count)
    every = np.array([(0, *rest) for rest in combinations(range(1, STEPS), count - 1)])
    for power, anchors in zip(POWERS, found.values(), strict=True):
        assert anchors[0] == 0 and list(anchors) == sorted(set(anchors)) and anchors[-1] < STEPS
        price = prices.prices(np.array([anchors]), power)[0]
        assert price <= 1.25 * prices.prices(every, power).min()
    assert prices.best(count) is found  # priced once


def test_noise_that_the_sampler_adds_is_no_error() -> None:
    planner = gaussian(ddpm(Schedule.cosine(20), kind="sample"), deviation=(1e-6,))
    prices = placed(planner)
    assert prices.prices(np.array([(0, 12)]), 0.0)[0] < 1e-3  # the clean sample never changes


def test_calls_at_a_fork_do_not_own_the_price() -> None:
    planner = gaussian()
    noise = planner.draw_noise(seeds=range(CALLS))
    chain = full_chain(planner, None, noise, CALLS, 32)
    anchors = np.array([(0, 7, 14)])
    price = placed(planner, chain=chain).prices(anchors, 0.0)[0]
    chain.states[1:, :2] += 50.0 * torch.arange(1, 21).view(-1, 1, 1, 1)  # two of 24 leave
    assert placed(planner, chain=chain).prices(anchors, 0.0)[0] < 1.5 * price


def test_calls_that_are_not_finite_are_left_out_and_too_few_are_refused() -> None:
    planner = gaussian()
    noise = planner.draw_noise(seeds=range(CALLS))
    chain = full_chain(planner, None, noise, CALLS, 32)
    chain.states[3, 0] = torch.nan
    prices: FloatArray = placed(planner, chain=chain).prices(np.array([(0, 7, 14)]), 0.0)
    assert np.isfinite(prices).all()
    chain.states[3, 5:] = torch.nan
    with pytest.raises(InputError, match="4 finite calls are too few"):
        placed(planner, chain=chain)


def test_starts_are_spacings_that_exist() -> None:
    assert set(placing.STARTS) <= set(spacings(sampler_states(SAMPLERS["ddim"]), 4))
