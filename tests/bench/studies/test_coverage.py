"""The coverage benchmark: exact planner, bulk equal to one by one, resumable, and not blind."""

from __future__ import annotations

import csv
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn.certify.metrics import rms_step
from muninn.certify.risk import choose_member, order_statistic
from muninn.engines.runtime import Runtime
from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray, Schedule
from muninn.parallel import Map
from muninn_bench.studies.coverage import study as coverage
from muninn_bench.studies.coverage.mixture import Layout, MixtureDenoiser, routes
from muninn_bench.studies.coverage.settings import (
    CONFIDENCE,
    FRONTIERS,
    RISKS,
    SETTINGS,
    SIZES,
    SMOKE,
    TRIALS,
    Laboratory,
    Options,
    Setting,
    next_contexts,
    start_contexts,
)
from muninn_bench.studies.coverage.statistics import (
    judge,
    judge_together,
    judge_trials,
    summarise,
)
from muninn_bench.studies.coverage.study import repetition, run_coverage, run_trial

FRESH = 2000
TINY = Options(repetitions=3, fresh=40, trials=2, tuned=2)
FRONTIER = replace(FRONTIERS[0], steps=8, units=60)


# -- the planner -----------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["four", "one", "two"])
@pytest.mark.parametrize("timestep", [0, 7, 19])
def test_the_denoiser_is_the_posterior_mean_of_its_own_density(
    timestep: int, layout: Layout
) -> None:
    schedule = Schedule.cosine(20)
    denoiser = MixtureDenoiser(schedule, routes(layout, 5)).double()
    power = float(schedule.alpha_bar[timestep])
    context = start_contexts(6, torch.Generator().manual_seed(0)).double()
    x = torch.randn(6, 8, 2, generator=torch.Generator().manual_seed(1)).double().requires_grad_()
    spread = power * denoiser.variances + (1 - power)
    bend = (context @ denoiser.basis).view(6, 1, 16)
    gap = x.flatten(1)[:, None] - power**0.5 * (denoiser.means + bend)
    log_density = (
        denoiser.log_weights - (gap**2).sum(dim=2) / (2 * spread) - 8 * spread.log()
    ).logsumexp(dim=1)
    (score,) = torch.autograd.grad(log_density.sum(), x)
    tweedie = (x + (1 - power) * score) / power**0.5  # Efron 2011, equation 1.4
    predicted = denoiser(x, torch.full((6,), timestep), context)
    torch.testing.assert_close(predicted, tweedie, rtol=1e-9, atol=1e-9)


def test_drawn_routes_are_one_broad_or_two_apart_and_of_their_seed() -> None:
    for seed in range(20):
        one, two = routes("one", seed), routes("two", seed)
        gaps = torch.pdist(one.means.flatten(1)) / one.widths.min()
        assert gaps.max() < 8.0 and gaps.min() < 4.0
        assert torch.pdist(two.means.flatten(1)) > 8.0 * two.widths.max()
        assert not torch.equal(two.means, routes("two", seed + 1).means)
        torch.testing.assert_close(two.means, routes("two", seed).means, rtol=0.0, atol=0.0)


def one_by_one(setting: Setting, starts: torch.Tensor, noises: list[Any]) -> FloatArray:
    """Excess of units run as plain rows of a plain planner."""
    planner, family = setting.planner(), setting.family
    excess = np.zeros((len(starts), len(family)))
    for member in range(len(family)):
        context = starts
        for noise in noises:
            plan, _ = Runtime(planner, family.member(member))(context, noise=noise)
            distance = rms_step(planner.sample(context, noise=noise), plan).numpy()
            excess[:, member] = np.maximum(excess[:, member], distance / setting.tolerance)
            context = next_contexts(context, plan)
    return excess


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_calls_in_bulk_are_the_calls_one_by_one(setting: Setting) -> None:
    generator = torch.Generator().manual_seed(2)
    starts = start_contexts(40, generator)
    noises = [setting.planner().draw_noise(40, generator=generator) for _ in range(setting.calls)]
    bulk = Laboratory(setting, 40).excess(starts, noises)
    np.testing.assert_allclose(bulk, one_by_one(setting, starts, noises), rtol=2e-3, atol=2e-4)
    assert (bulk[:, 0] == 0.0).all() and (bulk[:, 1:] > 0.0).all()


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_risk_curve_of_every_family_crosses_every_alpha(setting: Setting) -> None:
    excess = Laboratory(setting, 2000).draw(torch.Generator().manual_seed(3))
    risks = (np.maximum.accumulate(excess, axis=1) > 1.0).mean(axis=0)
    assert risks[1] < min(RISKS) and risks[-1] > max(RISKS)
    assert np.count_nonzero((risks > 0.01) & (risks < 0.25)) >= 4  # spread, not one cliff
    spent = [len(anchors) for anchors in setting.anchors]
    assert spent == sorted(spent, reverse=True)


