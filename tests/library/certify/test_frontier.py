"""The frontier: at every number of evaluations no worse than any method, and found again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from certify_cases import Interrupting, contexts
from muninn.certify.frontier import Frontier, ladder
from muninn.certify.journal import Journal
from muninn.certify.metrics import executed, rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.scores import LEVELS, Entry
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Planner
from muninn.programs.table import Table
from muninn_bench.studies.coverage.mixture import mixture_planner

CALLS, STEPS = 48, 12


def paired_calls(
    sampler: str = "ddim", count: int = CALLS, metric: Any = rms_step, **changes: Any
) -> PairedCalls:
    own = replace(mixture_planner(sampler, steps=changes.pop("steps", STEPS)), **changes)
    return PairedCalls(own, contexts(count), count, metric, 1)


def frontier(**given: Any) -> Frontier:
    paired = given.pop("paired", None)
    named = {name: given.pop(name) for name in ("journal", "groups") if name in given}
    tolerance, share = given.pop("tolerance", 0.1), given.pop("share", 0.1)
    return Frontier(paired or paired_calls(**given), tolerance, share, **named)


@pytest.fixture(scope="module")
def found() -> Frontier:
    return frontier()


# -- numbers of evaluations, and scores ----------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 3, 8, 14, 20, 100, 1000])
def test_the_ladder_has_every_small_number_and_no_large_gap(steps: int) -> None:
    rungs = ladder(steps)
    assert rungs == sorted(set(rungs), reverse=True)
    assert [rung for rung in rungs if rung < 14] == list(range(2, min(steps, 14)))[::-1]
    assert all(rung < steps for rung in rungs)
    ratios = [high / low for high, low in zip([steps, *rungs], rungs, strict=False) if low >= 13]
    assert all(ratio < 1.25 for ratio in ratios), ratios


def test_plans_that_travel_to_workers_bring_no_other_states(found: Frontier) -> None:
    assert len(found.chain.states) > 1
    plans = found.paired.known.values()
    assert len(plans) == found.paired.count
    assert all(plan.untyped_storage().nbytes() == plan.nbytes for plan in plans)


def test_kept_counts_half_a_violation_too_many(found: Frontier) -> None:
    def few(violations: int, calls: int) -> bool:
        return found.keeps(np.array([2.0] * violations + [0.5] * (calls - violations)))

    assert found.share == 0.1
    assert few(0, 16) and few(1, 16) and not few(2, 16)  # 1.7 of 17 less a half
    assert few(0, 3) and not few(1, 3)  # none is always kept: few calls show no more
    assert few(9, 99) and not few(10, 99)
    assert frontier(share=0.0).keeps(np.full(4, 1.0))
    assert not frontier(share=0.0).keeps(np.array([1.0 + 1e-9, 0.1, 0.1, 0.1]))


def test_the_score_is_the_geometric_mean_of_quantiles_and_no_one_calls(found: Frontier) -> None:
    excess = np.arange(1.0, 101.0)
    levels = [
        np.quantile(excess, level, method="lower") for level in 1.0 - np.array(LEVELS) * found.share
    ]
    assert found.score(excess) == pytest.approx(np.prod(levels) ** (1 / 3))
    wild = excess.copy()
    wild[-1] = 1e9
    assert found.score(wild) == found.score(excess)
    assert found.score(np.zeros(100)) == pytest.approx(1e-12)
    assert found.score(2.0 * excess) == pytest.approx(2.0 * found.score(excess))


def test_an_entry_is_judged_by_calls_that_nothing_was_fitted_on(found: Frontier) -> None:
    entry = found.published(5)[0]
    judged = found.excess(entry.program)[:-1][found.judges]
    assert len(judged) == CALLS - round(0.6 * CALLS)
    assert entry.score == found.score(judged)
    bulk = np.quantile(judged, 1.0 - LEVELS[-1] * found.share, method="lower")
    assert entry.kept == (found.keeps(found.excess(entry.program)[:-1]) and bulk <= 1.0)
    assert entry.excess == np.quantile(judged, 1.0 - found.share, method="lower")
    alone = frontier(groups={"fewsteps"})
    assert alone.judges == slice(None)  # where nothing is fitted all calls judge


# -- the best of all -------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["ddim", "ddpm"])
@pytest.mark.parametrize("count", [3, 6])
def test_the_frontier_is_no_worse_than_any_method_by_itself(sampler: str, count: int) -> None:
    paired = paired_calls(sampler)
    whole = Frontier(paired, 0.1, 0.1)
    best = whole.best(count)
    assert best.evaluations == count
    groups = {method.group for method in whole.methods.values()}
    for group in sorted(groups - ({"heun"} if count % 2 == 0 else set())):
        alone = whole.restricted({group}).best(count)
        rival = whole.entry(alone.program, group)  # on the same calls
        assert rival.evaluations == count
        assert best.score <= rival.score, (group, best, rival)


def test_fitting_and_moving_only_ever_help(found: Frontier) -> None:
    for count in (3, 5):
        moved, still = found.fitted(count), found.fitted(count, move=False)
        assert moved is not None and still is not None
        assert moved.score <= still.score
        assert found.best(count).score <= found.best(count, move=False).score
        assert moved.evaluations == still.evaluations == count
    before = found.published(5)
    found.best(5)
    assert found.published(5) == before and all(entry.group != "fitted" for entry in before)


def test_a_quick_table_skips_steps_where_a_fitted_one_is_worse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = frontier().quick(8)
    assert good.group == "fitted"
    monkeypatch.setattr(Frontier, "_fitted", lambda *_: replace(good, score=1e9))
    found = frontier().quick(8)
    assert found.group != "fitted" and found.evaluations == 8 and found.score < 1e9


def test_fitted_tables_keep_their_score_on_calls_of_their_own() -> None:
    whole = frontier(count=96)
    fitted, published = whole.fitted(3), whole.published(3)[0]
    assert fitted is not None and fitted.group == "fitted"
    others = PairedCalls(whole.planner, contexts(300, seed=9), 300, rms_step, 77)
    gaps = [
        np.quantile(others.measure(entry.program, list(range(300))).deviation, 0.9)
        for entry in (fitted, published)
    ]
    assert gaps[0] < 0.7 * gaps[1]
    assert gaps[0] / 0.1 < 2.0 * max(fitted.excess, 0.1)


def test_groups_restrict_what_is_tried() -> None:
    only = frontier(groups={"fewsteps"})
    assert set(only.methods) == {"fewsteps"} and not only.fits
    assert only.best(4).group == "fewsteps" and only.report(4)["excess"].keys() == {"fewsteps"}
    named = frontier(groups={"unipc-2", "sample-1"})
    assert set(named.methods) == {"unipc-2", "sample-1"}
    assert frontier(groups={"fitted"}).fits
    with pytest.raises(InputError, match="no method here has a program with 4 evaluations"):
        frontier(groups={"heun"}).best(4)  # two evaluations a step but the last


def test_the_report_says_who_won(found: Frontier) -> None:
    report = found.report(4)
    assert report["evaluations"] == 4 and report["notes"] == []
    assert next(iter(report["excess"])) == found.best(4).group == "fitted"
    assert list(report["excess"].values()) == sorted(report["excess"].values())
    for entry in found.published(4):
        assert report["excess"][entry.group] <= entry.excess


# -- found again -------------------------------------------------------------------------------


def entries(whole: Frontier) -> list[Entry]:
    return [whole.best(5), whole.best(3), whole.best(8, move=False)]


def test_it_is_a_function_of_its_calls_and_a_journal_makes_it_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Interrupting(paired_calls().planner.denoiser)  # type: ignore[arg-type]
    first = entries(frontier(denoiser=watched, journal=Journal(tmp_path / "j", {})))
    torch.manual_seed(123)
    assert entries(frontier()) == first
    spent, watched.evaluations = watched.evaluations, 0
    with monkeypatch.context() as patch:
        patch.setattr(PairedCalls, "measure", None)  # no program runs again
        again = frontier(denoiser=watched, journal=Journal(tmp_path / "j", {}))
        assert entries(again) == first
    full = STEPS * -(-CALLS // 32)  # full compute prices segments
    assert watched.evaluations == full < 0.05 * spent


# -- what cannot be fitted -----------------------------------------------------------------------


def project(x: Tensor, context: Tensor) -> Tensor:
    return x.clamp(-1.0, 1.0)


def test_a_condition_that_projects_leaves_no_table_and_says_so() -> None:
    projected = frontier(condition=project)
    assert projected.methods == {} and not projected.fits
    assert projected.notes == ["the condition projects states, so that no table was tried"]
    with pytest.raises(InputError, match="no method here has a program with 4 evaluations"):
        projected.best(4)


def test_too_few_calls_are_not_fitted_on_and_a_note_says_so() -> None:
    small = frontier(count=12)
    assert small.best(4).group != "fitted" and small.fitted(4) is None
    assert small.report(4)["notes"] == [
        "not fitted: 7 finite calls are too few to fit a table; give at least 8"
    ]


def test_a_full_trajectory_that_is_not_finite_is_refused() -> None:
    def broken(x: Tensor, timestep: Tensor, context: Tensor, /) -> Tensor:
        said: Tensor = paired_calls().planner.denoiser(x, timestep, context)
        said[x[:, 0, 0] > 1.0] = torch.nan
        return said

    with pytest.raises(DenoiserError, match="full compute gives a trajectory that is not finite"):
        frontier(denoiser=broken).best(4)


def test_a_network_that_fails_between_its_steps_costs_a_program_its_score_and_no_more() -> None:
    own = mixture_planner("ddim", steps=STEPS)
    routes = own.draw_noise(seeds=range(4))
    seen: list[Tensor] = []
    own.sample(contexts(4), noise=routes, visit=lambda step, x: seen.append(x.clone()))
    reach = max(float(x.abs().max()) for x in seen)

    def narrow(x: Tensor, timestep: Tensor, context: Tensor, /) -> Tensor:
        said: Tensor = own.denoiser(x, timestep, context)
        said[(x.abs() > 4.0 * reach).flatten(1).any(dim=1)] = torch.nan
        return said

    assert np.isfinite(frontier(denoiser=narrow).best(3).score)


def nothing(full: Tensor, cached: Tensor) -> Tensor:
    return torch.zeros(len(full))


def test_a_metric_that_looks_at_nothing_is_served_with_the_fewest() -> None:
    nothing.view = lambda plans: plans[:, :0]  # type: ignore[attr-defined]
    blind = frontier(metric=nothing)
    best = blind.best(2)
    assert best.kept and best.excess == 0.0
    assert isinstance(best.program, Table) and np.isfinite(best.program.array).all()


def test_the_last_row_is_fitted_to_what_the_robot_executes() -> None:
    prefix, plain = frontier(metric=executed(4, rms_step)), frontier()
    base = plain.published(3)[0].program
    assert isinstance(base, Table)
    own, other = prefix._fitted(base), plain._fitted(base)
    assert own is not None and other is not None
    arrays = [entry.program.array for entry in (own, other)]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(arrays[0][:1, :-1], arrays[1][:1, :-1])
    assert not np.allclose(arrays[0][:1, -1], arrays[1][:1, -1])


def test_the_truth_may_be_another_planner() -> None:
    paired = paired_calls()
    higher: Planner = replace(paired.planner, dtype=torch.float64)
    whole = Frontier(replace(paired, reference=higher), 0.1, 0.1)
    truth = whole.paired.full(list(range(CALLS)))
    assert truth.dtype == torch.float64
    assert torch.equal(whole.chain.states[-1], truth)
    same = Frontier(paired, 0.1, 0.1).best(4)
    assert whole.best(4).score == pytest.approx(same.score, rel=0.1)
