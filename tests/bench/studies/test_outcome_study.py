"""The study of outcomes: paired episodes of a task, certified, judged, and not driven twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from muninn.certify.outcomes import STREAMS
from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn_bench.registry import find_task
from muninn_bench.report.table import read_csv
from muninn_bench.studies import outcomes as study
from muninn_bench.studies.outcomes import Driven, Sizes, judged, run_outcomes
from muninn_bench.studies.promises import _cells, draw_promises
from muninn_bench.task import Result, Stream

SMALL = Sizes(tune=8, certify=80, test=40, together=20)
COLUMNS = [
    "task", "variant", "promise", "margin", "risk", "method", "certified", "evaluations_mean",
    "calibration_episodes", "test_episodes", "realised", "realised_low", "realised_high",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("outcomes")
    run_outcomes(
        find_task("discs"), "diffuser", out, sizes=SMALL, names=("frontier", "fewsteps"),
        promises=(("harm", 0.05), ("mean", 0.1)), progress=False,
    )  # fmt: skip
    return out


def test_every_promise_and_method_has_a_line(folder: Path) -> None:
    lines = read_csv(folder / "cells.csv")
    assert [(line["promise"], line["method"]) for line in lines] == [
        ("harm", "frontier"), ("harm", "fewsteps"), ("mean", "frontier"), ("mean", "fewsteps"),
    ]  # fmt: skip
    for line in lines:
        assert list(line)[: len(COLUMNS)] == COLUMNS
        assert line["test_episodes"] == 40
        assert line["realised_low"] <= line["realised"] <= line["realised_high"]
        assert (line["margin"], line["risk"]) == (
            (0.0, 0.05) if line["promise"] == "harm" else (0.1, None)
        )
    ours = [line for line in lines if line["method"] == "frontier"]
    assert all(line["certified"] and line["evaluations_mean"] < 20.0 for line in ours)
    assert all(line["score_full"] > 0.9 for line in lines)


def test_a_second_start_drives_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> float:
        raise AssertionError("an episode was driven again")

    monkeypatch.setattr(Driven, "__call__", refuse)
    before = (folder / "cells.csv").read_text()
    run_outcomes(
        find_task("discs"), "diffuser", folder, sizes=SMALL, names=("frontier", "fewsteps"),
        promises=(("harm", 0.05), ("mean", 0.1)), progress=False,
    )  # fmt: skip
    assert (folder / "cells.csv").read_text() == before


def test_a_seed_names_a_world_of_its_purpose() -> None:
    begun: list[tuple[Stream, int]] = []

    class Recorder:
        name = "recorder"

        def begin(self, variant: str, stream: Stream, number: int, seed: int) -> Any:
            begun.append((stream, number))
            raise StopIteration

    planner = find_task("discs").planner("diffuser")
    driven = Driven(Recorder(), "any", planner, SMALL, 7)  # type: ignore[arg-type]
    for part in ("tune", "certify", "test"):
        with pytest.raises(StopIteration):
            driven(lambda context: context, call_seed(7, STREAMS[part], 5))  # type: ignore[index]
    with pytest.raises(StopIteration):
        driven(lambda context: context, 12345)  # an example, which nothing else uses
    assert begun == [(Stream.TUNE, 5), (Stream.CERTIFY, 5), (Stream.TEST, 5), (Stream.TUNE, 8)]


class Judging:
    """A task whose episodes are judged when their result is asked for."""

    name = "judging"

    def __init__(self, found: Result) -> None:
        self._found = found

    def begin(self, variant: str, stream: Stream, number: int, seed: int) -> Any:
        return self

    done = True

    def context(self) -> None:
        return None

    def result(self) -> Result:
        assert study._turn.locked()  # a judge may use a simulator that others use
        return self._found


@pytest.mark.parametrize(
    ("found", "score"),
    [
        (Result(True), 1.0),
        (Result(False), 0.0),
        (Result(True, 0.0), 0.0),  # the score says more than the success
        (Result(False, 75.0), 0.0),  # points
        (Result(True, 100.0), 1.0),
    ],
)
def test_an_episode_counts_as_success_or_as_a_score_of_0_or_1(found: Result, score: float) -> None:
    planner = find_task("discs").planner("diffuser")
    driven = Driven(Judging(found), "any", planner, SMALL, 7)  # type: ignore[arg-type]
    assert driven(lambda context: context, 1) == score


def test_points_without_success_are_refused_with_the_command_that_takes_them() -> None:
    planner = find_task("discs").planner("diffuser")
    driven = Driven(Judging(Result(None, 41.5)), "any", planner, SMALL, 7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="muninn-bench suite --task judging"):
        driven(lambda context: context, 1)


def test_what_was_realised_comes_with_its_interval() -> None:
    fall = np.array([1.0] * 3 + [-1.0] * 5 + [0.0] * 92)
    share, low, high = judged("harm", fall)
    assert share == 0.03 and low < 0.03 < high
    mean, low, high = judged("mean", fall)
    assert mean == pytest.approx(-0.02) and low < mean < high
    assert high - mean == pytest.approx(mean - low)


def test_folders_are_merged(folder: Path, tmp_path: Path) -> None:
    said = study.merge([folder], tmp_path)
    assert len(said) == 4 and "discs diffuser, harm 0.05: frontier" in said[0]
    assert read_csv(tmp_path / "cells.csv") == read_csv(folder / "cells.csv")
    assert (tmp_path / "promises.png").stat().st_size > 1000


def test_a_picture_shows_ours_and_the_best_of_the_others(tmp_path: Path) -> None:
    def line(method: str, evaluations: float, **promised: object) -> dict[str, object]:
        known = {"task": "discs", "variant": "diffuser", "sampler": "ddim", "method": method}
        return {**known, **promised, "evaluations_mean": evaluations}

    spent = {"frontier": 4.5, "fewsteps": 9.0, "unipc": 6.0}
    distances = [line(*each, tolerance=0.01) for each in spent.items()]
    assert _cells(distances, ("tolerance",)) == [((0.01,), 4.5, 6.0)]
    outcomes = [line("frontier", 2.0, promise="harm", limit=0.02)]
    (cell,) = _cells(outcomes, ("promise", "limit"))
    assert cell[:2] == (("harm", 0.02), 2.0) and math.isnan(cell[2])
    assert draw_promises(distances, outcomes, tmp_path / "promises.png").is_file()


@pytest.mark.slow
def test_workers_change_nothing(folder: Path, tmp_path: Path) -> None:
    run_outcomes(
        find_task("discs"), "diffuser", tmp_path, sizes=SMALL, names=("fewsteps",),
        promises=(("harm", 0.05),), workers=2, progress=False,
    )  # fmt: skip
    inline = [line for line in read_csv(folder / "cells.csv") if line["method"] == "fewsteps"]
    assert read_csv(tmp_path / "cells.csv") == inline[:1]
