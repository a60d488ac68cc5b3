"""The monitor: alarms stay, evidence is kept, logs are resumed, fleets merge in any order."""

from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from certify_cases import certificate
from muninn.certify.certificate import Certificate
from muninn.errors import CertificateError, InputError
from muninn.monitor.fleet import Fleet
from muninn.monitor.monitor import Audit, Monitor, certificate_digest, read_audits
from muninn.monitor.telemetry import render

ISSUED: Certificate = certificate()
OTHER: Certificate = replace(ISSUED, seed=ISSUED.seed + 1)


def filled(excesses: list[float | None], **settings: Any) -> Monitor:
    monitor = Monitor(ISSUED, **settings)
    for excess in excesses:
        monitor.record(monitor.next_call(), excess)
    return monitor


# -- the alarm -------------------------------------------------------------------------------


def test_no_alarm_without_violations() -> None:
    monitor = filled([0.5, 1.0] * 300)
    assert monitor.alarm is None and monitor.e_value < 1.0
    assert monitor.report()["alarm_after_audits"] is None


def test_violations_raise_an_alarm_that_stays() -> None:
    monitor = filled([1.001] * 4)
    assert monitor.alarm is not None and "4 of 4 audits" in monitor.alarm
    for _ in range(400):
        monitor.record(monitor.next_call(), 0.0)
    assert monitor.e_value < 20.0 and monitor.alarm is not None
    assert "4 of 4 audits" in monitor.alarm  # the evidence it was raised on


@pytest.mark.parametrize("excess", [None, math.nan, math.inf, 1.0 + 1e-12])
def test_what_does_not_show_that_the_promise_was_kept_counts_against_it(
    excess: float | None,
) -> None:
    assert filled([excess]).audits[0].violated
    assert filled([excess]).audits[0].excess in (None, excess)


def test_exactly_the_tolerance_is_kept() -> None:
    assert not filled([1.0]).audits[0].violated


def test_the_path_is_the_evidence_after_each_audit() -> None:
    monitor = filled([0.0, 2.0, 0.0])
    assert len(monitor.path) == 3 and monitor.path[1] > 0.0 > monitor.path[0]
    assert monitor.e_value == pytest.approx(math.exp(monitor.path[-1]))


def test_a_stricter_level_needs_more() -> None:
    def needed(level: float) -> int:
        monitor = Monitor(ISSUED, level=level)
        while monitor.alarm is None:
            monitor.record(monitor.next_call(), 2.0)
        return len(monitor.audits)

    counts = [needed(level) for level in (0.2, 0.05, 0.001, 1e-9)]
    assert counts == sorted(counts) and counts[0] < counts[-1]


def test_marginal_certificates_are_refused() -> None:
    for watch in (Monitor, Fleet):
        with pytest.raises(InputError, match="marginal"):
            watch(replace(ISSUED, confidence=None))


# -- drift -----------------------------------------------------------------------------------


def test_drift_warns_and_alarms_nothing() -> None:
    monitor = Monitor(ISSUED, seed=0)
    beyond = float(ISSUED.estimates[-1]) * 2.0
    for _ in range(30):
        monitor.see(beyond)
    assert monitor.warning is not None and "may still hold" in monitor.warning
    assert monitor.alarm is None and monitor.e_value == 1.0


def test_estimates_of_calibration_are_no_drift() -> None:
    monitor = Monitor(ISSUED, seed=0)
    for estimate in np.random.default_rng(1).permutation(ISSUED.estimates).tolist():
        monitor.see(estimate)
    assert monitor.warning is None


def test_pooled_estimates_of_episodes_are_not_taken_for_calls() -> None:
    """Drift of an episode certificate is measured against deployment's own beginning."""
    monitor = Monitor(replace(ISSUED, unit="episode"), seed=0)
    for _ in range(60):
        monitor.see(float(ISSUED.estimates[-1]) * 2.0)
    assert monitor.warning is None


