"""Progress where there is no terminal: lines in a log instead of a bar that nobody sees."""

from __future__ import annotations

import pytest

from muninn import progress


def test_a_log_file_gets_lines_while_the_work_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with progress.bars(True) as bar:
        known, unknown = bar("certify", 10), bar("collect", None)
        known(3)
        unknown(2)
        known(4)
        said = capsys.readouterr().err.splitlines()
    assert [line.strip() for line in said] == [
        "certify: 3 of 10",
        "collect: 2",
        "certify: 7 of 10",
    ]


def test_short_work_says_nothing_before_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bars(True) as bar:
        bar("certify", 10)(10)
        assert not capsys.readouterr().err
    assert "10/10" in capsys.readouterr().err


def test_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.bars(False) as bar:
        bar("certify", 10)(10)
    said = capsys.readouterr()
    assert not said.out and not said.err
