"""Clocks at seams and groups of kernels, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from muninn_bench.studies.latency import profile


def test_time_is_counted_once_for_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([-1.0, 0.0, 1.0, 3.0, 7.0, 8.0, 10.0])
    monkeypatch.setattr(profile.time, "perf_counter", lambda: next(ticks))
    found = profile.Clock()
    inner = found.timed(lambda: 7, "inner")
    outer = found.timed(lambda: inner(), "outer")
    found.start()
    assert outer() == 7
    found.stop()
    assert dict(found.seconds) == {profile.REST: 1.0 + 2.0, "outer": 2.0 + 1.0, "inner": 4.0}
    assert dict(found.entries) == {"outer": 1, "inner": 1}


def test_clocks_are_taken_off_after_an_error_too() -> None:
    owner = SimpleNamespace(seam=len)
    found = profile.Clock()
    with pytest.raises(TypeError), found.at({"part": [(owner, "seam")]}):
        assert owner.seam("two") == 3
        owner.seam(2)
    assert owner.seam is len
    assert found.entries["part"] == 2
    with pytest.raises(AttributeError), found.at({"part": [(owner, "none")]}):
        pass


def test_kernels_are_grouped_by_name() -> None:
    kernels = [
        ("sm90_xmma_fprop_implicit_gemm_f16", 2.0, 20.0),
        ("void cutlass::Kernel", 1.0, 10.0),
        ("void at::native::GroupNormForwardKernel", 0.5, 20.0),
        ("_gap", 0.25, 19.0),
        ("Memcpy DtoH (Device -> Pageable)", 0.05, 1.0),
        ("something new", 0.2, 1.0),
    ]
    assert profile.group_kernels(kernels, wall_ms=5.0) == {
        "convolutions and products": (3.0, 30.0),
        "normalisation": (0.5, 20.0),
        "gap kernel": (0.25, 19.0),
        "copies and fills": (0.05, 1.0),
        "other kernels": (0.2, 1.0),
        profile.IDLE: (pytest.approx(1.0), 0.0),
    }
