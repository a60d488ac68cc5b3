"""A calibration that is interrupted, starved of disk or resumed ends as if nothing had happened."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from certify_cases import FAMILY, SHORT_FAMILY, Interrupting, certificate, contexts, drive, planner
from muninn.certify.certificate import Certificate
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.units import Episodes
from muninn.errors import CalibrationError
from muninn.model.planner import Planner
from muninn_bench.studies.coverage.mixture import mixture_planner

CASES: dict[str, dict[str, Any]] = {
    "frozen family": {"calls": 72, "batch_size": 10},
    "tuned family": {"calls": 90, "steps": 6, "family": None, "risk": 0.2, "batch_size": 20},
    "closed loop": {
        "calls": Episodes(drive, 28),
        "risk": 0.2,
        "steps": 6,
        "family": SHORT_FAMILY,
        "tolerance": 0.3,
    },
}


def calibration(case: str, **changes: Any) -> tuple[Interrupting, dict[str, Any]]:
    """A denoiser that can be interrupted, and the arguments of the calibration that uses it."""
    fields = {**CASES[case], **changes}
    own: Planner = mixture_planner("ddim", steps=fields.pop("steps", 20))
    denoiser = Interrupting(own.denoiser)  # type: ignore[arg-type]
    if isinstance(fields["calls"], int):
        fields["calls"] = contexts(fields["calls"])
    return denoiser, {"planner": replace(own, denoiser=denoiser), **fields}


def interrupted(
    denoiser: Interrupting, arguments: dict[str, Any], budgets: Iterator[int], path: Path
) -> tuple[Certificate, int]:
    """Start again after every Ctrl-C until the certificate is there."""
    stops = 0
    while True:
        denoiser.left = next(budgets)
        try:
            return certificate(resume=path, **arguments), stops
        except KeyboardInterrupt:
            stops += 1


@pytest.mark.parametrize("case", list(CASES))
def test_ctrl_c_at_random_points_ends_with_the_same_file(case: str, tmp_path: Path) -> None:
    denoiser, arguments = calibration(case)
    expected = certificate(**arguments).save(tmp_path / "straight").read_bytes()
    straight, denoiser.evaluations = denoiser.evaluations, 0
    generator = np.random.default_rng(len(case))
    budgets = (int(generator.uniform(0.1, 0.5) * straight) for _ in range(1000))
    issued, stops = interrupted(denoiser, arguments, budgets, tmp_path / "journal.jsonl")
    assert stops >= 2
    assert issued.save(tmp_path / "resumed").read_bytes() == expected
    before = denoiser.evaluations
    denoiser.left = 0
    again = certificate(resume=tmp_path / "journal.jsonl", **arguments)
    assert again.save(tmp_path / "again").read_bytes() == expected
    # A finished calibration is only read; the network answers its stored questions again.
    assert denoiser.evaluations == before + min(8, len(arguments["planner"].sampler))


def test_ctrl_c_inside_the_metric_ends_with_the_same_file(tmp_path: Path) -> None:
    left = [0]

    def metric(full: Tensor, cached: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return rms_step(full, cached)

    metric.muninn_identity = "rms"  # type: ignore[attr-defined]  # the count is no setting
    arguments: dict[str, Any] = {"metric": metric, "batch_size": 16}
    expected = certificate(**arguments).save(tmp_path / "straight").read_bytes()
    for budget in (1, 4, 3, 7):
        left[0] = budget
        with pytest.raises(KeyboardInterrupt):
            certificate(resume=tmp_path / "j", **arguments)
    left[0] = 0
    issued = certificate(resume=tmp_path / "j", **arguments)
    assert issued.save(tmp_path / "resumed").read_bytes() == expected


def test_tuning_episodes_that_go_otherwise_when_they_are_resumed_are_tuned_on_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [0]

    def world(plan: Any, seed: int) -> None:
        for step in range(2 + more[0]):
            plan(contexts(1, seed + step))

    world.muninn_identity = "two calls, or more"  # type: ignore[attr-defined]
    arguments = {
        "calls": Episodes(world, 40), "family": None, "risk": 0.2, "tolerance": 0.4,
        "planner": mixture_planner("ddim", steps=12),
    }  # fmt: skip
    put_all = Journal.put_all

    def interrupting(journal: Journal, pieces: dict[str, Any]) -> None:
        if "family" in pieces:
            raise KeyboardInterrupt
        put_all(journal, pieces)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "put_all", interrupting)
        certificate(resume=tmp_path / "j", **arguments)
    more[0] = 1
    plain = certificate(**arguments)
    assert certificate(resume=tmp_path / "j", **arguments).family == plain.family


def test_a_family_chosen_by_time_is_kept_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Times differ from run to run; certify results of one family must never serve another.
    arguments = {"family": None, "objective": "time", "calls": contexts(90), "risk": 0.2,
                 "planner": mixture_planner("ddim", steps=6)}  # fmt: skip
    monkeypatch.setattr("muninn.certify.tune.median_seconds", lambda *_: [1.0, 2.0])
    first = certificate(resume=tmp_path / "j", **arguments)
    monkeypatch.setattr("muninn.certify.tune.median_seconds", lambda *_: [2.0, 1.0])
    assert certificate(resume=tmp_path / "j", **arguments).family == first.family


@pytest.mark.parametrize(
    "changes",
    [
        {"tolerance": 0.05},
        {"risk": 0.2},
        {"confidence": None},
        {"metric": "max_step"},
        {"seed": 1},
        {"batch_size": 32},
        {"calls": contexts(72, seed=1)},
        {"planner": planner("ddpm")},
        {"family": replace(FAMILY, programs=FAMILY.programs[:-1])},
        {"reference": planner()},
    ],
)
def test_a_journal_of_other_settings_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "j"
    certificate(resume=path)
    before = path.read_bytes()
    with pytest.raises(CalibrationError, match=r"another calibration.*Delete it, or resume with"):
        certificate(resume=path, **changes)
    assert path.read_bytes() == before


def test_a_disk_that_fills_loses_nothing_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denoiser, arguments = calibration("frozen family")
    expected = certificate(**arguments).save(tmp_path / "straight").read_bytes()
    straight, denoiser.evaluations = denoiser.evaluations, 0
    room, real = [8], os.fsync

    def fsync(file: int) -> None:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CalibrationError, match=r"No space left.*free space and run the same comm"):
        certificate(resume=tmp_path / "j", **arguments)
    room[0] = 10_000
    issued = certificate(resume=tmp_path / "j", **arguments)
    assert issued.save(tmp_path / "resumed").read_bytes() == expected
    # Full compute of the certify calls runs again, a member's chunk at most once more.
    assert denoiser.evaluations <= 1.6 * straight


def test_a_journal_cut_by_a_power_loss_costs_its_last_entry_only(tmp_path: Path) -> None:
    _, arguments = calibration("frozen family")
    expected = certificate(resume=tmp_path / "j", **arguments).save(tmp_path / "a").read_bytes()
    whole = (tmp_path / "j").read_bytes()
    for share in (0.35, 0.6, 0.9):
        (tmp_path / "j").write_bytes(whole[: int(share * len(whole))])
        issued = certificate(resume=tmp_path / "j", **arguments)
        assert issued.save(tmp_path / "b").read_bytes() == expected
        assert (tmp_path / "j").read_bytes() == whole


def test_resuming_into_a_certificate_by_mistake_does_not_destroy_it(tmp_path: Path) -> None:
    path = certificate().save(tmp_path / "c.safetensors")
    before = path.read_bytes()
    with pytest.raises(CalibrationError, match="not a calibration journal"):
        certificate(resume=path)
    assert path.read_bytes() == before
