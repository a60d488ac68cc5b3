"""Evaluations against difficulty, where both are known: a velocity that swings as fast as told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import Estimate
from muninn_bench.report.table import Row
from muninn_bench.studies.difficulty import (
    TightNear,
    difficulty_rows,
    difficulty_table,
    draw_difficulty,
)
from muninn_bench.task import Stream
from toy_task import Toy, ToyEpisode
from waving_cases import waving_contexts, waving_planner


class WavingEpisode(ToyEpisode):
    """Asks for a plan at its own speed, drawn with the stream and number."""

    def __init__(self, seed: int) -> None:
        super().__init__(0, 1)
        self._seed = seed

    def context(self) -> Tensor:
        return waving_contexts(1, hard=0.5, fastest=12.0, seed=self._seed)


class Graded(Toy):
    """Half of its calls do not swing, and are easy; the second figure says nothing."""

    name, variants, tolerance = "waving", ("slow", "fast"), 0.05

    def planner(self, variant: str) -> Planner:
        return waving_planner(40)

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> WavingEpisode:
        return WavingEpisode(number + 1000 * stream)

    def figures(self, variant: str, plans: Tensor, contexts: Tensor) -> dict[str, FloatArray]:
        assert plans.shape == (len(contexts), 4, 2)
        speed, phase = contexts.double().numpy().T
        return {"speed_hz": speed, "phase_rad": phase, "boxes": np.full(len(speed), 3.0)}


def rows() -> list[Row]:
    return difficulty_rows(Graded(), "slow", calls=60, tuning=48)


def test_evaluations_follow_the_figure_that_makes_calls_hard(tmp_path: Path) -> None:
    found = rows()
    assert len(found) == 60 and list(found[0])[:3] == ["variant", "call", "evaluations"]
    spent = np.array([row["evaluations"] for row in found], dtype=float)
    assert 2.0 < spent.mean() < 40.0
    assert np.mean([float(r["deviation"]) > float(r["tolerance"]) for r in found]) < 0.2  # type: ignore[arg-type]
    table = difficulty_table(found)
    assert [row["figure"] for row in table.rows] == ["speed_hz", "phase_rad"], "boxes never change"
    speed, phase = table.rows
    few, many = speed["evaluations, smallest third"], speed["evaluations, largest third"]
    assert isinstance(few, Estimate) and isinstance(many, Estimate)
    assert float(speed["rank correlation"]) > 0.6 and float(speed["p"]) < 1e-4  # type: ignore[arg-type]
    assert few.high < many.low
    assert float(phase["p"]) > 0.01  # type: ignore[arg-type]
    assert draw_difficulty(found, "speed_hz", tmp_path / "difficulty.png").stat().st_size > 5000
    assert table.write(tmp_path).read_text().startswith("variant,figure,calls,rank correlation,p")


def test_variants_are_judged_apart_and_together() -> None:
    easy: Row = {"variant": "easy", "call": 0, "evaluations": 5.0, "boxes": 3.0}
    one: list[Row] = [{**easy, "evaluations": 5.0 + n % 2} for n in range(9)]
    other: list[Row] = [{**easy, "variant": "hard", "evaluations": 9.0, "boxes": 6.0}] * 9
    (row,) = difficulty_table([*one, *other]).rows
    assert (row["variant"], row["figure"], row["calls"]) == ("all", "boxes", 18)
    # Squares of the ranks about their mean: 364.5 of the boxes, 409.5 of the evaluations.
    assert row["rank correlation"] == pytest.approx((364.5 / 409.5) ** 0.5)
    assert row["evaluations, largest third"] == Estimate(9.0, 9.0, 9.0)


def test_a_tolerance_is_tight_where_the_context_says() -> None:
    def slowness(context: Tensor) -> Tensor:
        return -context[:, 0]

    tolerance = TightNear(slowness, near=-9.0, tight=0.01, wide=0.1)
    contexts = waving_contexts(300, hard=1.0, fastest=12.0)
    assert torch.equal(tolerance(contexts) == 0.01, contexts[:, 0] > 9.0)
    certificate = muninn.calibrate(
        waving_planner(40), contexts, tolerance=tolerance, risk=0.1, progress=False
    )
    assert certificate.tolerance is None and certificate.tolerance_name == "TightNear"
    assert certificate.member > 0
    wide = difficulty_rows(Graded(), "slow", calls=40, tuning=48, tolerance=tolerance)
    assert sorted({float(row["tolerance"]) for row in wide}) == pytest.approx([0.01, 0.1])  # type: ignore[arg-type]


def test_a_task_that_does_not_grade_its_calls_is_refused() -> None:
    with pytest.raises(InputError, match="toy does not say how hard its calls are"):
        difficulty_rows(Toy(), "only")
    with pytest.raises(InputError, match=r"no adaptive program.*give a larger tolerance"):
        difficulty_rows(Graded(), "slow", tuning=16, tolerance=1e-12)
