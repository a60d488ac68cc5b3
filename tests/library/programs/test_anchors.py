"""The shortest-path planner of anchors, against brute force and sums by hand."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from analytic import Counting, mixture_planner, polynomial_planner
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray, Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.anchors import (
    MOST_POSITIONS,
    SegmentModel,
    anchor_positions,
    cheapest_anchors,
    full_chain,
    prediction_grams,
    segment_costs,
)
from muninn.programs.forecast import Forecast, error_weights

STEPS = 14
SCHEDULE = Schedule.linear(100, end=0.06)
PLAIN = SegmentModel(0.0, 0.0)


def example(name: str = "ddim") -> Planner:
    sampler = {
        "ddim": ddim(SCHEDULE, STEPS, kind="epsilon"),
        "ddpm": ddpm(SCHEDULE, STEPS, kind="sample"),
        "euler": euler(STEPS),
    }[name]
    return mixture_planner(sampler)


def gram_of(planner: Planner, quantity: str) -> FloatArray:
    noise = planner.draw_noise(5, generator=torch.Generator().manual_seed(0))
    chain = full_chain(planner, None, noise, 5, 32)
    return prediction_grams(planner, chain)[quantity]  # type: ignore[index]


@pytest.mark.parametrize("name", ["ddim", "ddpm", "euler"])
@pytest.mark.parametrize(("keep", "batch"), [(5, 5), (3, 2), (1, 4)])
def test_grams_hold_the_inner_products_of_full_computes_predictions(
    name: str, keep: int, batch: int
) -> None:
    planner = example(name)
    counting = Counting(planner.denoiser)
    noise = planner.draw_noise(5, generator=torch.Generator().manual_seed(0))
    counted = Planner(counting, planner.sampler, planner.shape)
    chain = full_chain(counted, None, noise, keep, batch)
    grams = prediction_grams(counted, chain)
    rows = [batch] * (5 // batch) + [5 % batch] * (5 % batch > 0)
    assert counting.rows == [count for count in rows for _ in range(STEPS)]  # one full run
    full = planner.sample(noise=noise)
    torch.testing.assert_close(chain.states[-1], full)
    torch.testing.assert_close(chain.states[0], noise.initial)
    assert chain.states.shape == (STEPS + 1, 5, *planner.shape)
    x, chains = noise.initial, {kind: [] for kind in planner.sampler.kinds}
    for step in range(STEPS):
        prediction = planner.denoiser(x, planner.timestep(step, 5), None)
        for kind, predicted in chains.items():
            predicted.append(planner.sampler.convert(x, prediction, step, kind))
        x = planner.advance(x, prediction, step, noise.at(step, slice(None)), None)
    for kind, predicted in chains.items():
        values = torch.stack(predicted, dim=1)[:keep].double().flatten(2)
        expected = torch.einsum("csi,cui->csu", values, values) / planner.shape[0]
        np.testing.assert_allclose(grams[kind], expected, rtol=1e-4, atol=1e-4)


def test_the_price_of_holding_is_the_weighted_sum_of_what_was_missed() -> None:
    planner = example()
    gram = gram_of(planner, "epsilon")
    costs = segment_costs(planner, Forecast("epsilon", 0, False), gram, list(range(STEPS)), PLAIN)
    weights = error_weights(planner.sampler, "epsilon")
    for begin, end in [(0, 1), (0, 4), (3, 9), (5, 13)]:
        row = np.zeros(STEPS)
        row[begin + 1 : end] = weights[begin + 1 : end]
        row[begin] -= weights[begin + 1 : end].sum()
        by_hand = np.quantile(np.sqrt([row @ each @ row for each in gram]), 0.8)
        assert costs[begin, end] == pytest.approx(by_hand, abs=1e-9)


def test_segments_run_forwards_only_and_neighbours_are_free() -> None:
    planner = example()
    costs = segment_costs(
        planner, Forecast("epsilon", 1), gram_of(planner, "epsilon"), list(range(STEPS)), PLAIN
    )
    assert np.isinf(costs[np.tril_indices(STEPS)]).all()
    assert np.isfinite(costs[np.triu_indices(STEPS, 1)]).all()
    assert np.abs(costs[np.arange(STEPS - 1), np.arange(1, STEPS)]).max() < 1e-12


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("look_back", [False, True])
def test_a_polynomial_of_the_forecasts_degree_costs_nothing(order: int, look_back: bool) -> None:
    sampler = ddim(SCHEDULE, STEPS, kind="sample")
    planner = polynomial_planner(sampler, order)
    model = SegmentModel(1.0, 1.0)
    positions = list(range(order * 3, STEPS))  # past the start, where nodes are still missing
    gram = gram_of(planner, "sample")
    exact = segment_costs(planner, Forecast("sample", order, look_back), gram, positions, model)
    short = segment_costs(planner, Forecast("sample", 0, False), gram, positions, model)
    several = np.triu_indices(len(positions), 2)
    reachable = np.array([end - begin <= 3 for begin, end in zip(*several, strict=True)])
    assert exact[several][reachable].max() < 1e-3 * short[several].max()


def test_look_back_is_cheaper_and_feed_through_charges_for_it() -> None:
    planner, positions = example(), list(range(STEPS))
    gram = gram_of(planner, "epsilon")
    ahead = segment_costs(planner, Forecast("epsilon", 1, False), gram, positions, PLAIN)
    repaired = segment_costs(planner, Forecast("epsilon", 1, True), gram, positions, PLAIN)
    charged = segment_costs(
        planner, Forecast("epsilon", 1, True), gram, positions, SegmentModel(0.5, 0.0)
    )
    long = np.triu_indices(STEPS, 3)
    assert np.median(repaired[long] / ahead[long]) < 0.7
    np.testing.assert_allclose(charged[long], repaired[long] + 0.5 * ahead[long])


def test_emphasis_raises_the_price_of_the_noisy_end_most() -> None:
    planner, positions = example(), list(range(STEPS))
    gram, forecast = gram_of(planner, "epsilon"), Forecast("epsilon", 0, False)
    even = segment_costs(planner, forecast, gram, positions, PLAIN)
    steep = segment_costs(planner, forecast, gram, positions, SegmentModel(0.0, 2.0))
    early, late = steep[0, 3] / even[0, 3], steep[9, 12] / even[9, 12]
    assert early > 2 * late > 2.0


def brute_force(costs: FloatArray, evaluations: int) -> float:
    last = len(costs) - 1
    prices = [
        sum(costs[a, b] for a, b in zip((0, *inner), (*inner, last), strict=True))
        for inner in combinations(range(1, last), evaluations - 2)
    ]
    return min(prices)


@given(
    arrays.arrays(np.float64, st.integers(3, 8).map(lambda n: (n, n)), elements=st.floats(0, 10)),
    st.integers(2, 9),
)
def test_the_shortest_path_is_as_cheap_as_the_best_of_all_plans(
    prices: FloatArray, most: int
) -> None:
    count = len(prices)
    costs = np.where(np.triu(np.ones_like(prices), 1) > 0, prices, np.inf)
    positions = [3 * place for place in range(count)]
    plans = cheapest_anchors(costs, positions, most)
    assert sorted(plans) == list(range(2, min(most, count) + 1))
    for evaluations, anchors in plans.items():
        assert len(anchors) == evaluations
        assert anchors[0] == 0 and anchors[-1] == positions[-1]
        places = [anchor // 3 for anchor in anchors]
        assert all(np.diff(places) > 0)
        paid = sum(costs[a, b] for a, b in pairwise(places))
        assert paid == pytest.approx(brute_force(costs, evaluations), abs=1e-9)


def test_every_step_is_a_candidate_until_there_are_too_many() -> None:
    assert anchor_positions(MOST_POSITIONS) == list(range(MOST_POSITIONS))
    grid = anchor_positions(1000)
    assert (grid[0], grid[-1], len(grid)) == (0, 999, MOST_POSITIONS)
    assert set(np.diff(grid)) <= {7, 8}