# -- one repetition --------------------------------------------------------------------------


def synthetic(generator: np.random.Generator, fresh: int = FRESH) -> FloatArray:
    """Units that tolerate a uniformly drawn number of 100 members: little is lost to ties."""
    tolerates = generator.integers(0, 100, size=max(SIZES) + fresh)
    return np.where(np.arange(100)[None] > tolerates[:, None], 2.0, 0.5)


def test_a_repetition_calibrates_on_the_first_units_and_measures_on_the_others() -> None:
    excess = synthetic(np.random.default_rng(0))
    entry = repetition(excess, np.random.default_rng(1))
    rows = [tuple(cell.values()) for cell in entry["cells"]]
    assert [row[:2] for row in rows] == [(n, risk) for n in SIZES for risk in RISKS]
    for size, risk, marginal, realised, exact, confident, _ in rows:
        for member, confidence in ((marginal, None), (confident, CONFIDENCE)):
            if order_statistic(size, risk, confidence) == 0:
                assert member is None
            else:
                assert member == choose_member(excess[:size], risk, confidence)
        if marginal is None:
            assert realised is None and exact is None
        else:
            assert realised == np.mean(excess[max(SIZES) :, marginal] > 1.0)
            assert exact >= realised  # random ties count some of those that tolerate just this
    assert entry["violations"] == np.sum(excess[max(SIZES) :] > 1.0, axis=0).tolist()


@pytest.fixture(scope="module")
def honest() -> list[dict[str, Any]]:
    generator = np.random.default_rng(4)
    return [repetition(synthetic(generator), generator) for _ in range(100)]


def verdicts(entries: list[dict[str, Any]]) -> dict[str, bool]:
    found = judge("toy", summarise("toy", entries, FRESH), len(entries))
    return {criterion.name: criterion.passed for criterion in found}


REFUSES = "refuses where no certificate exists, and only there"


def test_the_rule_passes_and_is_exact_with_random_ties(honest: list[dict[str, Any]]) -> None:
    assert all(verdicts(honest).values())
    for cell in summarise("toy", honest, FRESH):
        if cell["marginal_order"]:
            mean, expected = cell["marginal_mean"], cell["exact_expected"]
            assert abs(cell["exact_mean"] - expected) < 4 * cell["exact_error"]
            assert abs(mean - expected) < 4 * cell["marginal_error"] + 0.011