# -- the log ---------------------------------------------------------------------------------


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    log = tmp_path / "audits.jsonl"
    first = filled([0.3, 2.0, 0.1, None], log=log)
    again = Monitor(ISSUED, log=log)
    assert again.audits == first.audits and again.path == first.path
    second = filled([5.0] * 4, log=log)
    assert [audit.ordinal for audit in second.audits] == list(range(8))
    assert len({audit.call for audit in second.audits}) == 8
    assert second.alarm is not None and Monitor(ISSUED, log=log).alarm == second.alarm


def test_logs_of_other_certificates_or_robots_are_refused(tmp_path: Path) -> None:
    filled([0.3], log=tmp_path / "log")
    with pytest.raises(CertificateError, match="Give each its own log"):
        Monitor(OTHER, log=tmp_path / "log")
    with pytest.raises(CertificateError, match="'two'"):
        Monitor(ISSUED, robot="two", log=tmp_path / "log")


def test_a_truncated_last_line_costs_one_audit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    filled([2.0, 0.5, 2.0], log=log)
    log.write_bytes(log.read_bytes()[:-7])
    monitor = filled([0.25], log=log)
    assert [audit.excess for audit in monitor.audits] == [2.0, 0.5, 0.25]
    assert read_audits(log) == monitor.audits


@pytest.mark.parametrize(
    "change", [{"ordinal": True}, {"ordinal": -1}, {"violated": 1}, {"robot": 3}, {"call": None}]
)
def test_a_line_that_is_no_audit_is_named(tmp_path: Path, change: dict[str, Any]) -> None:
    log = tmp_path / "log"
    filled([2.0], log=log)
    log.write_text(json.dumps({**json.loads(log.read_text()), **change}) + "\n")
    with pytest.raises(InputError, match=f"an audit's {next(iter(change))}"):
        Monitor(ISSUED, log=log)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InputError, match="lacks the field 'certificate'"):
        Audit.from_json({"ordinal": 1})


def test_a_full_disk_loses_no_audit_and_no_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = tmp_path / "log"
    monitor = filled([0.5], log=log)
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        disk.setattr(os, "fsync", full)
        for _ in range(5):
            monitor.record(monitor.next_call(), 3.0)
        assert monitor.alarm is not None and not monitor.flush()
        assert len(read_audits(log)) == 1 and not monitor.evidence_path.exists()
    assert monitor.flush()
    assert read_audits(log) == monitor.audits
    assert json.loads(monitor.evidence_path.read_text()) == monitor.report()


def test_evidence_is_saved_with_the_alarm(tmp_path: Path) -> None:
    monitor = filled([2.0] * 6, log=tmp_path / "robot.jsonl")
    evidence = json.loads((tmp_path / "robot.alarm.json").read_text())
    assert evidence["certificate"] == certificate_digest(ISSUED)
    assert evidence["promise"] == ISSUED.promise() and evidence["alarm"] == monitor.alarm
    at = evidence["alarm_after_audits"]
    assert evidence["log_e_values"][at - 1] >= math.log(20.0) > evidence["log_e_values"][at - 2]
    assert len(evidence["audits"]) == at  # written when it was raised


def test_a_monitor_without_a_log_has_no_evidence_file() -> None:
    with pytest.raises(InputError, match="use report"):
        _ = filled([2.0]).evidence_path


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path: Path) -> None:
    times = iter([100.0, 50.0, -1.0, 70.0])
    monitor = filled([2.0, 0.0, 2.0, 0.0], log=tmp_path / "log", clock=lambda: next(times))
    plain = filled([2.0, 0.0, 2.0, 0.0])
    assert monitor.path == plain.path
    assert [audit.ordinal for audit in read_audits(tmp_path / "log")] == [0, 1, 2, 3]
    assert Monitor(ISSUED, log=tmp_path / "log").path == plain.path


