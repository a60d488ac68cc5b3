"""The picture of plans: what is drawn where, and in which unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from muninn_bench.registry import find_task
from muninn_bench.report.page import overlays
from muninn_bench.report.style import TITLES
from muninn_bench.task import Drawable, Stream, context_rows

METHODS = ("full", "muninn", "fewsteps", "dpmsolver", "taylor")
FAR = {"full": 0.0, "muninn": 0.01, "fewsteps": 0.05, "dpmsolver": 0.04, "taylor": 0.02}


def run(calls: int, methods: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Straight plans; a method's are moved sideways, Muninn's the more the later the call."""
    contexts = context_rows(find_task("discs"), "diffuser", Stream.TEST, calls, 0)
    along = np.stack([np.linspace(-1.0, 1.0, 32), np.zeros(32)], axis=1)
    arrays: dict[str, Any] = {"contexts": contexts.numpy()}
    for name in methods:
        moved = np.full(calls, FAR[name]) * (np.arange(calls) if name == "muninn" else 1.0)
        arrays[f"{name}.positions"] = along + moved[:, None, None] * np.array([0.0, 1.0])
        arrays[f"{name}.deviation"] = moved
    rows = [
        {"name": name, "deviation_p95": FAR[name], "tuned": {} if name in METHODS[2:] else None}
        for name in methods
    ]
    result = {
        "methods": rows, "variant": "diffuser", "tolerance": 0.03, "tolerance_unit": "m, somewhere",
    }  # fmt: skip
    return result, arrays


def drawn(calls: int, methods: tuple[str, ...] = METHODS, **changes: Any) -> Any:
    result, arrays = run(calls, methods)
    task = find_task("discs")
    assert isinstance(task, Drawable)
    return np.reshape(overlays(arrays, task, {**result, **changes}).axes, (3, 3))


def test_full_fewer_steps_the_closest_alternative_and_muninn_stand_in_one_map() -> None:
    axes = drawn(21)
    shown = {line.get_label(): line.get_ydata() for line in axes[1, 1].get_lines()}
    assert list(shown) == [TITLES[name] for name in ("full", "fewsteps", "taylor", "muninn")] + [
        "tolerance"
    ]
    for name, far in (("full", 0.0), ("fewsteps", 0.05), ("taylor", 0.02), ("muninn", 0.1)):
        np.testing.assert_allclose(shown[TITLES[name]], far, atol=1e-12)  # call 10 of 0 to 20
    assert list(shown["tolerance"]) == [0.03, 0.03]


def test_the_last_row_shows_the_worst_calls_by_name() -> None:
    titles = [axis.get_title() for axis in drawn(21)[2]]
    assert titles == [f"call {call}: Muninn off by {call / 100:.2g}" for call in (18, 19, 20)]


def test_a_tolerance_in_another_unit_is_not_drawn_in_metres() -> None:
    labels = [line.get_label() for line in drawn(9, tolerance_unit="rad")[1, 0].get_lines()]
    assert "tolerance" not in labels


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_few_calls_and_no_alternatives_are_drawn_too(calls: int) -> None:
    axes = drawn(calls, ("full", "muninn"))
    assert len(axes[1, 0].get_lines()) == 3
    assert torch.tensor([axis.get_ylim()[0] for axis in axes[1]]).eq(0.0).all()
