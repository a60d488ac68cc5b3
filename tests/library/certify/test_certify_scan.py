"""How a member is chosen from units, and how units are split before."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from certify_cases import (
    SHORT_FAMILY,
    STEPS,
    GivenUnits,
    certificate,
    contexts,
    drive,
    planner,
    uniform_tolerated,
)
from muninn.certify.calibrate import split_units
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.risk import choose_member, order_statistic
from muninn.certify.scan import Informed, Measuring, Scan
from muninn.certify.units import Episodes, OpenLoop
from muninn.errors import CalibrationError, InputError
from muninn.model.schedule import FloatArray
from muninn.parallel import Map, Processes
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn_bench.studies.coverage.mixture import mixture_planner
from parallel_cases import Scaled, scaled

# -- the scan over units ---------------------------------------------------------------------


def long_family(members: int) -> Family:
    plans = tuple(Static((0, *range(k, STEPS))) for k in range(2, members + 1))
    return Family.of(Forecast("sample", 1), (Everywhere(), *plans), "static")


def scan(
    excess: FloatArray,
    allowed: int,
    chunk: int = 7,
    check_full: bool = False,
    running: bool = True,
    free: int | None = None,
) -> Any:
    family = long_family(excess.shape[1])
    units = GivenUnits(excess, family, chunk)
    free = allowed if free is None else free
    made = Scan(
        Measuring(units), family, Journal(), Map(), lambda description, total: lambda steps: None
    )
    return *made.choose(list(range(units.count)), allowed, check_full, running, free), units


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_units_measured_in_chunks_choose_what_the_whole_table_says(chunk: int) -> None:
    generator = np.random.default_rng(chunk)
    for _ in range(20):
        excess = uniform_tolerated(60, 9, generator)
        excess[generator.random(excess.shape) < 0.3] = 0.4  # units come back into the tolerance
        excess[:, 0] = 0.0
        rank = order_statistic(60, 0.1, None)
        member, choosable, outcomes, realised, units = scan(excess, rank - 1, chunk)
        tolerated = (np.maximum.accumulate(excess, axis=1) <= 1.0).sum(axis=1) - 1
        assert member == choose_member(excess, 0.1, None) == np.sort(tolerated)[rank - 1]
        assert choosable == member
        assert len(outcomes) == (60 if member else 0)
        assert [row["member"] for row in realised] == list(range(1, len(realised) + 1))
        assert [row["accepted"] for row in realised] == [k < member for k in range(len(realised))]
        assert max(k for k, _ in units.measured) == min(member + 1, 8)


def test_a_unit_that_left_the_tolerance_counts_even_after_it_came_back() -> None:
    excess = np.full((40, 5), 0.5)
    excess[:3, 2] = 2.0  # three units leave at member 2 only
    excess[3:6, 3] = 2.0  # three others at member 3 only
    assert np.count_nonzero(excess > 1.0, axis=0).max() == 3  # each member alone looks fine
    member, choosable, _, realised, _ = scan(excess, allowed=3)
    assert member == choosable == 2
    assert [row["violations"] for row in realised] == [0, 3, 6]
    assert scan(excess, allowed=6)[0] == 4


def test_a_confident_scan_counts_each_member_by_itself_and_says_who_may_be_chosen() -> None:
    excess = np.full((40, 6), 0.5)
    excess[:3, 2] = 2.0
    excess[3:6, 3] = 2.0
    excess[:4, 5] = 2.0
    member, choosable, outcomes, realised, _ = scan(excess, allowed=3, running=False)
    assert (member, choosable) == (4, 2)  # member 5 fails; by 3 six units have left somewhere
    assert [row["violations"] for row in realised] == [0, 3, 3, 0, 4]
    assert [row["accepted"] for row in realised] == [True] * 4 + [False]
    assert [outcome.evaluations for outcome in outcomes] == [[STEPS - 4]] * 40
    assert scan(excess, allowed=3, running=False, check_full=True)[:2] == (4, 2)
    assert scan(excess, allowed=6, running=False)[:2] == (5, 5)
    # A stricter limit for the free choice: two of the three that left at member 2 are too many.
    assert scan(excess, allowed=3, running=False, free=2)[:2] == (4, 1)
    assert scan(excess, allowed=3, running=False, free=-1)[:2] == (4, 0)
    excess[:4, 1] = 2.0
    assert scan(excess, allowed=3, running=False)[:2] == (0, 0)


def test_full_compute_is_checked_only_against_a_reference() -> None:
    excess = np.full((40, 3), 2.0)
    member, choosable, outcomes, _, units = scan(excess, allowed=3)
    assert (member, choosable, outcomes) == (0, 0, [])
    assert all(k > 0 for k, _ in units.measured)
    with pytest.raises(CalibrationError, match=r"full compute itself.*Raise the tolerance, dep"):
        scan(excess, allowed=3, check_full=True)


# -- splits ----------------------------------------------------------------------------------


@pytest.mark.parametrize("tune", [False, True])
@pytest.mark.parametrize("count", [98, 120, 500])
def test_splits_are_disjoint_complete_and_random(tune: bool, count: int) -> None:
    parts = split_units(count, 0.05, 0.95 if count > 98 else None, tune=tune, seed=3)
    assert sorted(unit for part in parts.values() for unit in part) == list(range(count))
    assert bool(parts["tune"]) == tune
    assert len(parts["bound"]) >= 19
    assert parts["certify"] != list(range(len(parts["certify"])))
    again = split_units(count, 0.05, None, tune=tune, seed=3)
    other = split_units(count, 0.05, None, tune=tune, seed=4)
    assert again == parts != other


@pytest.mark.parametrize("risk", [0.3, 0.05, 0.01])
@pytest.mark.parametrize("confidence", [None, 0.95])
@pytest.mark.parametrize("tune", [False, True])
def test_the_number_asked_for_is_exactly_enough(
    risk: float, confidence: float | None, tune: bool
) -> None:
    with pytest.raises(CalibrationError, match="give at least") as refusal:
        split_units(4, risk, confidence, tune=tune, seed=0)
    needed = int(str(refusal.value).split("give at least ")[1].split(",")[0])
    parts = split_units(needed, risk, confidence, tune=tune, seed=0)
    assert order_statistic(len(parts["certify"]), risk, confidence) >= 1
    with pytest.raises(CalibrationError, match=f"give at least {needed}"):
        split_units(needed - 1, risk, confidence, tune=tune, seed=0)


def test_a_tiny_risk_is_answered_at_once() -> None:
    with pytest.raises(CalibrationError, match=r"give at least 3\d{4}"):
        split_units(100, 1e-4, 0.95, tune=False, seed=0)


# -- workers ---------------------------------------------------------------------------------

SMALL_SETTINGS: dict[str, Any] = {
    "calls": {"calls": contexts(72), "batch_size": 10, "metric": "executed:4"},
    "reference": {"calls": contexts(72), "reference": replace(planner(), dtype=torch.float64)},
    "episodes": {
        "calls": Episodes(drive, 28),
        "risk": 0.2,
        "planner": mixture_planner("ddim", steps=6),
        "family": SHORT_FAMILY,
        "tolerance": 0.3,
    },
}


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    with Processes(2) as workers:
        yield workers


@pytest.mark.parametrize("case", list(SMALL_SETTINGS))
def test_any_number_of_workers_writes_the_same_certificate_and_the_same_journal(
    case: str, two: Processes, tmp_path: Path
) -> None:
    made = {}
    with Processes(1) as one:
        for name, workers in {"inline": None, "one": one, "two": two}.items():
            issued = certificate(
                workers=workers, resume=tmp_path / f"{name}.journal", **SMALL_SETTINGS[case]
            )
            made[name] = issued.save(tmp_path / name).read_bytes()
            made[name] += (tmp_path / f"{name}.journal").read_bytes()
    assert made["inline"] == made["one"] == made["two"]


def test_a_worker_that_would_compute_otherwise_is_noticed(
    two: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parallel_cases.SCALE", 2.0)  # in this process only, as a script would
    for changes in ({"metric": scaled}, {"planner": replace(planner(), denoiser=Scaled())}):
        with pytest.raises(InputError, match=r"a worker process computes otherwise.*inline map"):
            certificate(workers=two, **changes)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(InputError, match=r"computes otherwise than this one \(arithmetic\)"),
    ):
        certificate(workers=two)


def test_what_no_worker_can_have_is_refused_in_one_sentence(two: Processes) -> None:
    with pytest.raises(InputError, match=r"cannot be sent to another process.*inline map"):
        certificate(workers=two, metric=lambda full, cached: (full - cached).abs().amax((1, 2)))
    measuring = Measuring(
        OpenLoop(PairedCalls(planner(), contexts(4), 4, rms_step, 0), 1.0, "call", None),
        [(replace(planner(), device=torch.device("meta")), None)],
    )
    with pytest.raises(InputError, match=r"planner is on meta, which workers cannot share.*inline"):
        next(two.map(measuring, []))


def test_a_chunk_brings_the_full_trajectories_that_are_known() -> None:
    units = OpenLoop(PairedCalls(planner(), contexts(6), 6, rms_step, 0), 1.0, "call", None)
    here, chunk, program = Informed(Measuring(units)), [1, 4, 5], SHORT_FAMILY.member(1)
    there = pickle.loads(pickle.dumps(here))
    outcomes, computed = here((units.full_of(chunk), program, chunk))
    assert sorted(computed) == chunk
    again, computed_again = there((units.full_of(range(6)), program, chunk))
    assert again == outcomes
    assert not computed_again


def test_one_function_measures_all_members_so_that_planners_travel_once() -> None:
    class Noting(Map):
        functions: set[int] = set()  # noqa: RUF012

        def map(self, function: Any, items: Any) -> Iterator[Any]:
            if isinstance(function, Informed):
                self.functions.add(id(function))
            return super().map(function, items)

    issued = certificate(workers=Noting())
    assert len(issued.realised) > 1
    assert len(Noting.functions) == 1


def test_a_worker_on_another_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    paired = PairedCalls(planner(), contexts(4), 4, rms_step, 0)
    elsewhere: Any = SimpleNamespace(**{**vars(planner()), "device": torch.device("cuda")})
    measuring = Measuring(OpenLoop(paired, 1.0, "call", None), [(elsewhere, None)])
    monkeypatch.setattr("muninn.certify.scan.get_device_name", lambda device: "one GPU")
    sent = pickle.dumps(measuring)
    assert pickle.loads(sent).networks[0][0].device.type == "cuda"
    monkeypatch.setattr("muninn.certify.scan.get_device_name", lambda device: "another GPU")
    with pytest.raises(InputError, match=r"otherwise than this one \(device\).*the same GPU"):
        pickle.loads(sent)


@pytest.mark.gpu
def test_processes_share_a_gpu_and_their_number_changes_nothing(tmp_path: Path) -> None:
    own = mixture_planner("ddim")
    own = replace(own, denoiser=own.denoiser.to("cuda"), device=torch.device("cuda"))
    made = []
    for count in (1, 2):
        with Processes(count) as workers:
            issued = certificate(planner=own, calls=contexts(72).to("cuda"), workers=workers)
            made.append(issued.save(tmp_path / str(count)).read_bytes())
    assert made[0] == made[1]
