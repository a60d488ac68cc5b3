"""A resumed calibration is the same calibration: what it reads is compared by content."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from door_cases import (
    DEVICE,
    ENGINES,
    Small,
    certify,
    contexts,
    planner,
)
from muninn.certify.metrics import rms_step
from muninn.errors import CalibrationError

engines = pytest.mark.parametrize("engine", ENGINES)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


SCALE = 1.0


def by_global(full: Tensor, cached: Tensor) -> Tensor:
    return SCALE * rms_step(full, cached)


def by_closure(scale: Any) -> Any:
    def metric(full: Tensor, cached: Tensor) -> Tensor:
        return (scale * rms_step(full, cached)).flatten()

    return metric


def scaled(full: Tensor, cached: Tensor, scale: float) -> Tensor:
    return scale * rms_step(full, cached)


class Scaled:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, full: Tensor, cached: Tensor) -> Tensor:
        return self.scale * rms_step(full, cached)


EDITED: dict[str, Any] = {
    "integer in a closure": by_closure,
    "tensor in a closure": lambda scale: by_closure(torch.tensor(scale, device=DEVICE)),
    "argument of a partial": lambda scale: functools.partial(scaled, scale=scale),
    "state of an object": Scaled,
    "method of an object": lambda scale: Scaled(scale).__call__,
}


@engines
@pytest.mark.parametrize("kind", [*EDITED, "global"])
def test_an_edited_metric_is_not_resumed(
    kind: str, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = planner(engine=engine)

    def metric(scale: int) -> Any:
        if kind == "global":
            monkeypatch.setattr(f"{__name__}.SCALE", float(scale))
            return by_global
        return EDITED[kind](scale)

    first = certify(own, metric=metric(1), resume=tmp_path / "j")
    again = certify(own, metric=metric(1), resume=tmp_path / "j")
    assert again.save(tmp_path / "a").read_bytes() == first.save(tmp_path / "b").read_bytes()
    with pytest.raises(CalibrationError, match="another calibration: other metric"):
        certify(own, metric=metric(1000), resume=tmp_path / "j")


def test_what_cannot_be_compared_is_refused_with_the_way_out(tmp_path: Path) -> None:
    handle = multiprocessing.Lock()

    def metric(full: Tensor, cached: Tensor) -> Tensor:
        assert handle is not None
        return rms_step(full, cached)

    with pytest.raises(CalibrationError, match=r"handle in metric.*muninn_identity.*'v1'"):
        certify(planner(), metric=metric, resume=tmp_path / "j")
    certify(planner(), metric=metric)  # without resume nothing is compared
    metric.muninn_identity = "rms, first version"  # type: ignore[attr-defined]
    certify(planner(), metric=metric, resume=tmp_path / "j")
    metric.muninn_identity = "rms, second version"  # type: ignore[attr-defined]
    with pytest.raises(CalibrationError, match="another calibration: other metric"):
        certify(planner(), metric=metric, resume=tmp_path / "j")


class Named(nn.Module):
    """Reads a setting that stands beside the tensors of a context."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Small()
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = context["gain"] * self.inner(x, timestep, context["rows"])
        return found


def test_contexts_that_are_not_tensors_are_compared_too(tmp_path: Path) -> None:
    own, rows = planner(Named()), contexts(72)
    certify(own, {"rows": rows, "gain": 1.0}, resume=tmp_path / "j")
    with pytest.raises(CalibrationError, match="another calibration: other calls"):
        certify(own, {"rows": rows, "gain": 0.5}, resume=tmp_path / "j")


def test_another_network_with_the_same_weights_is_not_resumed(tmp_path: Path) -> None:
    certify(planner(Small()), resume=tmp_path / "j")
    with pytest.raises(CalibrationError, match=r"another calibration: the planner's network"):
        certify(planner(Small(nn.ReLU())), resume=tmp_path / "j")


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's own."""
    (tmp_path / "own_helpers.py").write_text(
        "SCALE = 1.0\ndef half(x):\n    return 0.5 * x\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_helpers", raising=False)
    import own_helpers  # type: ignore[import-not-found]

    module: ModuleType = own_helpers
    return module


@pytest.mark.parametrize("change", ["a number", "a function", "the file"])
@pytest.mark.parametrize("imported", ["above", "inside"])
def test_modules_that_a_metric_reads_are_compared(
    change: str, imported: str, helpers: Any, tmp_path: Path
) -> None:
    def above(full: Tensor, cached: Tensor) -> Tensor:
        found: Tensor = helpers.SCALE * helpers.half(rms_step(full, cached))
        return found

    def inside(full: Tensor, cached: Tensor) -> Tensor:
        from own_helpers import SCALE, half

        found: Tensor = SCALE * half(rms_step(full, cached))
        return found

    metric = above if imported == "above" else inside
    certify(planner(), metric=metric, resume=tmp_path / "j")
    certify(planner(), metric=metric, resume=tmp_path / "j")
    if change == "a number":
        helpers.SCALE = 1000.0
    elif change == "a function":
        helpers.half = lambda x: 1000.0 * x
    else:
        (tmp_path / "own_helpers.py").write_text("SCALE = 1000.0\n", encoding="utf-8")
    with pytest.raises(CalibrationError, match="another calibration: other metric"):
        certify(planner(), metric=metric, resume=tmp_path / "j")


class Listed(list):  # type: ignore[type-arg]
    """A list that is a metric, with a setting."""

    scale = 1.0

    def __call__(self, full: Tensor, cached: Tensor) -> Tensor:
        return self.scale * rms_step(full, cached)


def test_attributes_of_a_container_are_compared(tmp_path: Path) -> None:
    metric = Listed([1, 2])
    certify(planner(), metric=metric, resume=tmp_path / "j")
    metric.scale = 1000.0
    with pytest.raises(CalibrationError, match="another calibration: other metric"):
        certify(planner(), metric=metric, resume=tmp_path / "j")


def test_a_metric_that_logs_can_be_resumed(tmp_path: Path) -> None:
    logger = logging.getLogger("somebody")

    def metric(full: Tensor, cached: Tensor) -> Tensor:
        logger.debug("measured")
        return rms_step(full, cached)

    first = certify(planner(), metric=metric, resume=tmp_path / "j")
    again = certify(planner(), metric=metric, resume=tmp_path / "j")
    assert again.member == first.member


class Lengths:
    """A metric with a property that Python computes once, under a lock of its own."""

    @functools.cached_property
    def scale(self) -> float:
        return 1.0

    def __call__(self, full: Tensor, cached: Tensor) -> Tensor:
        return rms_step(full, cached) * self.scale


def test_a_metric_with_a_cached_property_can_be_resumed(tmp_path: Path) -> None:
    first = certify(planner(), metric=Lengths(), resume=tmp_path / "j")
    again = certify(planner(), metric=Lengths(), resume=tmp_path / "j")
    assert again.member == first.member
