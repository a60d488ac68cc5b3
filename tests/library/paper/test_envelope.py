"""The conformal envelope: its index in exact arithmetic, its coverage on both sides, its table."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.isotonic import IsotonicRegression

from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray
from muninn.paper.envelope import (
    POINTS,
    Envelope,
    StepEnvelope,
    calls_needed,
    conformal_index,
    fit_envelope,
    residuals_needed,
    split_calls,
    tabulate,
)
from muninn.paper.ghost import GhostPairs

ELIGIBLE = (2, 3, 5)


def synthetic(calls: int, seed: int = 0, eligible: tuple[int, ...] = ELIGIBLE) -> GhostPairs:
    """Exchangeable pairs whose error grows with the score, with noise; no two equal."""
    generator = np.random.default_rng(seed)
    steps = max(eligible) + 3
    scores = generator.lognormal(-3.0, 1.0, (calls, steps))
    errors = np.full((calls, steps), np.nan)
    noise = generator.gamma(2.0, 0.1, (calls, steps))
    for step in eligible:
        errors[:, step] = np.sqrt(scores[:, step]) * (step + noise[:, step])
    scores[:, 0] = np.nan
    return GhostPairs(scores, errors, eligible)


# -- how many calls ----------------------------------------------------------------------------

RISKS = st.integers(1, 999)  # thousandths


@given(st.integers(1, 20000), RISKS, st.integers(1, 200), st.integers(1, 6))
def test_the_index_is_that_of_exact_arithmetic(
    residuals: int, thousandths: int, eligible: int, samples: int
) -> None:
    alpha = Fraction(thousandths, 1000 * eligible * samples)
    exact = math.ceil((residuals + 1) * (1 - alpha))
    assert conformal_index(residuals, thousandths / 1000, eligible, samples) == exact


@given(RISKS, st.integers(1, 200), st.integers(1, 6))
def test_the_calls_needed_are_the_fewest_with_a_valid_index(
    thousandths: int, eligible: int, samples: int
) -> None:
    sharing = (thousandths / 1000, eligible, samples)
    exact = math.ceil(Fraction(1000 * eligible * samples, thousandths)) - 1
    assert residuals_needed(*sharing) == exact
    needed = calls_needed(*sharing)

    def valid(calls: int) -> bool:
        residuals = calls - calls // 2
        return calls >= 2 and conformal_index(residuals, *sharing) <= residuals

    assert valid(needed) and not valid(needed - 1)


def test_the_published_figures_are_void_where_the_method_note_says() -> None:
    assert residuals_needed(0.05, 80) == 1599
    assert residuals_needed(0.05, 120) == 2399
    assert residuals_needed(0.05, 80, samples=4) == 6399
    assert residuals_needed(0.01, 80) == 7999
    # with the paper's 2048 residuals: T = 100 stands, the rest is void
    void = [(0.05, 120, 1), (0.05, 80, 4), (0.01, 80, 1)]
    assert conformal_index(2048, 0.05, 80) == 2048
    assert [conformal_index(2048, *sharing) for sharing in void] == [2049] * 3


# -- refusal -----------------------------------------------------------------------------------


def test_too_few_calls_are_refused_with_the_number_that_would_do() -> None:
    needed = calls_needed(0.3, 3)
    assert needed == 17  # n = 9 residuals: n + 1 = 1 / (0.3 / 3)
    with pytest.raises(CalibrationError, match=r"16 calls give 8 .* needs 9: .* 17 calls in all"):
        fit_envelope(synthetic(16), 0.3)
    enough = fit_envelope(synthetic(17), 0.3)
    assert (enough.index, enough.void, enough.calls) == (9, False, 17)


def test_the_published_rule_takes_the_largest_residual_and_says_so() -> None:
    pairs = synthetic(16)
    envelope = fit_envelope(pairs, 0.3, strict=False)
    assert envelope.void and envelope.index == 8
    train, held = split_calls(16)
    for row, step in enumerate(ELIGIBLE):
        fitted = fit_halves(pairs, step, train, held, 8)
        s, e = pairs.scores[held, step], pairs.errors[held, step]
        # the largest residual: no calibration call lies above, and one lies on it
        excess = e - fitted(s)
        assert excess.max() == pytest.approx(0.0, abs=1e-12)
        np.testing.assert_allclose(
            envelope.upper[row], fitted(envelope.grid[row].double().numpy()), rtol=1e-6
        )
    assert not fit_envelope(synthetic(40), 0.3, strict=False).void


def test_samples_share_the_risk() -> None:
    assert fit_envelope(synthetic(400), 0.3, samples=1).index == 181
    four = fit_envelope(synthetic(400), 0.3, samples=4)
    assert (four.index, four.samples) == (196, 4)  # 201 * (1 - 0.025) = 195.975
    quarter = fit_envelope(synthetic(400), 0.3 / 4)
    assert quarter.index == four.index
    assert torch.equal(quarter.upper, four.upper)
    with pytest.raises(InputError, match="one sample"):
        fit_envelope(synthetic(40), 0.3, samples=0)
    for risk in (0.0, 1.0, math.nan):
        with pytest.raises(InputError, match="risk"):
            fit_envelope(synthetic(40), risk)


def test_one_call_cannot_be_halved() -> None:
    with pytest.raises(CalibrationError, match="halved"):
        fit_envelope(synthetic(1), 0.9, strict=False)


# -- the fit -----------------------------------------------------------------------------------


def fit_halves(
    pairs: GhostPairs, step: int, train: object, held: object, index: int
) -> StepEnvelope:
    scores, errors = pairs.scores[:, step], pairs.errors[:, step]
    return StepEnvelope((scores[train], errors[train]), (scores[held], errors[held]), index)  # type: ignore[index]


def test_one_permutation_with_seed_zero_halves_the_calls_for_every_step() -> None:
    order = np.random.default_rng(0).permutation(11)
    train, held = split_calls(11)
    assert train.tolist() == order[:5].tolist() and held.tolist() == order[5:].tolist()
    assert sorted([*train, *held]) == list(range(11))


@pytest.mark.parametrize("calls", [300, 301])
def test_the_envelope_is_the_papers_written_out(calls: int) -> None:
    pairs, risk = synthetic(calls), 0.3
    envelope = fit_envelope(pairs, risk)
    order = np.random.default_rng(0).permutation(calls)
    train, held = order[: calls // 2], order[calls // 2 :]
    k = math.ceil((len(held) + 1) * (1 - Fraction(1, 10)))
    assert envelope.index == k
    for row, step in enumerate(ELIGIBLE):
        fit = IsotonicRegression(y_min=0.0, out_of_bounds="clip")
        fit.fit(pairs.scores[train, step], pairs.errors[train, step])
        residuals = sorted(pairs.errors[held, step] - fit.predict(pairs.scores[held, step]))
        grid = envelope.grid[row].double().numpy()
        expected = np.maximum(fit.predict(grid) + residuals[k - 1], 0.0)
        np.testing.assert_allclose(envelope.upper[row], expected, rtol=1e-6)
        low, high = np.quantile(pairs.scores[held, step], [0.001, 0.999])
        np.testing.assert_allclose(grid, np.exp(np.linspace(math.log(low), math.log(high), 256)),
                                   rtol=1e-6)  # fmt: skip


def test_errors_that_follow_the_score_are_bounded_by_themselves() -> None:
    s = np.linspace(0.1, 2.0, 20)
    fitted = StepEnvelope((s, s**2), (s, s**2), 20)
    assert fitted.quantile == 0.0
    np.testing.assert_allclose(fitted(s), s**2)
    np.testing.assert_allclose(fitted(np.array([0.0, 9.0])), [0.01, 4.0])  # clamped outside


def test_errors_that_fall_with_the_score_are_bounded_by_a_constant() -> None:
    s = np.linspace(0.1, 2.0, 20)
    fitted = StepEnvelope((s, 5.0 - s), (s, 5.0 - s), 20)
    mean = (5.0 - s).mean()  # all blocks of the regression are pooled
    assert fitted.quantile == pytest.approx(4.9 - mean)
    np.testing.assert_allclose(fitted(s), 4.9)


def test_the_envelope_is_never_negative() -> None:
    s = np.linspace(0.1, 2.0, 20)
    fitted = StepEnvelope((s, np.ones(20)), (s, np.zeros(20)), 20)
    assert fitted.quantile == -1.0 and (fitted(s) == 0.0).all()
    assert (tabulate(fitted, s)[1] == 0.0).all()


# -- coverage ----------------------------------------------------------------------------------


@pytest.mark.parametrize("residuals, risk", [(24, 0.1), (19, 0.1), (30, 0.25)])
def test_coverage_lies_on_both_sides_of_its_interval(residuals: int, risk: float) -> None:
    """Over calibrations the mean coverage is k / (n + 1), inside [1 - a, 1 - a + 1 / (n + 1)]."""
    repetitions, calls = 600, 2 * residuals
    index = conformal_index(residuals, risk, 1)
    train, held = split_calls(calls)
    coverage = []
    for repetition in range(repetitions):
        pairs = synthetic(calls + 100, repetition, (1,))
        fitted = fit_halves(pairs, 1, train, held, index)
        fresh = slice(calls, None)
        coverage.append(np.mean(pairs.errors[fresh, 1] <= fitted(pairs.scores[fresh, 1])))
    mean, error = np.mean(coverage), np.std(coverage) / math.sqrt(repetitions)
    assert error < 0.25 / (residuals + 1)  # sharp enough to see an index off by one
    assert mean == pytest.approx(index / (residuals + 1), abs=4 * error)
    assert 1 - risk - 4 * error <= mean <= 1 - risk + 1 / (residuals + 1) + 4 * error


def test_the_steps_of_a_call_are_covered_together_through_the_table() -> None:
    """Bonferroni: the share of calls with any error above its table stays within the risk."""
    risk, calls = 0.3, 400
    missed = []
    for repetition in range(60):
        pairs = synthetic(calls + 200, repetition)
        envelope = fit_envelope(pairs.take(calls), risk)
        above = np.zeros(200, dtype=bool)
        for step in ELIGIBLE:
            bound = envelope(step, torch.from_numpy(pairs.scores[calls:, step])).numpy()
            above |= pairs.errors[calls:, step] > bound
        missed.append(above.mean())
    error = np.std(missed) / math.sqrt(len(missed))
    # steps are independent here, so the union is close to its bound: 1 - 0.9 ** 3
    assert np.mean(missed) == pytest.approx(1 - 0.9**3, abs=4 * error + 0.01)
    assert np.mean(missed) <= risk


# -- the table ---------------------------------------------------------------------------------

SCORES = st.floats(0.0, 1e3) | st.sampled_from([0.0, 1e-300, 1e-9, 0.5])


@settings(max_examples=200)
@given(st.data(), st.integers(1, 30))
def test_the_table_is_the_least_fp32_above_the_envelope_on_a_strictly_increasing_grid(
    data: st.DataObject, count: int
) -> None:
    draw = arrays(np.float64, count, elements=SCORES)
    train, held = ((data.draw(draw), data.draw(draw)) for _ in range(2))
    fitted = StepEnvelope(train, held, data.draw(st.integers(1, count)))
    grid, upper = tabulate(fitted, held[0])
    assert grid.dtype == upper.dtype == np.float32
    assert grid.shape == upper.shape == (POINTS,)
    assert (np.diff(grid) > 0).all() and grid[0] > 0
    exact = fitted(grid.astype(np.float64))
    assert (upper.astype(np.float64) >= exact).all()
    assert (np.nextafter(upper, np.float32(-np.inf)) < exact).all()
    assert (np.diff(upper) >= 0).all() and (upper >= 0).all()


def at(envelope: Envelope, step: int, scores: FloatArray) -> FloatArray:
    values: FloatArray = envelope(step, torch.from_numpy(scores)).double().numpy()
    return values


def test_lookup_is_exact_on_the_grid_linear_between_and_clamped_outside() -> None:
    envelope = fit_envelope(synthetic(300), 0.3)
    for row, step in enumerate(ELIGIBLE):
        grid, upper = envelope.grid[row], envelope.upper[row]
        assert torch.equal(envelope(step, grid), upper)
        outside = torch.tensor([-1.0, 0.0, float(grid[0]) / 2, float(grid[-1]) * 2, math.inf])
        assert envelope(step, outside).tolist() == [float(upper[0])] * 3 + [float(upper[-1])] * 2
        between = np.random.default_rng(0).uniform(float(grid[0]), float(grid[-1]), 500)
        expected = np.interp(between, grid.double().numpy(), upper.double().numpy())
        np.testing.assert_allclose(at(envelope, step, between), expected, rtol=1e-5)
        rising = at(envelope, step, np.sort(between))
        assert (np.diff(rising) >= -1e-6).all()


def test_a_score_that_is_not_a_number_gets_no_bound() -> None:
    envelope = fit_envelope(synthetic(300), 0.3)
    bound = envelope(3, torch.tensor([0.1, math.nan, 0.2]))
    assert torch.isnan(bound).tolist() == [False, True, False]


def test_a_batch_of_scores_equals_the_loop_over_them() -> None:
    envelope = fit_envelope(synthetic(300), 0.3)
    scores = torch.rand(2, 9, generator=torch.Generator().manual_seed(0))[:, ::2]
    for dtype in (torch.float16, torch.float32, torch.float64):
        column = scores.to(dtype)[0]  # not contiguous
        bound = envelope(5, column)
        assert bound.dtype == torch.float32 and bound.shape == column.shape
        for score, value in zip(column, bound, strict=True):
            assert torch.equal(envelope(5, score[None]), value[None])


@pytest.mark.parametrize("scores", [[0.0], [0.3], [1e-30], [0.0, 0.3], [-1e-8, 0.0, 1e-8]])
def test_scores_of_zero_or_all_alike_still_make_a_table(scores: list[float]) -> None:
    pairs = synthetic(60)
    alike = pairs.scores.copy()
    alike[:, 1:] = np.resize(scores, 60)[:, None]
    pairs = GhostPairs(alike, pairs.errors, ELIGIBLE)
    envelope = fit_envelope(pairs, 0.3)
    for step in ELIGIBLE:
        exact = fit_halves(pairs, step, *split_calls(60), envelope.index)
        ends = np.array([scores[0], scores[-1]])
        low, high = at(envelope, step, ends)
        assert high == pytest.approx(exact(ends)[1], rel=1e-4)
        if scores[0] >= 0.0:
            assert low == pytest.approx(exact(ends)[0], rel=1e-4)
        else:  # below the log grid: the bound of its first point, never a smaller one
            assert low >= exact(ends)[0]


def test_a_step_outside_the_band_has_no_bound() -> None:
    envelope = fit_envelope(synthetic(300), 0.3)
    for step in (0, 4, 6):
        with pytest.raises(InputError, match=r"step . has no envelope; eligible are 2 to 5"):
            envelope(step, torch.ones(1))


def test_the_table_is_moved_to_a_device_once() -> None:
    envelope = fit_envelope(synthetic(300), 0.3)
    envelope(3, torch.ones(2))
    first = envelope._tables[torch.device("cpu")]
    envelope(5, torch.ones(2))
    assert list(envelope._tables) == [torch.device("cpu")]
    assert envelope._tables[torch.device("cpu")] is first


@pytest.mark.gpu
def test_lookup_on_a_gpu_equals_lookup_on_the_cpu() -> None:
    envelope = fit_envelope(synthetic(300), 0.3)
    scores = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    for step in ELIGIBLE:
        there = envelope(step, scores.cuda())
        assert there.is_cuda
        torch.testing.assert_close(there.cpu(), envelope(step, scores), rtol=1e-6, atol=0.0)
    assert len(envelope._tables) == 2
