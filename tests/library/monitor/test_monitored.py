"""Under watch: the same plans, one random call per episode audited, full compute when in doubt."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from certify_cases import STEPS, Interrupting, adopted, certificate, contexts, planner
from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import rms_step
from muninn.errors import CertificateError, InputError
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.monitor.monitor import Monitor
from muninn.monitor.monitored import Monitored
from muninn.monitor.shadow import BACKLOG
from muninn.monitor.telemetry import JsonLines, Telemetry, read_lines, render

ISSUED: Certificate = certificate()


def watched(
    rate: float = 1.0, own: Planner | None = None, issued: Certificate = ISSUED, **more: Any
) -> Monitored:
    own = own or planner()
    issued = adopted(issued, own)
    fast = CachedPlanner(own, issued)
    return Monitored(fast, Monitor(issued, seed=0), rate=rate, seed=more.pop("seed", 1), **more)


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny() -> Planner:
    """A planner whose calls cost next to nothing."""
    return Planner(lambda x, t, c: 0.5 * x, ddim(Schedule.cosine(STEPS), kind="sample"), (1, 1))


def still(count: int = 1) -> Tensor:
    return torch.zeros(count, 1)


class Stuck(Executor):
    """Takes work and never does it."""

    def submit(self, *args: Any, **more: Any) -> Future[Any]:  # type: ignore[override]
        return Future()


class Dying(Executor):
    """Its thread dies in the ``at``-th piece of work from 0; before that, work is done."""

    def __init__(self, at: int = 0, refuse: bool = False) -> None:
        self.left, self.refuse = at, refuse

    def submit(self, work: Any, *args: Any, **more: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        if self.left > 0:
            self.left -= 1
            future.set_result(work())
        elif self.refuse:
            raise RuntimeError("cannot schedule new futures after shutdown")
        else:
            future.set_exception(MemoryError("out of memory"))
        return future


# -- the same plans --------------------------------------------------------------------------


def test_plans_and_records_are_those_of_the_cached_planner() -> None:
    plain, own = cache(planner(), ISSUED), watched()
    expected, record = plain(contexts(5), generator=generator())
    found, seen = own(contexts(5), generator=generator())
    assert torch.equal(found, expected)
    np.testing.assert_array_equal(seen.evaluated, record.evaluated)
    np.testing.assert_array_equal(seen.rank, record.rank)
    assert seen.fallback == record.fallback
    noise = planner().draw_noise(5, generator=generator())
    assert torch.equal(own(contexts(5), noise=noise)[0], expected)


def test_a_call_never_waits_for_its_audit() -> None:
    network = Interrupting(planner().denoiser)  # type: ignore[arg-type]
    own = watched(own=replace(planner(), denoiser=network))
    _, record = own(contexts(1), generator=generator())
    assert network.evaluations == record.evaluations[0] < STEPS
    assert own.monitor.audits == []
    own.audit()
    assert network.evaluations == record.evaluations[0] + STEPS
    assert len(own.monitor.audits) == 1


def test_an_audit_measures_what_the_certificate_promised() -> None:
    own = watched()
    noise = planner().draw_noise(1, generator=generator())
    context = contexts(1, seed=9)
    trajectory, _ = own(context, noise=noise)
    kept = trajectory.clone()
    trajectory.zero_(), context.zero_(), noise.initial.zero_()  # callers reuse buffers
    own.audit()
    fresh = planner().draw_noise(1, generator=generator())
    full = planner().sample(contexts(1, seed=9), noise=fresh)
    assert ISSUED.tolerance is not None
    expected = float(rms_step(full, kept)) / ISSUED.tolerance
    assert own.monitor.audits[0].excess == pytest.approx(expected, rel=1e-12)


# -- which calls -----------------------------------------------------------------------------


def test_one_audit_per_episode_of_a_uniformly_drawn_call(monkeypatch: pytest.MonkeyPatch) -> None:
    own = watched(own=tiny(), executor=Dying(at=10**6))
    drawn: list[int] = []
    monkeypatch.setattr(own, "_excess", lambda held: drawn.append(len(held)) or 0.0)
    places = []
    for episode in range(300):
        names = []
        for _ in range(4):
            own(still(), episode=episode)
            names.append(f"{own.monitor._run}-{own.monitor._calls}")
        own.end_episode()
        own._take(own._shadow.collect())
        places.append(names.index(own.monitor.audits[-1].call))
    assert drawn == [1] * 300 and len(own.monitor.audits) == 300
    counts = np.bincount(places, minlength=4)
    assert (abs(counts - 75) < 4 * np.sqrt(300 * 0.25 * 0.75)).all()


def test_audits_are_drawn_at_the_rate_before_anything_is_seen() -> None:
    def audited(seed: int, scale: float) -> list[int]:
        own = watched(rate=0.3, own=tiny(), executor=Dying(at=10**6), seed=seed)
        own._excess = lambda held: scale  # type: ignore[assignment]
        found = []
        for _ in range(200):
            own(still())
            found.append(len(own.monitor.audits) + len(own._shadow))
        return found

    low = audited(4, 0.0)
    assert low == audited(4, 0.99)  # outcomes have no say in it
    assert abs(low[-1] - 60) < 4 * np.sqrt(200 * 0.3 * 0.7)


def test_an_episode_ends_with_another_name_and_with_close() -> None:
    own = watched(own=tiny())
    for name in ("a", "a", "b", "b", None, None, "c"):
        own(still(), episode=name)
    assert len(own._shadow) == 4  # a, b and two single calls
    own.close()
    assert len(own.monitor.audits) == 5
    own.close()
    assert len(own.monitor.audits) == 5


def test_an_episode_certificate_audits_the_worst_call(monkeypatch: pytest.MonkeyPatch) -> None:
    own = watched(issued=replace(ISSUED, unit="episode"))
    trajectories = [own(contexts(1, seed=s), generator=generator(s), episode=1)[0] for s in (1, 2)]
    batch, _ = own(contexts(2, seed=5), generator=generator(5), episode=1)
    own.end_episode()
    own.audit()
    full = [planner().sample(contexts(1, seed=s), generator=generator(s)) for s in (1, 2)]
    both = planner().sample(contexts(2, seed=5), generator=generator(5))
    deviation = rms_step(torch.cat([*full, both]), torch.cat([*trajectories, batch]))
    (audit,) = own.monitor.audits
    assert ISSUED.tolerance is not None
    assert audit.excess == pytest.approx(float(deviation.max()) / ISSUED.tolerance, rel=1e-4)


# -- alarm -----------------------------------------------------------------------------------


def test_after_an_alarm_full_compute_runs_and_says_why(tmp_path: Path) -> None:
    telemetry = Telemetry(JsonLines(tmp_path / "calls.jsonl"))
    own = watched(telemetry=telemetry)
    own._excess = lambda held: 2.0  # type: ignore[assignment]
    while own.monitor.alarm is None:
        own(contexts(1), generator=generator())
        own.audit()
    audits = len(own.monitor.audits)
    trajectory, record = own(contexts(3), generator=generator())
    assert torch.equal(trajectory, planner().sample(contexts(3), generator=generator()))
    assert record.evaluations.tolist() == [STEPS] * 3
    assert record.fallback == (own.monitor.alarm,) * 3
    own.close()
    assert len(own.monitor.audits) == audits  # full compute is no evidence about the cache
    last = list(read_lines(tmp_path / "calls.jsonl"))[-1]
    assert last["fallback"] == [own.monitor.alarm] * 3
    assert last["certificate"] == own.monitor.digest
    alarm = f'muninn_alarm{{certificate="{own.monitor.digest}",robot="robot"}} 1.0'
    assert alarm in render(own.samples())


def test_full_compute_that_fails_counts_as_a_violation() -> None:
    class Failing(torch.nn.Module):
        bad = False

        def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
            return x * (float("nan") if self.bad else 0.5)

    network = Failing()
    own = watched(own=replace(tiny(), denoiser=network))
    own(still())
    network.bad = True
    own.audit()
    (audit,) = own.monitor.audits
    assert audit.violated and audit.excess is None


# -- workers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_find_what_the_caller_would_in_the_same_order(workers: int) -> None:
    here, there = watched(), None
    with ThreadPoolExecutor(workers) as executor:
        there = watched(executor=executor)
        for own in (here, there):
            for seed in range(5):
                own(contexts(1, seed=seed), generator=generator(seed))
            own.close()
    excess = [[audit.excess for audit in own.monitor.audits] for own in (here, there)]
    assert len(set(excess[0])) == 5 and excess[0] == excess[1]


@pytest.mark.parametrize("refuse", [False, True])
def test_a_dead_worker_blinds_the_monitor_and_loses_no_audit(refuse: bool) -> None:
    own = watched(executor=Dying(at=2, refuse=refuse))
    for seed in range(3):
        _, record = own(contexts(1, seed=seed), generator=generator(seed))
        assert record.fallbacks == 0
    trajectory, record = own(contexts(1, seed=7), generator=generator())
    assert torch.equal(trajectory, planner().sample(contexts(1, seed=7), generator=generator()))
    assert record.fallback[0] is not None and "audit worker died" in record.fallback[0]
    assert ("MemoryError" in record.fallback[0]) != refuse
    assert len(own.monitor.audits) == 2 and "muninn_blind" in render(own.samples())
    own.audit()  # the robot has time: what waited is run here
    assert len(own.monitor.audits) == 3 and own.reason is None
    _, record = own(contexts(1), generator=generator())
    assert record.fallbacks == 0


def test_a_new_worker_takes_over(tmp_path: Path) -> None:
    own = watched(executor=Dying())
    own(contexts(1), generator=generator())
    own(contexts(1), generator=generator())
    assert own.reason is not None
    with ThreadPoolExecutor(1) as executor:
        own.revive(executor)
        assert own.reason is None
        own.close()
    assert len(own.monitor.audits) == 1


def test_a_worker_that_hangs_is_noticed_by_its_backlog() -> None:
    own = watched(own=tiny(), executor=Stuck())
    for _ in range(BACKLOG):
        assert own(still())[1].fallbacks == 0
    _, record = own(still())
    assert record.fallback[0] is not None and f"{BACKLOG} wait" in record.fallback[0]
    assert len(own._shadow) == BACKLOG  # and no more are taken
    own.revive(Dying(at=10**6))
    own(still())
    assert own.reason is None and len(own.monitor.audits) == BACKLOG


def test_audits_that_nobody_runs_blind_the_monitor() -> None:
    own = watched(own=tiny())
    for _ in range(BACKLOG):
        own(still())
    assert own.reason is not None and "run audit() between calls" in own.reason
    own.audit()
    assert own.reason is None and len(own.monitor.audits) == BACKLOG


def test_an_audit_that_raises_here_escapes_nowhere() -> None:
    own = watched(own=tiny())
    own(still())

    def broken(held: object) -> float:
        raise ZeroDivisionError("metric")

    work, own._shadow._queue[0].run = own._shadow._queue[0].run, lambda: broken(None)
    own.audit()
    assert own.reason is not None and "ZeroDivisionError" in own.reason
    own._shadow._queue[0].run = work
    own.audit()
    assert own.reason is None and len(own.monitor.audits) == 1


def test_a_call_that_cannot_be_kept_still_gets_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    own = watched(own=tiny())

    def broken(*args: object) -> None:
        raise MemoryError("no room for a copy")

    monkeypatch.setattr("muninn.monitor.monitored.HeldCall", broken)
    trajectory, record = own(still())
    assert trajectory.shape == (1, 1, 1) and record.fallbacks == 0
    own.close()
    assert own.monitor.audits == []


events = st.lists(
    st.sampled_from(["call", "same", "new", "end", "audit", "die", "revive", "bad", "good"]),
    max_size=40,
)


@given(events)
@settings(max_examples=60)
def test_whatever_happens_every_call_is_answered(sequence: list[str]) -> None:
    own = watched(own=tiny(), rate=0.7, seed=2)
    own._excess = lambda held: 0.5  # type: ignore[assignment]
    name = episodes = 0
    evaluations = len(ISSUED.program.plan.anchors)  # type: ignore[attr-defined]
    for event in sequence:
        if event in ("call", "same", "new"):
            name += event == "new"
            trajectory, record = own(still(), episode=None if event == "call" else name)
            episodes += 1
            assert torch.isfinite(trajectory).all()
            full = record.fallback[0] is not None  # the certified program, or full with a reason
            assert record.evaluations[0] == (STEPS if full else evaluations)
        elif event == "end":
            own.end_episode()
        elif event == "audit":
            own.audit()
        elif event == "die":
            own.revive(Dying(refuse=True))
        elif event == "revive":
            own.revive(Dying(at=10**6))
        else:
            own._excess = lambda held, bad=event == "bad": 2.0 if bad else 0.5  # type: ignore
        assert len(own.monitor.audits) + len(own._shadow) <= episodes
    own.revive(Dying(at=10**6))
    own.close()
    assert len(own._shadow) == 0
    assert len({audit.call for audit in own.monitor.audits}) == len(own.monitor.audits)


# -- what does not fit -----------------------------------------------------------------------


def test_a_planner_without_certificate_cannot_be_watched() -> None:
    other = replace(ISSUED, identity={**ISSUED.identity, "dtype": "float64"})
    fast = cache(planner(), other, on_mismatch="full")
    with pytest.raises(CertificateError, match=r"no certificate to watch.*dtype"):
        Monitored(fast, Monitor(ISSUED))


def test_another_certificates_monitor_is_refused() -> None:
    with pytest.raises(CertificateError, match="watches another certificate"):
        Monitored(cache(planner(), ISSUED), Monitor(replace(ISSUED, seed=99)))


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.1, float("nan")])
def test_rates_are_checked(rate: float) -> None:
    with pytest.raises(InputError, match="share of episodes"):
        watched(rate=rate)


def halved(full: Tensor, cached: Tensor) -> Tensor:
    return rms_step(full, cached) / 2.0


def loose(context: Tensor) -> Tensor:
    return torch.full((len(context),), 0.5)


def test_functions_of_the_user_must_be_given_again() -> None:
    own_metric = replace(ISSUED, metric="halved")
    with pytest.raises(InputError, match="pass the function as metric="):
        watched(issued=own_metric)
    with pytest.raises(InputError, match="got 'rms_step'"):
        watched(issued=own_metric, metric=rms_step)
    own_tolerance = replace(ISSUED, tolerance=None, tolerance_name="loose")
    for wrong in (None, 0.5, lambda context: loose(context)):
        with pytest.raises(InputError, match="pass the one that it was calibrated with"):
            watched(issued=own_tolerance, tolerance=wrong)
    both = replace(own_tolerance, metric="halved")
    own = watched(issued=both, metric=halved, tolerance=loose)
    trajectory, _ = own(contexts(1), generator=generator())
    own.audit()
    full = planner().sample(contexts(1), generator=generator())
    expected = float(rms_step(full, trajectory))  # halved, over a tolerance of a half
    assert own.monitor.audits[0].excess == pytest.approx(expected, rel=1e-5)


def test_the_reference_of_a_certificate_must_be_given_again() -> None:
    precise = replace(planner(), dtype=torch.float64)
    issued = replace(ISSUED, reference=precise.identity())
    with pytest.raises(CertificateError, match="pass it as reference="):
        watched(issued=issued)
    with pytest.raises(CertificateError, match="pass that one"):
        watched(issued=issued, reference=planner("ddpm"))
    own = watched(issued=issued, reference=precise)
    own(contexts(1), generator=generator())
    own.audit()
    assert len(own.monitor.audits) == 1
