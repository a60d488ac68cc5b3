"""Planning against a deadline, on a virtual clock: an evaluation takes 10 ms and nothing else."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loop_cases as cases
from muninn.certify.cached import cache
from muninn.certify.calibrate import calibrate
from muninn.certify.metrics import rms_step
from muninn.certify.risk import order_statistic, scan_members
from muninn.errors import InputError
from muninn.loop.deadline import DeadlinePlanner, LatencyLog, Times, Timing, machine, measure_times
from muninn.loop.escalation import Needs
from muninn.loop.request import CertifiedPrograms, Request, accept_all
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family

CONTEXT = cases.starts(1, 7)
COST = [0.06, 0.05, 0.03, 0.02]  # of the members of SHORT_FAMILY: 6, 5, 3 and 2 evaluations


def _setup() -> tuple[DeadlinePlanner, cases.Ticking, cases.VirtualClock]:
    time = cases.VirtualClock()
    programs, denoiser = cases.ticking(time)
    times = measure_times(
        programs, cases.starts(3, 0), sources=programs.members(), calls=5, margin=1.0, clock=time
    )
    return DeadlinePlanner(programs, times, time), denoiser, time


SHARED = functools.cache(_setup)


# -- measured times -----------------------------------------------------------------------------


def test_measured_times_are_those_of_the_evaluations() -> None:
    time = cases.VirtualClock()
    programs, _ = cases.ticking(time)
    member = programs.member
    assert member == 2
    table = measure_times(programs, cases.starts(3, 0), candidates=2, calls=4, clock=time)
    assert set(table.timings) == {"cached", "resampled", "full"}
    for source, cost in (("cached", COST[member]), ("full", COST[0])):
        timing = table.timings[source]
        assert len(timing.seconds) == 4  # the warm-up does not count
        assert timing.worst == pytest.approx(cost)
        assert timing.evaluations == timing.most_evaluations == round(cost / 0.01)
        assert getattr(table.needs(), source) == pytest.approx(1.2 * cost)
    assert table.needs().resampled < math.inf
    assert table.need(1) == math.inf
    assert "cached" in table.report()


def test_an_adaptive_program_may_take_longer_than_was_seen() -> None:
    gates = Family.of(
        Forecast("sample", 0, False), (Everywhere(), Adaptive(1e9, dense=2, cap=4)), "adaptive"
    )
    planner = cases.planner()
    made = calibrate(
        planner, cases.starts(60, 3), tolerance=1e3, risk=0.1, family=gates, progress=False
    )
    programs = CertifiedPrograms(cache(planner, made), accept_all)
    assert programs.member == 1
    assert programs.most_evaluations("cached") == 4
    assert programs.most_evaluations("full") == cases.STEPS


def test_a_table_is_read_back_and_refused_elsewhere(tmp_path: Path) -> None:
    table = Times(machine(), {"cached": Timing((0.1, 0.2), 4, 4)}, 3)
    path = tmp_path / "times.json"
    table.save(path)
    assert Times.load(path) == table
    assert table.needs() == Needs(0.24, math.inf, math.inf)
    data = json.loads(path.read_text())
    data["machine"]["cores"] = "1000"
    path.write_text(json.dumps(data))
    with pytest.raises(InputError, match="cores: 1000"):
        Times.load(path)
    path.write_text("{}")
    with pytest.raises(InputError, match="measure_times"):
        Times.load(path)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_a_quantile_by_rank_covers_the_next_call(values: list[float], level: float) -> None:
    timing = Timing(tuple(sorted(values)), 1, 1)
    found = timing.quantile(level)
    # Of n + 1 exchangeable values, one lies at or below the k-th of the others k times in n + 1.
    assert (sum(value <= found for value in values) + math.isinf(found)) / (
        len(values) + 1
    ) >= level - 1e-9


@pytest.mark.parametrize("change", [{"calls": 0}, {"candidates": 0}, {"margin": 0.5}])
def test_measuring_refuses(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match="at least"):
        measure_times(cases.Scripted(), CONTEXT, **change)  # type: ignore[arg-type]


def test_the_log_counts_what_it_is_told() -> None:
    log = LatencyLog(keep=100)
    for call in range(200):
        log.add(call / 100.0, late=call % 50 == 0, hold="late" if call % 50 == 0 else None)
    summary = log.summary()
    assert summary["calls"] == 200
    assert summary["deadline_misses"] == summary["holds"] == 4
    assert summary["latency_worst_s"] == 1.99
    assert summary["latency_p50_s"] == pytest.approx(1.495)  # of the latest hundred
    assert math.isnan(LatencyLog().summary()["latency_p99_s"])


# -- the anytime call ---------------------------------------------------------------------------


def test_the_most_conservative_member_that_fits() -> None:
    plan, _, _ = _setup()
    certified = plan.programs.member
    assert plan.choose(1.0) == 0
    for seconds, member in ((0.0601, 0), (0.0599, 1), (0.0501, 1), (0.0301, 2), (0.0201, 3)):
        expected = None if member > certified else member
        assert plan.choose(seconds) == expected
    assert plan.choose(0.001) is None


@settings(max_examples=50)
@given(st.floats(-0.1, 0.2), st.integers(0, 2**20))
def test_an_answer_is_in_time_certified_and_of_this_call(seconds: float, seed: int) -> None:
    plan, _, time = SHARED()
    began = time.now
    answer = plan(CONTEXT, deadline=began + seconds, seed=seed)
    assert answer.finished <= max(began, began + seconds)
    if answer.plan is None:
        assert seconds < COST[plan.programs.member] + 1e-9
        assert answer.reason
        return
    assert answer.member is not None
    assert answer.member <= plan.programs.member
    planner = cases.planner()
    noise = planner.draw_noise(seeds=[seed])
    if answer.member == 0:
        assert torch.equal(answer.plan[None], planner.sample(CONTEXT, noise=noise))
    else:
        same = plan.programs.run(Request(answer.member, CONTEXT, (seed,)))
        assert torch.equal(answer.plan, same.trajectories[0])


@pytest.mark.parametrize(
    ("fault", "reason"), [("raise", "the network is gone"), ("nan", "NaN or Inf")]
)
def test_a_failed_plan_holds(fault: str, reason: str) -> None:
    plan, denoiser, time = _setup()
    denoiser.fault.append(fault)
    answer = plan(CONTEXT, deadline=time.now + 1.0, seed=0)
    assert answer.plan is None
    assert answer.reason is not None
    assert reason in answer.reason


def test_a_late_plan_holds_and_is_counted() -> None:
    plan, denoiser, time = _setup()
    denoiser.tick[0] = 0.03  # three times as slow as was measured
    answer = plan(CONTEXT, deadline=time.now + 0.07, seed=0)
    assert answer.plan is None
    assert answer.reason == "the plan came 0.11 s after the deadline"
    summary = plan.log.summary()
    assert summary["deadline_misses"] == summary["holds"] == summary["calls"] == 1
    assert summary["latency_p99_s"] == pytest.approx(0.18)


def test_a_clock_that_goes_back_holds() -> None:
    plan, denoiser, time = _setup()
    denoiser.tick[0] = -1.0
    answer = plan(CONTEXT, deadline=time.now + 1.0, seed=0)
    assert answer.plan is None
    assert answer.reason is not None
    assert "clock went back" in answer.reason


def test_a_flawed_plan_holds() -> None:
    plan, _, time = _setup()
    plan.programs.screen = lambda trajectory, context: False
    answer = plan(CONTEXT, deadline=time.now + 1.0, seed=0)
    assert answer.plan is None
    assert answer.reason == "the plan fails the feasibility screen"


def test_members_that_were_not_measured_are_never_run() -> None:
    plan, _, time = _setup()
    empty = DeadlinePlanner(plan.programs, replace(plan.times, timings={}), time)
    evaluations = time.now
    assert empty(CONTEXT, deadline=time.now + 1e9, seed=0).plan is None
    assert time.now == evaluations


# -- what is certified --------------------------------------------------------------------------


def test_members_beyond_the_certified_one_are_refused() -> None:
    programs = cases.programs()
    with pytest.raises(InputError, match="not certified"):
        programs.run(Request(programs.member + 1, CONTEXT, (0,)))
    with pytest.raises(InputError, match="one row"):
        programs.run(Request("cached", cases.starts(2, 0), (0,)))


def test_even_the_worst_choice_of_a_member_keeps_the_promise() -> None:
    """Calls choose by the time left where the promise bounds the maximum over members too.

    Members violate independently, 1.75% each: the worst choice among k does with probability
    1 - 0.9825^k, 0.1005 for k = 6, and 95% of the calibrations must keep that at most 0.1.
    """
    generator = np.random.default_rng(5)
    trials, chosen, issued = 600, [], cases.certificate()
    allowed = order_statistic(200, 0.1, 0.95) - 1
    for _ in range(trials):
        excess = np.where(generator.random((200, 12)) < 0.0175, 2.0, 0.5)
        excess[:, 0] = 0.0  # full compute
        found = scan_members(([column] for column in excess.T), 200, allowed, running=False)
        free = found.choosable(allowed) - 1
        chosen.append(free)
        offered = replace(issued, member=found.accepted - 1, choosable=free).choices()
        assert offered in ([0, found.accepted - 1], list(range(free + 1)))
    risk = 1.0 - 0.9825 ** np.array(chosen)
    broken = np.mean(risk > 0.1)
    assert broken <= 0.05 + 3.0 * (0.05 * 0.95 / trials) ** 0.5
    assert broken > 0.005  # the bound is not vacuous: the worst choice comes close to the risk
    assert np.mean(chosen) > 2.0


def test_a_call_may_choose_among_full_compute_and_all_members_up_to_the_certified() -> None:
    programs = cases.programs()
    assert list(programs.members()) == [0, 1, 2]
    planner = programs.fast.planner
    full = planner.sample(CONTEXT, noise=planner.draw_noise(seeds=[3]))
    plans = [programs.run(Request(k, CONTEXT, (3,))).trajectories for k in programs.members()]
    deviation = [float(rms_step(full, plan)[0]) for plan in plans]
    assert deviation[0] == 0.0 < deviation[1] < deviation[2]  # all on the same noise


def test_a_deadline_chooses_only_among_what_the_certificate_lets_a_call_choose() -> None:
    plan, _, _ = _setup()
    fast = plan.programs.fast
    assert fast.certificate is not None and fast.certificate.choosable == plan.programs.member == 2
    assert plan.choose(0.0501) == 1
    fast.certificate = replace(fast.certificate, choosable=1)
    assert list(plan.programs.members()) == [0, 2]
    assert [plan.choose(seconds) for seconds in (0.0601, 0.0501, 0.0301, 0.001)] == [0, 2, 2, None]


def test_members_that_are_tables_take_as_many_evaluations_as_they_have_states() -> None:
    programs = CertifiedPrograms(cases.fast("open", "tables"), accept_all)
    assert list(programs.members()) == [0, 1, 2, 3]
    assert [programs.most_evaluations(member) for member in programs.members()] == [6, 5, 4, 3]
    for member in programs.members():
        record = programs.run(Request(member, CONTEXT, (3,))).record
        assert record.evaluations.tolist() == [programs.most_evaluations(member)]
        assert (record.rank is not None) == (member == 3)


def test_a_closed_loop_promise_is_about_one_member() -> None:
    programs = cases.programs("closed")
    assert programs.fast.certificate is not None
    assert list(programs.members()) == [programs.fast.certificate.member]
