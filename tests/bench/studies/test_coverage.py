"""The coverage benchmark: exact planner, bulk equal to one by one, resumable, and not blind."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from muninn.certify.calibrate import split_units
from muninn.certify.metrics import rms_step
from muninn.certify.risk import choose_member, order_statistic
from muninn.engines.runtime import Runtime
from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray, Schedule
from muninn_bench.studies.coverage import study as coverage
from muninn_bench.studies.coverage.mixture import MixtureDenoiser
from muninn_bench.studies.coverage.settings import (
    BOUND_UNITS,
    CONFIDENCE,
    RISKS,
    SETTINGS,
    SIZES,
    SMOKE,
    TRIAL_RISK,
    TRIAL_UNITS,
    TRIALS,
    Laboratory,
    Options,
    Setting,
    next_contexts,
    start_contexts,
)
from muninn_bench.studies.coverage.statistics import judge, judge_trials, rank_test, summarise
from muninn_bench.studies.coverage.study import repetition, run_coverage

FRESH = 2000
TINY = Options(repetitions=3, fresh=40, trials=2)


# -- the planner -----------------------------------------------------------------------------


@pytest.mark.parametrize("timestep", [0, 7, 19])
def test_the_denoiser_is_the_posterior_mean_of_its_own_density(timestep: int) -> None:
    schedule = Schedule.cosine(20)
    denoiser = MixtureDenoiser(schedule).double()
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
    assert entry["violations"] == entry["running"]  # nobody comes back in this family
    assert all(1 <= rank <= size + 1 for rank, size in zip(entry["ranks"], SIZES, strict=True))


@pytest.fixture(scope="module")
def honest() -> list[dict[str, Any]]:
    generator = np.random.default_rng(4)
    return [repetition(synthetic(generator), generator) for _ in range(100)]


def verdicts(entries: list[dict[str, Any]]) -> dict[str, bool]:
    found = judge("toy", summarise("toy", entries, FRESH), entries)
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


def test_ranks_that_are_not_uniform_are_noticed(honest: list[dict[str, Any]]) -> None:
    assert min(rank_test(honest, size)[2] for size in SIZES) > 0.001
    skewed = [{"ranks": [1 + rank // 2 for rank in entry["ranks"]]} for entry in honest]
    assert max(rank_test(skewed, size)[2] for size in SIZES) < 1e-6


# -- the public verbs ------------------------------------------------------------------------


def test_the_trials_split_their_units_as_announced() -> None:
    parts = split_units(TRIAL_UNITS, TRIAL_RISK, CONFIDENCE, tune=False, seed=0)
    split = (len(parts["certify"]), len(parts["bound"]))
    assert split == (TRIAL_UNITS - BOUND_UNITS, BOUND_UNITS)


def test_trials_are_judged_on_risk_bound_and_agreement() -> None:
    good = {"member": 3, "agreed": True, "risk": 0.05, "bound_covered": 0.95, "evaluations": 8.0}
    assert all(criterion.passed for criterion in judge_trials("toy", [good] * 40))
    for fault in ({"risk": 0.2}, {"bound_covered": 0.7}, {"agreed": False}):
        found = judge_trials("toy", [{**good, **fault}] * 40)
        assert [criterion.passed for criterion in found].count(False) == 1


# -- the run ---------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "TRIALS", TRIALS[:1])


def test_a_run_writes_tables_picture_and_verdicts(small: None, tmp_path: Path) -> None:
    criteria = run_coverage(tmp_path, TINY, "muninn-bench x", progress=False)
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        "README.md", "coverage.png", "members.csv", "ranks.csv", "raw.csv", "summary.csv",
        "trials.csv",
    }  # fmt: skip
    readme = (tmp_path / "README.md").read_text()
    assert "`muninn-bench x`" in readme
    assert readme.count("PASS  ") + readme.count("FAIL  ") == len(criteria) == 3 * 6 + 3
    for criterion in criteria:
        assert str(criterion) in readme
    with (tmp_path / "raw.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * TINY.repetitions * len(SIZES) * len(RISKS)
    refused = [row for row in rows if row["confident_member"] == ""]
    assert {(row["size"], row["alpha"]) for row in refused} == {
        ("40", "0.02"), ("40", "0.05"), ("100", "0.02"),
    }  # fmt: skip
    assert (tmp_path / "coverage.png").stat().st_size > 20_000


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
    for name in ("raw.csv", "ranks.csv", "members.csv", "trials.csv", "summary.csv", "README.md"):
        assert (tmp_path / "stopped" / name).read_bytes() == (
            tmp_path / "straight" / name
        ).read_bytes()


@pytest.mark.parametrize("field", ["repetitions", "fresh", "trials"])
def test_a_run_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(InputError, match="at least 2 repetitions, 2 fresh units, 2 trials"):
        Options(**{field: 1})
