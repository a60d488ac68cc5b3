"""The closed loop on a simulated clock: what is flown when, replayed exactly, and in batches."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import closed_loop_cases as cases
from closed_loop_cases import Counted, PointPlatform
from muninn.certify.metrics import rms_step
from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn.loop.escalation import Needs
from muninn.loop.request import Reply, Request
from muninn_bench.studies.closed_loop.batched import Ticket, fly_all, fly_one
from muninn_bench.studies.closed_loop.loop import Flight, SimulatedWorker, fly
from muninn_bench.studies.closed_loop.methods import METHODS, find_method, needs, supervisor
from muninn_bench.studies.closed_loop.traces import Drawn, Replayed, Timed, Trace, instant, measured


def _flown(
    method: str, latencies: list[float] | float, rank: float = 0.5, needed: Needs | None = None
) -> tuple[PointPlatform, Counted, Flight]:
    """An episode that only time ends, whose plans take the given seconds (the last for ever)."""
    robot, plans = PointPlatform(reachable=False), Counted(rank)
    seconds = [latencies] if isinstance(latencies, float) else list(latencies)
    worker = SimulatedWorker(plans, lambda job: seconds.pop(0) if len(seconds) > 1 else seconds[0])
    made = supervisor(find_method(method), robot, worker, needed or Needs(), seed=0)
    return robot, plans, fly(robot, made, worker, 0, method)[0]


def _events(robot: PointPlatform, kind: str) -> list[tuple[float, ...]]:
    """Times of an event and what else it says, rounded; the hold before the first call left out."""
    found = [event[1:] for event in robot.begun[0].events if event[0] == kind]
    found = found[1:] if kind == "hold" else found
    return [tuple(round(value, 9) for value in event) for event in found]


# -- what is flown when -------------------------------------------------------------------------


def test_a_slow_planner_flies_old_plans_and_plans_less_often() -> None:
    robot, plans, flight = _flown("full", 0.7)
    assert _events(robot, "context") == [(0.0,), (1.0,), (2.0,)]
    # The first plan was made from a standstill and begins when it comes; the second was made for
    # the state at 1.0 s and is joined 0.7 s later.
    assert _events(robot, "follow") == [
        (0.7, 0.7, 1.0, 0.0),
        (1.7, 1.0, 1.0, 0.01),
        (2.7, 2.0, 1.0, 0.02),
    ]
    assert _events(robot, "hold") == []
    assert [program for program, _ in plans.asked] == ["full"] * 3
    assert [call.seconds for call in flight.calls] == pytest.approx([0.7] * 3)
    assert (flight.outcome, flight.seconds) == ("timeout", pytest.approx(3.0))


def test_a_fast_planner_plans_at_every_period() -> None:
    robot, _, flight = _flown("muninn-only", 0.1)
    assert _events(robot, "context") == [(0.5 * call,) for call in range(6)]
    joined = [event[:2] for event in _events(robot, "follow")]
    assert joined == [(0.1, 0.1), *[(0.5 * call + 0.1, 0.5 * call) for call in range(1, 6)]]
    assert not any(call.late for call in flight.calls)


def test_planning_that_takes_no_time_is_executed_at_once() -> None:
    robot, _, _ = _flown("full-instant", 0.0)
    joined = [event[:2] for event in _events(robot, "follow")]
    assert joined == [(0.5 * call, 0.5 * call) for call in range(6)]


def test_a_late_plan_leads_to_a_hold_and_the_next_job_waits_for_its_end() -> None:
    robot, plans, flight = _flown("muninn-only", [0.1, 0.7, 0.1])
    # Call 1 (at 0.5) is late at 1.0; its job ends at 1.2, so that call 2's plan comes at 1.3.
    assert _events(robot, "hold") == [(1.0,)]
    assert [event[:2] for event in _events(robot, "follow")][:3] == [
        (0.1, 0.1),
        (1.3, 1.3),  # held until then: it begins now
        (1.6, 1.5),
    ]
    assert [call.late for call in flight.calls[:3]] == [False, True, False]
    assert flight.calls[1].reason == "no plan by the deadline"
    assert flight.calls[1].finished == pytest.approx(1.0)
    assert len(plans.asked) == len(flight.calls)


def test_a_planner_that_never_makes_it_holds_for_ever() -> None:
    robot, plans, flight = _flown("full-deadline", 0.7)
    assert _events(robot, "follow") == []
    assert len(_events(robot, "hold")) == 6 - 1  # the last is at the end of the episode
    assert all(call.action == "hold" for call in flight.calls)
    # A job that is told its worst time is not even begun.
    _, plans, flight = _flown("full-deadline", 0.7, needed=Needs(full=0.8))
    assert plans.asked == []
    assert "full compute needs 0.8 s" in str(flight.calls[0].reason)


def test_escalation_damps_asks_for_samples_and_counts_their_time() -> None:
    robot, plans, flight = _flown("combined", 0.2, rank=0.97)
    assert [(program, len(job.seeds)) for program, job in plans.asked[:2]] == [
        ("cached", 1),
        ("cached", 4),
    ]
    assert _events(robot, "follow")[0] == (0.4, 0.4, 0.5, 0.01)
    assert flight.calls[0].source == "resampled"
    # Too little time for them: the first plan, damped.
    _, plans, flight = _flown("combined", 0.2, rank=0.97, needed=Needs(resampled=0.35))
    assert {len(job.seeds) for _, job in plans.asked} == {1}
    assert (flight.calls[0].source, flight.calls[0].factor) == ("cached", 0.5)


def test_what_planning_raises_is_raised_not_held() -> None:
    def broken(program: str, job: Request) -> Reply:
        raise RuntimeError("the network is gone")

    robot = PointPlatform()
    worker = SimulatedWorker(broken, instant)
    made = supervisor(find_method("muninn-only"), robot, worker, Needs(), seed=0)
    with pytest.raises(RuntimeError, match="the network is gone"):
        fly(robot, made, worker, 0)


# -- latencies ----------------------------------------------------------------------------------


def test_an_episode_is_reproduced_bit_by_bit_from_seed_and_latencies() -> None:
    programs = cases.programs()
    for name in ("full", "combined"):
        ticket = Ticket(find_method(name), 11)
        # Measured on this machine, so another each time; scaled to be worth something.
        first = fly_one(programs, ticket, lambda job: 100.0 * job.seconds, Needs())
        again = fly_one(programs, ticket, Replayed(first.jobs), Needs())
        assert again == first
        trails = [episode.trail for episode in programs.platform.begun[-2:]]  # type: ignore[attr-defined]
        assert trails[0] == trails[1]
        assert len(trails[0]) > 5


def test_a_flight_survives_its_file() -> None:
    flight = fly_one(cases.programs(), Ticket(find_method("combined"), 3), measured, Needs())
    assert Flight.from_json(json.loads(json.dumps(asdict(flight)))) == flight


def test_a_replay_refuses_another_episode() -> None:
    jobs = [Timed("cached", 1, 3, 0.1)]
    assert Replayed(jobs)(Timed("cached", 1, 3, 9.9)) == 0.1
    for other in (Timed("full", 1, 3, 0.1), Timed("cached", 4, 3, 0.1), Timed("cached", 1, 4, 0.1)):
        with pytest.raises(InputError, match="job 1 of the episode"):
            Replayed(jobs)(other)
    with pytest.raises(InputError, match="the trace has None"):
        Replayed([])(jobs[0])


def test_a_drawn_latency_is_one_of_the_nearest_in_evaluations_and_reproducible() -> None:
    jobs = [Timed("cached", 1, number // 10, float(number)) for number in range(100)]
    jobs.append(Timed("cached", 4, 5, -1.0))
    trace = Trace({}, jobs)
    draws = [Drawn(trace, seed)(Timed("cached", 1, 5, 0.0)) for seed in range(200)]
    # Twenty nearest of five evaluations: the ten of 5, and as near as one more: those of 4 and 6.
    assert set(draws) == {float(number) for number in range(40, 70)}
    source, other = Drawn(trace, 3), Drawn(trace, 3)
    job = Timed("cached", 1, 7, 0.0)
    assert [source(job) for _ in range(50)] == [other(job) for _ in range(50)]
    with pytest.raises(InputError, match=r"no job of full x 1, only cached x 1, cached x 4"):
        source(Timed("full", 1, 7, 0.0))


def test_a_trace_survives_its_file_and_names_the_machine(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "latency.jsonl"
    cases.trace().save(path)
    assert Trace.load(path) == cases.trace()
    assert Trace.load(path).machine == {"system": "nowhere"}
    assert "torch" in Trace().machine
    path.write_text("{}\n")
    with pytest.raises(InputError, match="not a latency trace"):
        Trace.load(path)


def test_needs_are_high_quantiles_and_the_first_plan_is_always_tried() -> None:
    needed = needs(PointPlatform(), cases.trace(full=1.0, resampled=0.2))
    assert needed.cached == 0.0
    times = [job.seconds for job in cases.trace(full=1.0).jobs if job.program == "full"]
    assert needed.full == pytest.approx(1.2 * np.quantile(times, 0.99))
    assert 0.2 < needed.resampled < 0.3
    assert math.isinf(needs(PointPlatform(), Trace({}, [])).full)


# -- many at once -------------------------------------------------------------------------------


def test_batched_flights_equal_single_ones() -> None:
    programs, trace = cases.programs(), cases.trace()
    tickets = [Ticket(METHODS[name], seed) for name in METHODS for seed in range(4)]
    flights: list[Flight] = []
    fly_all(programs, tickets, trace, cases.METRIC, flights.append)
    assert len(flights) == len(tickets)
    together = {(flight.method, flight.seed): flight for flight in flights}
    needed = needs(programs.platform, trace)
    for ticket in tickets:
        alone = fly_one(programs, ticket, trace, needed, metric=cases.METRIC)
        flown = together[ticket.method.name, ticket.seed]
        assert [replace(call, estimate=None, clearance=0.0) for call in flown.calls] == [
            replace(call, estimate=None, clearance=0.0) for call in alone.calls
        ]
        assert flown.jobs == alone.jobs
        assert flown.outcome == alone.outcome
        assert flown.smallest_clearance == pytest.approx(alone.smallest_clearance, abs=1e-6)
        assert flown.deviation == pytest.approx(alone.deviation, abs=1e-5)
    assert {flight.outcome for flight in flights} == {"success", "collision", "timeout"}


def test_planning_in_batches_really_batches() -> None:
    programs = cases.programs()
    sizes: list[int] = []
    inner = programs.plan_all

    def watched(asked: list[tuple[str, Request]]) -> list[Reply]:
        sizes.append(len(asked))
        return inner(asked)

    programs.plan_all = watched  # type: ignore[method-assign, assignment]
    tickets = [Ticket(METHODS["full-instant"], seed) for seed in range(6)]
    flights: list[Flight] = []
    fly_all(programs, tickets, cases.trace(), cases.METRIC, flights.append)
    assert sum(sizes) == sum(len(flight.calls) for flight in flights)
    assert sizes[0] == 6
    assert np.mean(sizes) > 4.0


def test_an_error_in_one_episode_or_in_the_planner_ends_the_batch() -> None:
    programs = cases.programs()
    tickets = [Ticket(METHODS["full-instant"], seed) for seed in range(6)]

    def unkept(flight: Flight) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fly_all(programs, tickets, cases.trace(), cases.METRIC, unkept)

    def broken(asked: object) -> list[Reply]:
        raise RuntimeError("the network is gone")

    programs.plan_all = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError, match="the network is gone"):
        fly_all(programs, tickets, cases.trace(), cases.METRIC, lambda flight: None)


def test_the_deviation_is_that_of_one_executed_plan_from_full_compute_on_its_noise() -> None:
    programs = cases.programs()
    planner = programs.platform.planner
    drawn = set()
    for seed in range(12):
        ticket = Ticket(METHODS["muninn-only"], seed)
        flight = fly_one(programs, ticket, instant, Needs(), metric=cases.METRIC)
        # The same episode again, with every call measured by hand.
        worker = SimulatedWorker(programs.plan, instant)
        made = supervisor(ticket.method, programs.platform, worker, Needs(), call_seed(seed, 1))
        again, asked = fly(programs.platform, made, worker, seed, "muninn-only")
        assert replace(flight, deviation=None) == again
        by_hand = []
        for context, command in asked:
            assert command.plan is not None and command.seed is not None
            noise = planner.draw_noise(seeds=[command.seed])
            full = planner.sample(context, noise=noise)
            by_hand.append(float(rms_step(full, command.plan[None])[0]))
        assert flight.deviation in by_hand
        drawn.add(by_hand.index(flight.deviation))
    assert len(drawn) > 1  # not always the same call
    full = fly_one(programs, Ticket(METHODS["full"], 0), instant, Needs(), metric=cases.METRIC)
    assert full.deviation is None


def test_methods_are_found_by_name() -> None:
    with pytest.raises(InputError, match="choose from full-instant, full, "):
        find_method("fast")
    assert [method.variant for method in METHODS.values()][-5:] == [
        "muninn-only",
        "dampen",
        "resample+dampen",
        "full-override",
        "combined",
    ]
