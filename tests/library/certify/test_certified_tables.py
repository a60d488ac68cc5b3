"""A certified table is deployed like any program: estimate, rank, bound, evaluation and monitor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import muninn
from analytic import mixture_planner
from certify_cases import table_family
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.engines.choose import runtime_for
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.monitor.monitor import Monitor
from muninn.monitor.monitored import Monitored
from muninn.programs.plan import Family, Program
from muninn.programs.table import Table

STEPS, SHAPE, TOLERANCE, RISK = 20, (8, 2), 0.02, 0.1


class Sized(torch.nn.Module):
    """Plans as large as the context says: so are their deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), SHAPE).denoiser
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return context[:, :, None] * self.inner(x, timestep, None)


def planner() -> Planner:
    return Planner(Sized(), ddim(Schedule.cosine(STEPS), kind="sample"), SHAPE)


def sizes(count: int, seed: int) -> Tensor:
    return 0.2 + torch.rand(count, 1, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def issued() -> Certificate:
    family = table_family(planner().sampler, (14, 10, 8, 6, 4, 3, 2))
    return muninn.calibrate(
        planner(), sizes(300, 1), tolerance=TOLERANCE, risk=RISK, family=family, batch_size=64,
        progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def fresh(issued: Certificate) -> tuple[np.ndarray, np.ndarray]:
    """Deviation and estimate of the certified table on calls that nothing was chosen by."""
    paired = PairedCalls(planner(), sizes(600, 2), 600, rms_step, 5, batch=64)
    measured = paired.measure_in_batches(issued.program, list(range(600)))
    return measured.deviation, measured.estimate


def test_a_table_is_certified_and_survives_its_file(issued: Certificate, tmp_path: Path) -> None:
    assert isinstance(issued.program, Table) and 0 < issued.member < len(issued.family) - 1
    loaded = Certificate.load(issued.save(tmp_path / "c"))
    assert loaded.family == issued.family and loaded.program == issued.program
    assert loaded.save(tmp_path / "again").read_bytes() == (tmp_path / "c").read_bytes()
    assert loaded.choices() == issued.choices() == list(range(issued.member + 1))
    rows = [row["evaluations_max"] for row in issued.realised]
    assert rows == [m.most_evaluations(STEPS) for m in issued.family.programs[1 : len(rows) + 1]]


def test_the_estimate_is_finite_and_larger_where_a_call_deviates_more(
    fresh: tuple[np.ndarray, np.ndarray],
) -> None:
    deviation, estimate = fresh
    assert np.isfinite(estimate).all() and (estimate > 0.0).all()
    assert stats.spearmanr(estimate, deviation).statistic > 0.4


def test_the_estimate_of_a_call_does_not_depend_on_its_neighbours(issued: Certificate) -> None:
    own, context = planner(), sizes(5, 3)
    noise = own.draw_noise(seeds=range(5))
    run = runtime_for(own, issued.program)
    together = run(context, noise=noise)[1].estimate
    for row in range(5):
        place = torch.tensor([row])
        alone = run(context[place], noise=noise.select(place))[1].estimate
        np.testing.assert_allclose(alone, together[row], rtol=1e-4)


def test_the_bound_covers_and_the_rank_grows_with_the_estimate(
    issued: Certificate, fresh: tuple[np.ndarray, np.ndarray]
) -> None:
    deviation, estimate = fresh
    covered = np.mean(deviation <= issued.bound(estimate))
    assert abs(covered - (1.0 - RISK)) < 0.06
    order = np.argsort(estimate)
    rank, bound = issued.rank(estimate)[order], issued.bound(estimate)[order]
    assert (np.diff(rank) >= 0.0).all() and (np.diff(bound) >= 0.0).all()
    assert stats.kstest(rank, "uniform").statistic < 0.12  # calls like those of calibration
    assert bound[-1] > 1.5 * bound[0]  # it tells easy calls from hard ones


def test_a_deployed_table_says_estimate_rank_and_bound(issued: Certificate) -> None:
    fast = cache(planner(), issued)
    context, noise = sizes(6, 4), planner().draw_noise(seeds=range(6))
    trajectory, record = fast(context, noise=noise)
    expected, plain = runtime_for(planner(), issued.program)(context, noise=noise)
    assert torch.equal(trajectory, expected) and record.fallbacks == 0
    assert record.evaluations.tolist() == [issued.program.most_evaluations(STEPS)] * 6
    assert record.bound is not None and record.rank is not None
    np.testing.assert_array_equal(record.estimate, plain.estimate)
    np.testing.assert_array_equal(record.bound, issued.bound(record.estimate))
    np.testing.assert_array_equal(record.rank, issued.rank(record.estimate))


def test_fresh_calls_judge_a_table(issued: Certificate) -> None:
    found = muninn.evaluate(planner(), issued, sizes(200, 6), progress=False)
    assert found.kept and found.evaluations == issued.program.most_evaluations(STEPS)
    assert abs(found.coverage - (1.0 - RISK)) < 0.08
    beyond = replace(issued, member=len(issued.family) - 1)
    assert not muninn.evaluate(planner(), beyond, sizes(200, 6), progress=False).kept


def test_a_monitor_audits_a_table_and_sees_no_drift(issued: Certificate) -> None:
    fast = cache(planner(), issued)
    watched = Monitored(fast, Monitor(issued, seed=0), rate=1.0, seed=1)
    generator, excess = torch.Generator().manual_seed(3), []
    for call in range(40):
        context, noise = sizes(1, 100 + call), planner().draw_noise(1, generator=generator)
        trajectory, record = watched(context, noise=noise, episode=str(call))
        full = planner().sample(context, noise=noise)
        excess.append(float(rms_step(full, trajectory)) / TOLERANCE)
        assert record.rank is not None
        watched.audit()
    found = [audit.excess for audit in watched.monitor.audits]
    assert found == pytest.approx(excess[: len(found)], rel=1e-6) and len(found) >= 39
    assert watched.monitor.alarm is None and watched.monitor.warning is None
    for _ in range(60):
        watched.monitor.see(2.0 * float(issued.estimates[-1]))
    assert watched.monitor.warning is not None


def test_tables_and_gates_share_a_family_in_its_file(issued: Certificate) -> None:
    full, *tables = issued.family.programs
    assert isinstance(full, Program)
    mixed = Family((full, tables[0], full, tables[1]), "mixed", {"evaluations": 3})
    back = Family.from_json(mixed.to_json())
    assert back == mixed and back.search == {"evaluations": 3}
    assert [program.fixed for program in back.programs] == [True] * 4
