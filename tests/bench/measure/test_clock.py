"""Clocks at seams, by hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from muninn_bench.measure import clock


def test_time_is_counted_once_for_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([-1.0, 0.0, 1.0, 3.0, 7.0, 8.0, 10.0])
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(ticks))
    found = clock.Clock()
    inner = found.timed(lambda: 7, "inner")
    outer = found.timed(lambda: inner(), "outer")
    found.start()
    assert outer() == 7
    found.stop()
    assert dict(found.seconds) == {clock.REST: 1.0 + 2.0, "outer": 2.0 + 1.0, "inner": 4.0}
    assert dict(found.entries) == {"outer": 1, "inner": 1}


def test_clocks_are_taken_off_after_an_error_too() -> None:
    owner = SimpleNamespace(seam=len)
    found = clock.Clock()
    with pytest.raises(TypeError), found.at([(owner, "seam", "part")]):
        assert owner.seam("two") == 3
        owner.seam(2)
    assert owner.seam is len
    assert found.entries["part"] == 2
    with pytest.raises(AttributeError), found.at([(owner, "none", "part")]):
        pass
