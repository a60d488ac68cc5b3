"""Subtler ways to a certificate that is not true, or to lose a true one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from door_cases import DEVICE, FAMILY, STEPS, Small, certify, contexts, planner
from muninn.adapters.call_level import intercept
from muninn.certify.cached import CachedPlanner, cache
from muninn.errors import CalibrationError, CertificateError
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from recording_cases import record_instead_of_cuda

cpu_only = pytest.mark.skipif(DEVICE.type != "cpu", reason="stands in for CUDA graphs on a CPU")


class Gained(nn.Module):
    """A small network with a gain and a method, which remembers the rows of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gain = Small(), 1.0
        self.seen: list[int] = []
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        self.seen.append(len(x))
        rows = context["rows"] if isinstance(context, dict) else context
        rows = torch.zeros(len(x), 4, device=x.device) if rows is None else rows
        return self.scaled(self.inner(x, timestep, rows))

    def scaled(self, found: Tensor) -> Tensor:
        return self.gain * found


# -- graphs that were captured of something else -----------------------------------------------


@cpu_only
@pytest.mark.parametrize("way", ["setting", "method of the class"])
def test_what_was_captured_of_a_changed_network_is_forgotten(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_instead_of_cuda(monkeypatch)
    network = Gained()
    own = planner(network)
    graph = replace(own, engine="graph")
    issued = replace(certify(own), identity=graph.identity())
    fast = cache(graph, issued, on_mismatch="full")
    expected, record = cache(own, certify(own))(contexts(3), noise=own.draw_noise(seeds=range(3)))
    assert record.fallbacks == 0
    if way == "setting":
        network.gain = 3.0
    else:
        monkeypatch.setattr(Gained, "scaled", lambda self, found: 3.0 * found)
    for _ in range(2):  # of a shape that was not captured before
        assert fast(contexts(3), noise=own.draw_noise(seeds=range(3)))[1].fallbacks == 3
    if way == "setting":
        network.gain = 1.0
    else:
        monkeypatch.undo()
        record_instead_of_cuda(monkeypatch)
    trajectory, record = fast(contexts(3), noise=own.draw_noise(seeds=range(3)))
    assert record.fallbacks == 0
    torch.testing.assert_close(trajectory, expected)


# -- one row at a time ---------------------------------------------------------------------------


class Crowded(Gained):
    """Rows influence each other."""

    def scaled(self, found: Tensor) -> Tensor:
        return found - 0.5 * found.mean(dim=0, keepdim=True) * (len(found) > 1)


def test_recorded_episodes_are_run_in_batches_of_the_size_that_was_asked_for() -> None:
    network = Crowded()
    labels = np.repeat(np.arange(72), 4).tolist()
    calls = {"calls": contexts(288), "unit": "episode", "episode_of": labels, "tolerance": 10.0}
    with pytest.raises(CalibrationError, match="influence each other"):
        certify(planner(network), **calls)
    network.seen.clear()
    issued = certify(planner(network), **calls, batch_size=1)
    examined = 16  # calls of the examination are run together, to see what that does
    assert not issued.together and set(network.seen[2 * STEPS + 100 :]) == {1}
    assert max(network.seen) <= examined


def test_rows_of_a_call_without_context_count_too() -> None:
    own = planner(Crowded())
    issued = certify(own, 72, batch_size=1)
    fast = cache(own, issued)
    assert fast(noise=own.draw_noise(1))[1].fallbacks == 0
    with pytest.raises(CertificateError, match="batch: the call has 5 rows"):
        fast(noise=own.draw_noise(5))


def their_loop(network: nn.Module, own: Planner, context: Tensor) -> Tensor:
    """A loop that is not Muninn's."""
    x = own.draw_noise(len(context), generator=torch.Generator(DEVICE).manual_seed(0)).initial
    with torch.no_grad():
        for step in range(len(own.sampler)):
            prediction = network(x, own.timestep(step, len(x)), context)
            x = own.sampler.step(x, prediction, step, None)
    return x


def test_an_intercepted_loop_runs_one_row_at_a_time_too() -> None:
    network = Crowded()
    own = planner(network)
    family = Family.of(Forecast("sample", 1, False), (Everywhere(), Static((0, 1, 2, 5, 11))), "s")
    issued = certify(own, batch_size=1, family=family, tolerance=10.0)
    cached = intercept(network, own, issued)
    for rows, words in ((1, None), (3, "batch: the call has 3 rows")):
        for _ in range(2):
            their_loop(network, own, contexts(rows))
        assert cached.last is not None
        said = cached.last.fallback[0]
        assert said is None if words is None else words in str(said)


# -- resumed -------------------------------------------------------------------------------------


@dataclass
class Scene:
    """Something that no certificate can keep."""

    name: str = "room"


def in_scene(count: int) -> Any:
    return {"rows": contexts(count), "scene": Scene()}


def test_a_network_without_answers_is_compared_by_its_code_when_resumed(tmp_path: Path) -> None:
    own = planner(Gained())
    issued = certify(own, in_scene(72), resume=tmp_path / "j")
    assert issued.questions is None and "Scene" in str(issued.unasked)
    assert "Scene" in issued.unchecked()[0]
    other = Gained()
    other.inner.activation = nn.ReLU()
    with pytest.raises(CalibrationError, match="another calibration"):
        certify(planner(other), in_scene(72), resume=tmp_path / "j")


# -- answers -------------------------------------------------------------------------------------


class Masked(Gained):
    """NaN unless its mask is full."""

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        bad = torch.where(context["mask"].all(dim=1), 0.0, torch.nan)[:, None, None]
        return self.scaled(self.inner(x, timestep, context["mask"][:, :4].float())) + bad


def test_answers_that_are_not_finite_are_no_answers() -> None:
    mask = torch.ones(72, 1 << 20, dtype=torch.bool, device=DEVICE)  # too large to be kept
    issued = certify(planner(Masked()), {"mask": mask}, batch_size=4)
    assert issued.questions is None and "not finite" in str(issued.unasked)


def test_questions_wait_for_the_precision_of_the_certificate() -> None:
    own = planner()
    issued = certify(own)
    other = Small()
    other.repeats = 2
    switch = torch.backends.mkldnn.matmul if DEVICE.type == "cpu" else torch.backends.cuda.matmul
    was = switch.fp32_precision
    switch.fp32_precision = "bf16" if DEVICE.type == "cpu" else "tf32"
    try:
        fast = cache(planner(other), issued)
        with pytest.raises(CertificateError, match="arithmetic"):
            fast(contexts(1), noise=own.draw_noise(1))
    finally:
        switch.fp32_precision = was
    with pytest.raises(CertificateError, match="its answers"):
        fast(contexts(1), noise=own.draw_noise(1))


@pytest.mark.parametrize("other", [np.ones(3), np.zeros(4), np.zeros(3, np.float32)])
def test_arrays_that_all_rows_share_are_compared(other: Any) -> None:
    own = planner(Gained())
    issued = certify(own, {"rows": contexts(72), "basis": np.zeros(3)})
    fast = cache(own, issued)
    assert fast({"rows": contexts(1), "basis": np.zeros(3)})[1].fallbacks == 0
    with pytest.raises(CertificateError, match=r"context\['basis'\]"):
        fast({"rows": contexts(1), "basis": other})


def test_arrays_of_words_are_no_obstacle() -> None:
    own = planner(Gained())
    issued = certify(own, {"rows": contexts(72), "words": np.array(["left", "right"])})
    assert issued.questions is None and "array" in str(issued.unasked)
    assert cache(own, issued)({"rows": contexts(1), "words": np.array(["left", "right"])})


# -- certificates that are not lost ----------------------------------------------------------


class Starved(Gained):
    """Runs out of memory once."""

    def __init__(self) -> None:
        super().__init__()
        self.left = [0]

    def scaled(self, found: Tensor) -> Tensor:
        self.left[0] -= 1
        if self.left[0] == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().scaled(found)


def test_a_network_that_could_not_be_asked_is_asked_again() -> None:
    network = Starved()
    own = planner(network)
    fast = cache(own, certify(own), on_mismatch="full")
    network.load_state_dict(Starved().state_dict())  # the same weights: identified again
    network.left[0] = len(FAMILY.member(2).plan.anchors) + 2  # type: ignore[attr-defined]
    _, record = fast(contexts(1), noise=own.draw_noise(1))
    assert "OutOfMemoryError" in str(record.fallback[0])
    _, record = fast(contexts(1), noise=own.draw_noise(1))
    assert record.fallbacks == 0


def identifications(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    identify = CachedPlanner._identify

    def counted(fast: CachedPlanner, certificate: Any) -> list[str]:
        found = identify(fast, certificate)
        made.append("; ".join(found))
        return found

    monkeypatch.setattr(CachedPlanner, "_identify", counted)
    return made


gain = 5  # shares its name with an attribute of the network


def test_globals_that_share_a_name_with_an_attribute_are_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = planner(Gained())
    issued, made = certify(own), identifications(monkeypatch)
    fast = cache(own, issued)
    for value in range(3):
        monkeypatch.setitem(globals(), "gain", value)
        assert fast(contexts(1), noise=own.draw_noise(1))[1].fallbacks == 0
    assert made == [""]


class Lazy(Gained):
    """Counts, keeps its last answer, and makes a table when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.rows = 0, 0
        self.table: Any = None
        self.last: Tensor | None = None

    def scaled(self, found: Tensor) -> Tensor:
        self.calls, self.rows = self.calls + 1, len(found)
        if self.table is None:
            self.table = np.ones(found[0].numel(), np.float32)
        self.last = found * torch.from_numpy(self.table).to(found).view_as(found[0])
        return self.last


def test_what_a_network_rewrites_by_itself_loses_no_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = planner(Lazy())
    issued, made = certify(own), identifications(monkeypatch)
    network = Lazy()
    fast = cache(planner(network), issued)
    for rows in (1, 3, 1):
        assert fast(contexts(rows), noise=own.draw_noise(rows))[1].fallbacks == 0
    assert made == [""]
    network.load_state_dict(Lazy().state_dict())
    assert fast(contexts(2), noise=own.draw_noise(2))[1].fallbacks == 0
    assert made == ["", ""]
