"""Units of exchange: calls, recorded episodes, and episodes that a program drives itself."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from certify_cases import FAMILY, STEPS, TOLERANCE, contexts, drive, planner
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.units import ClosedLoop, Episodes, OpenLoop, Outcome, PlanFunction, UnitName
from muninn.engines.runtime import Runtime
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.plan import Program
from muninn_bench.studies.coverage.settings import next_contexts

FULL = Program.full("sample")


def open_loop(unit: UnitName = "call", episode_of: list[int] | None = None) -> OpenLoop:
    paired = PairedCalls(planner(), contexts(8), 8, rms_step, 1, batch=6)
    return OpenLoop(paired, TOLERANCE, unit, episode_of)


def closed_loop(unit: UnitName = "episode", **changes: object) -> ClosedLoop:
    own = changes.pop("planner", planner())
    episodes = changes.pop("episodes", Episodes(drive, 6))
    reference = changes.pop("reference", own)
    assert not changes
    assert isinstance(own, Planner) and isinstance(reference, Planner)
    assert isinstance(episodes, Episodes)
    return ClosedLoop(own, episodes, rms_step, TOLERANCE, unit, 5, reference)


def test_the_excess_of_a_unit_is_its_worst_call_against_that_calls_tolerance() -> None:
    outcome = Outcome([0.1, 0.3, 0.2], [0.1, 0.6, 0.1], [0.0] * 3, [5] * 3)
    assert outcome.excess == pytest.approx(2.0)
    assert Outcome(**asdict(outcome)) == outcome


# -- open loop -------------------------------------------------------------------------------


def test_a_call_is_a_unit_of_one() -> None:
    units = open_loop()
    assert (units.count, units.chunk, units.loop) == (8, 6, "open")
    outcomes = units.measure(FAMILY.member(4), [6, 0])
    expected = PairedCalls(planner(), contexts(8), 8, rms_step, 1).measure(FAMILY.member(4), [6, 0])
    assert [outcome.deviation for outcome in outcomes] == [[d] for d in expected.deviation]
    assert [outcome.tolerance for outcome in outcomes] == [[TOLERANCE], [TOLERANCE]]


def test_a_recorded_episode_holds_all_of_its_calls_in_any_order_of_labels() -> None:
    labels = [7, 3, 7, 3, 9, 7, 9, 3]
    units = open_loop("episode", labels)
    assert (units.count, units.chunk) == (3, 2)  # two longest episodes of three fit in six calls
    calls = open_loop()
    for place, label in enumerate([3, 7, 9]):
        (outcome,) = units.measure(FAMILY.member(4), [place])
        own = [call for call, other in enumerate(labels) if other == label]
        single = [calls.measure(FAMILY.member(4), [call])[0] for call in own]
        np.testing.assert_allclose(
            outcome.deviation, [each.deviation[0] for each in single], rtol=1e-4, atol=1e-6
        )
        assert outcome.excess == pytest.approx(max(each.excess for each in single), rel=1e-4)


def test_an_episode_longer_than_a_batch_still_runs() -> None:
    assert open_loop("episode", [0] * 7 + [1]).chunk == 1


@pytest.mark.parametrize("labels", [None, [0, 1, 2], [0] * 9])
def test_recorded_episodes_need_one_label_per_call(labels: list[int] | None) -> None:
    with pytest.raises(InputError, match=r"needs episode_of, one episode number per call \(8"):
        open_loop("episode", labels)


def test_labelled_calls_are_not_taken_for_independent_ones() -> None:
    with pytest.raises(InputError, match="keep one random call of each episode"):
        open_loop("call", [0] * 8)


def test_tuning_sees_the_contexts_of_its_units_with_noise_of_its_own() -> None:
    units = open_loop("episode", [0, 0, 1, 1, 2, 2, 3, 3])
    tuning = units.for_tuning([1, 3])
    assert tuning.count == 4
    assert torch.equal(tuning.contexts([0, 1, 2, 3]), contexts(8)[[2, 3, 6, 7]])
    certify = PairedCalls(planner(), contexts(8), 8, rms_step, 1).noise(list(range(8)))
    for row in tuning.noise([0, 1, 2, 3]).initial:
        assert not any(torch.equal(row, other) for other in certify.initial)


def test_units_of_other_calls_have_another_identity() -> None:
    paired = PairedCalls(planner(), contexts(8, seed=1), 8, rms_step, 1)
    other = OpenLoop(paired, TOLERANCE, "call", None)
    assert open_loop().identity() == open_loop().identity() != other.identity()


# -- closed loop -----------------------------------------------------------------------------


def spy(met: list[Tensor]) -> Episodes:
    def driver(plan: PlanFunction, seed: int) -> None:
        def watched(context: Tensor) -> Tensor:
            met.append(context)
            return plan(context)

        drive(watched, seed)

    return Episodes(driver, 6)


def test_each_program_drives_its_own_episode_and_visits_its_own_states() -> None:
    met: dict[int, list[Tensor]] = {}
    for member in (0, 3, 8):
        met[member] = []
        closed_loop(episodes=spy(met[member])).measure(FAMILY.member(member), [0, 1])
    for unit in (0, 1):
        starts = [met[member][2 * unit] for member in met]
        later = [met[member][2 * unit + 1] for member in met]
        assert all(torch.equal(start, starts[0]) for start in starts)
        assert not torch.equal(later[0], later[1]) and not torch.equal(later[1], later[2])


def test_full_compute_is_shadowed_at_the_states_the_program_visits() -> None:
    own, program = planner(), FAMILY.member(8)
    (outcome,) = closed_loop().measure(program, [2])
    context = contexts(1, call_seed(5, 2))
    for call in range(2):
        noise = own.draw_noise(seeds=[call_seed(5, 2, call)])
        trajectory, record = Runtime(own, program)(context, noise=noise)
        full = own.sample(context, noise=noise)
        assert outcome.deviation[call] == pytest.approx(float(rms_step(full, trajectory)))
        assert outcome.estimate[call] == record.estimate[0]
        assert outcome.evaluations[call] == record.evaluations[0]
        context = next_contexts(context, trajectory)
    assert len(outcome.deviation) == 2


def test_full_compute_driving_itself_never_deviates() -> None:
    for outcome in closed_loop().measure(FULL, [0, 1, 2]):
        assert outcome.deviation == [0.0, 0.0]
        assert outcome.evaluations == [STEPS, STEPS]


def test_the_call_unit_is_one_call_drawn_alike_for_every_program() -> None:
    episodes, calls = closed_loop("episode"), closed_loop("call")
    places = []
    for unit in range(6):
        drawn = set()
        for member in (3, 8):
            (whole,) = episodes.measure(FAMILY.member(member), [unit])
            (single,) = calls.measure(FAMILY.member(member), [unit])
            assert len(single.deviation) == len(single.tolerance) == 1
            drawn.add(whole.deviation.index(single.deviation[0]))
        assert len(drawn) == 1
        places += drawn
    assert set(places) == {0, 1}  # not always the first


def test_the_drawn_call_is_uniform_over_the_episode() -> None:
    def flat(plan: PlanFunction, seed: int) -> None:
        for place in range(4):
            plan(torch.full((1, 2), float(place)))

    def which(context: Tensor) -> Tensor:
        return context[:, 0] + 1.0

    short = replace(planner(), sampler=ddim(Schedule.cosine(2), kind="sample"))
    units = ClosedLoop(short, Episodes(flat, 60), rms_step, which, "call", 0, short)
    places = [int(o.tolerance[0]) - 1 for o in units.measure(FULL, range(60))]
    counts = np.bincount(places, minlength=4)
    assert counts.min() >= 5  # 15 expected; fewer than 5 has probability 1e-3


def test_a_reference_in_higher_precision_shadows_a_closed_loop_too() -> None:
    double = replace(planner(), dtype=torch.float64)
    (outcome,) = closed_loop(reference=double).measure(FULL, [0])
    assert 0.0 < max(outcome.deviation) < 1e-4


def test_full_compute_that_fails_in_a_closed_loop_is_named() -> None:
    def broken(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return torch.where(timestep.view(-1, 1, 1) == 5, float("nan"), 0.0) * x

    with pytest.raises(DenoiserError, match="full compute gives a trajectory that is not finite"):
        closed_loop(planner=replace(planner(), denoiser=broken)).measure(FAMILY.member(5), [0])


def test_an_episode_must_plan_and_one_call_at_a_time() -> None:
    idle = Episodes(lambda plan, seed: None, 3)
    with pytest.raises(InputError, match=r"episode 1 ended without planning once; check drive"):
        closed_loop(episodes=idle).measure(FULL, [1])

    def wide(plan: PlanFunction, seed: int) -> None:
        plan(contexts(2))

    with pytest.raises(InputError, match="one call at a time: a context of one row"):
        closed_loop(episodes=Episodes(wide, 3)).measure(FULL, [0])
    with pytest.raises(InputError, match="at least one episode, got 0"):
        closed_loop(episodes=Episodes(drive, 0))


def test_closed_loop_tuning_meets_the_states_of_full_compute_with_noise_of_its_own() -> None:
    met: list[Tensor] = []
    units = closed_loop(episodes=spy(met))
    tuning = units.for_tuning([4, 1])
    assert tuning.count == 4
    assert torch.equal(tuning.contexts([0, 1, 2, 3]), torch.cat(met))
    assert torch.equal(met[0], contexts(1, call_seed(5, 4)))
    used = [
        planner().draw_noise(seeds=[call_seed(5, unit, call)]).initial[0]
        for unit in range(6)
        for call in range(4)
    ]
    for row in tuning.noise([0, 1, 2, 3]).initial:
        assert not any(torch.equal(row, other) for other in used)