def test_metrics_say_what_the_monitor_says(tmp_path: Path) -> None:
    text = render(filled([2.0] * 5, robot="r").samples())
    label = f'{{certificate="{certificate_digest(ISSUED)}",robot="r"}}'
    assert f"muninn_audits_total{label} 5.0\n" in text
    assert f"muninn_audit_violations_total{label} 5.0\n" in text
    assert f"muninn_alarm{label} 1.0\n" in text and f"muninn_drift_warning{label} 0.0\n" in text


def test_digests_tell_recalibrations_apart() -> None:
    assert certificate_digest(ISSUED) == certificate_digest(replace(ISSUED))
    estimates = ISSUED.estimates.copy()
    estimates[0] = 0.0
    changed = [OTHER, replace(ISSUED, estimates=estimates), replace(ISSUED, risk=0.2)]
    assert len({certificate_digest(one) for one in [ISSUED, *changed]}) == 4


def test_a_digest_survives_the_file(tmp_path: Path) -> None:
    loaded = Certificate.load(ISSUED.save(tmp_path / "c.safetensors"))
    assert certificate_digest(loaded) == certificate_digest(ISSUED)


# -- fleets ----------------------------------------------------------------------------------


def robots(outcomes: list[list[bool]]) -> list[list[Audit]]:
    """Logs of several robots."""
    return [
        filled([2.0 if bad else 0.5 for bad in own], robot=f"r{i}", clock=lambda: 0.0).audits
        for i, own in enumerate(outcomes)
    ]


fleets = st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=4)


@given(fleets, st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_merging_in_any_order_and_more_than_once_gives_the_same_state(
    outcomes: list[list[bool]], random: Any
) -> None:
    logs = robots(outcomes)
    plain = Fleet(ISSUED)
    for log in logs:
        plain.add(log)
    pieces = [[audit] for log in logs for audit in log] + logs
    random.shuffle(pieces)
    mixed = Fleet(ISSUED)
    taken = sum(mixed.add(piece) for piece in pieces)
    assert mixed.audits == plain.audits and mixed.e_value == plain.e_value
    assert (mixed.alarm, mixed.violations) == (plain.alarm, plain.violations)
    assert taken == len(plain.audits) == mixed.duplicates


def test_a_fleet_of_one_is_a_monitor(tmp_path: Path) -> None:
    monitor = filled([2.0, 0.5, 2.0, 2.0], log=tmp_path / "log")
    fleet = Fleet(ISSUED)
    assert fleet.add_log(tmp_path / "log") == 4
    assert fleet.e_value == pytest.approx(monitor.e_value)


def test_a_fleet_sees_what_no_robot_sees_alone() -> None:
    logs = robots([[True, True]] * 3)
    fleet = Fleet(ISSUED)
    for log in logs:
        alone = Fleet(ISSUED)
        assert alone.add(log) == 2 and alone.alarm is None
        fleet.add(log)
    assert fleet.alarm is not None and "6 of 6 audits" in fleet.alarm


def test_other_certificates_and_clashing_names_are_refused_as_a_whole() -> None:
    fleet = Fleet(ISSUED)
    good = robots([[True]])[0]
    with pytest.raises(CertificateError, match="merge each certificate's logs on their own"):
        fleet.add([*good, replace(good[0], certificate="other", call="x")])
    with pytest.raises(InputError, match="names of their own"):
        fleet.add([*good, replace(good[0], violated=False)])
    assert fleet.audits == [] and fleet.e_value == 1.0
    assert fleet.add(good) == 1


@given(st.lists(st.none() | st.floats(0.0, 3.0), max_size=25))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_log_and_memory_agree(tmp_path: Path, excesses: list[float | None]) -> None:
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    monitor = filled(excesses, log=log)
    again = Monitor(ISSUED, log=log)
    assert again.audits == monitor.audits and again.alarm == monitor.alarm


def test_only_an_alarm_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    monitor = filled([0.5, 2.0, 0.5], log=tmp_path / "log")
    assert synced == [] and len(read_audits(tmp_path / "log")) == 3
    while monitor.alarm is None:
        assert synced == []
        monitor.record(monitor.next_call(), 2.0)
    assert len(synced) == 2  # the log and the evidence