@pytest.mark.parametrize("bolder", [2, 20])
def test_a_rule_that_is_too_bold_does_not_pass(
    bolder: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_bold(excess: FloatArray, risk: float, confidence: float | None) -> int:
        return min(choose_member(excess, risk, confidence) + bolder, excess.shape[1] - 1)

    monkeypatch.setattr(coverage, "choose_member", too_bold)
    generator = np.random.default_rng(4)
    entries = [repetition(synthetic(generator), generator) for _ in range(100)]
    found = verdicts(entries)
    assert not all(found.values())
    assert found[REFUSES]


def test_a_rule_that_never_refuses_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def reckless(excess: FloatArray, risk: float, confidence: float | None) -> int:
        try:
            return choose_member(excess, risk, confidence)
        except CalibrationError:
            return 1

    monkeypatch.setattr(coverage, "choose_member", reckless)
    generator = np.random.default_rng(4)
    entries = [repetition(synthetic(generator), generator) for _ in range(20)]
    assert not verdicts(entries)[REFUSES]


# -- the public verbs ------------------------------------------------------------------------


def test_the_trials_split_their_units_as_announced() -> None:
    frozen, tuned = ({k: len(v) for k, v in t.split(0).items()} for t in (TRIALS[0], FRONTIERS[0]))
    assert frozen == {"tune": 0, "certify": 100, "bound": 18}
    assert tuned == {"tune": 48, "certify": 117, "bound": 29}


GOOD = {"member": 3, "agreed": True, "risk": 0.05, "bound_covered": 0.95, "evaluations": 8.0}


def test_trials_are_judged_on_risk_bound_and_agreement() -> None:
    assert all(criterion.passed for criterion in judge_trials(TRIALS[0], [GOOD] * 40))
    for fault in ({"risk": 0.2}, {"bound_covered": 0.7}, {"agreed": False}):
        found = judge_trials(TRIALS[0], [{**GOOD, **fault}] * 40)
        assert [criterion.passed for criterion in found].count(False) == 1


@pytest.mark.parametrize(("over", "passes"), [(9, True), (25, False)])
def test_one_setting_over_its_risk_fails_all_together(over: int, passes: bool) -> None:
    kept = dict.fromkeys(TRIALS[:-1], [GOOD] * 200)
    last = [{**GOOD, "risk": 0.11}] * over + [GOOD] * (200 - over)
    assert judge_together({**kept, TRIALS[-1]: last}).passed is passes


def test_every_trial_of_a_frontier_draws_a_planner_and_tunes_its_own_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    def calibrate(planner: Any, contexts: Any, **terms: Any) -> Any:
        assert terms["family"] is None
        made.append((planner, contexts, real(planner, contexts, **terms)))
        return made[-1][2]

    real = coverage.calibrate
    monkeypatch.setattr(coverage, "calibrate", calibrate)
    rows = [run_trial(FRONTIER, 400, 0, 5, index) for index in (0, 1, 0)]
    assert rows[0] == rows[2] != rows[1]
    (planner, contexts, first), (other, others, second) = made[:2]
    assert not torch.equal(planner.denoiser.means, other.denoiser.means)
    assert not torch.equal(contexts, others)
    assert first.family != second.family and first.family.name == "frontier"
    assert first.counts == {"tune": 16, "certify": 35, "bound": 9}
    for row, certificate in zip(rows, (first, second), strict=False):
        assert row["agreed"] is None and row["member"] == certificate.member > 0
        assert row["method"] == "fitted" and row["evaluations"] < FRONTIER.steps
        assert 0.0 <= row["risk"] < 0.5


# -- the run ---------------------------------------------------------------------------------


class Elsewhere(Map):
    """The inline map, on a copy of the function as another process would get it."""

    def map(self, function: Any, items: Any) -> Any:
        return super().map(pickle.loads(pickle.dumps(function)), items)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "TRIALS", (TRIALS[0], FRONTIER))
    monkeypatch.setattr(coverage, "workers_of", lambda workers: Elsewhere())


def test_a_run_writes_tables_picture_and_verdicts(small: None, tmp_path: Path) -> None:
    criteria = run_coverage(tmp_path, TINY, "muninn-bench x", progress=False)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        "README.md", "coverage.png", "frontiers.png", "raw.csv", "summary.csv", "trials.csv",
    }  # fmt: skip
    readme = (tmp_path / "README.md").read_text()
    assert "`muninn-bench x`" in readme
    assert readme.count("PASS  ") + readme.count("FAIL  ") == len(criteria) == 3 * 5 + 3 + 2 + 1
    for criterion in criteria:
        assert str(criterion) in readme
    with (tmp_path / "raw.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * TINY.repetitions * len(SIZES) * len(RISKS)
    refused = [row for row in rows if row["confident_member"] == ""]
    assert {(row["size"], row["alpha"]) for row in refused} == {
        ("40", "0.02"), ("40", "0.05"), ("100", "0.02"),
    }  # fmt: skip
    with (tmp_path / "trials.csv").open() as file:
        counts = Counter(row["trial"] for row in csv.DictReader(file))
    assert counts == {TRIALS[0].name: TINY.trials, FRONTIER.name: TINY.tuned}
    assert f"| {FRONTIER.name} | 0.002 | " in readme
    for picture in ("coverage.png", "frontiers.png"):
        assert (tmp_path / picture).stat().st_size > 20_000


def test_an_interrupted_run_ends_with_the_same_files(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_coverage(tmp_path / "straight", TINY, progress=False)
    draw, left = Laboratory.draw, [4]

    def stopping(self: Laboratory, generator: torch.Generator) -> FloatArray:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return draw(self, generator)

    monkeypatch.setattr(Laboratory, "draw", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_coverage(tmp_path / "stopped", TINY, progress=False)
    with pytest.raises(CalibrationError, match="Delete it, or resume with"):
        run_coverage(tmp_path / "stopped", replace(SMOKE, seed=1), progress=False)
    run_coverage(tmp_path / "stopped", TINY, progress=False)
    assert left[0] == 4 - 1 - 9  # nine repetitions, and the one that was interrupted
    for name in ("raw.csv", "trials.csv", "summary.csv", "README.md"):
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "straight" / name
        ).read_bytes()


@pytest.mark.parametrize("field", ["repetitions", "fresh", "trials", "tuned"])
def test_a_run_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(
        InputError, match="at least 2 repetitions, 2 fresh units, 2 trials of either kind"
    ):
        Options(**{field: 1})
