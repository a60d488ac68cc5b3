"""Capturing one graph: with CUDA stood in for on the CPU, and for real on a CUDA device."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import muninn.engines.capture
from muninn.engines.capture import WARM_UP, _no_cached_casts, capture
from muninn.engines.choose import runtime_for
from muninn.engines.graphs import Turns
from muninn.engines.runtime import Runtime
from muninn.model.planner import Planner
from runtime_cases import SHAPE, programs, samplers

CPU = torch.device("cpu")


class Stream:
    device = CPU

    def __init__(self, device: torch.device | None = None) -> None:
        self.device_index = 0 if device is None else device.index

    def wait_stream(self, other: Stream) -> None:
        assert other.device_index == self.device_index


class Device:
    """Stands for torch.cuda: notes what is asked of it, and ends captures well or badly."""

    def __init__(self) -> None:
        self.capturing = False
        self.broken = False  # by CUDA: the capture cannot be ended as usual
        self.full = False  # no capture can begin
        self.serving: Any = None  # the pool that the allocator serves
        self.released: list[Any] = []
        self.streams: list[Any] = []  # on which captures succeeded
        self.outside = Stream()
        self.stream = self.outside  # that the thread is on

    @property
    def recorded(self) -> int:
        return len(self.streams)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def graph(self, graph: Any, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        if self.full:
            raise torch.OutOfMemoryError("no room for a graph")
        self.capturing, self.serving = True, pool or "own"
        try:
            yield
        finally:
            self.capturing = False
            if self.broken:  # the thread is left on the stream
                self.broken = False
                raise RuntimeError("operation failed due to a previous error during capture")
            self.serving, self.stream = None, before
            self.streams.append(stream)

    @contextmanager
    def at(self, device: torch.device) -> Iterator[None]:
        with self.on(Stream(device)) if device.type == "cuda" else nullcontext():
            yield

    def end(self, index: int, pool: Any) -> None:
        if self.serving != pool:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.serving = None

    def release(self, index: int, pool: Any) -> None:
        self.released.append(pool)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    fake = Device()
    for name, value in {
        "device": fake.at,
        "Stream": Stream,
        "stream": fake.on,
        "current_stream": lambda _: fake.stream,
        "set_stream": lambda stream: setattr(fake, "stream", stream),
        "graph_pool_handle": lambda: "new",
        "CUDAGraph": object,
        "graph": fake.graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", fake.release, raising=False)
    monkeypatch.setattr(muninn.engines.capture, "forget_workspaces", lambda: None)
    fresh = functools.cache(muninn.engines.capture._stream_on.__wrapped__)
    monkeypatch.setattr(muninn.engines.capture, "_stream_on", fresh)
    return fake


ERRORS = [ValueError, torch.OutOfMemoryError, KeyboardInterrupt]


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("error", ERRORS)
def test_what_is_raised_while_recording_is_passed_on(
    device: Device, error: type[BaseException], broken: bool
) -> None:
    ran = 0

    def fails() -> None:
        nonlocal ran
        ran += 1
        if device.capturing:
            device.broken = broken
            raise error("while recording")

    with pytest.raises(error, match="while recording"):
        capture(fails, CPU, "shared")
    assert ran == WARM_UP + 1
    assert device.serving is None
    assert device.released == (["shared"] if broken else [])  # else the graph releases its own
    assert device.recorded == (1 if broken else 2)  # the last one heals random generators
    assert device.stream is device.outside
    capture(lambda: None, CPU, "shared")


def test_a_thread_comes_back_from_the_capture_stream_even_if_it_cannot_heal(device: Device) -> None:
    def fills() -> None:
        device.full = device.broken = device.capturing

    with pytest.raises(RuntimeError, match="previous error"):
        capture(fills, CPU)
    assert device.full
    assert device.stream is device.outside


def test_work_is_captured_on_a_stream_of_its_own_device(device: Device) -> None:
    """Torch's default is one stream for all devices; the graphs of a second one would be empty."""
    warmed: list[int] = []

    def fails() -> None:
        warmed.append(device.stream.device_index)
        if device.capturing:
            raise ValueError("while recording")

    for index in (0, 1, 1, 0):
        capture(lambda: warmed.append(device.stream.device_index), torch.device("cuda", index))
    with pytest.raises(ValueError, match="recording"):
        capture(fails, torch.device("cuda", 1))
    assert [stream.device_index for stream in device.streams] == [0, 1, 1, 0, 1, 1]
    assert warmed == [i for i in (0, 1, 1, 0, 1) for _ in range(WARM_UP + 1)]
    assert len({id(stream) for stream in device.streams}) == 2  # one for each, made once
    assert device.outside not in device.streams


def test_a_capture_that_cannot_be_ended_says_so(device: Device) -> None:
    def breaks() -> None:
        device.broken = device.capturing

    with pytest.raises(RuntimeError, match="previous error"):
        capture(breaks, CPU, "shared")
    assert device.serving is None
    assert device.released == ["shared"]


def test_a_graph_holds_the_casts_of_autocast(device: Device) -> None:
    """Copies of weights in the cache are freed by the caller; a graph must not read them."""
    layer, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    scale = 1.0
    seen: list[float] = []

    def doubled() -> None:
        nonlocal scale
        scale *= 2.0
        with torch.no_grad():
            layer.weight.fill_(scale)
            seen.append(float(layer(x)[0, 0]))

    with torch.autocast("cpu", torch.bfloat16):
        doubled()
        doubled()
        assert seen == [4.0, 4.0]  # the premise: the second call reads the copy of the first
        capture(doubled, CPU)
        assert seen[2:] == [2.0 ** (run + 4) for run in range(WARM_UP + 1)]
        assert torch.is_autocast_cache_enabled()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            capture(doubled, CPU)
            assert not torch.is_autocast_cache_enabled()


def test_the_autocast_cache_is_emptied_around_a_capture() -> None:
    """Also of what an autocast inside the network has cached against our will."""
    layer, x = nn.Linear(2, 2, bias=False), torch.ones(1, 2)
    inside = torch.autocast("cpu", torch.bfloat16)  # remembers that the cache was on

    def call(value: float) -> float:
        with torch.no_grad(), inside:
            layer.weight.fill_(value)
            return float(layer(x)[0, 0])

    with torch.autocast("cpu", torch.bfloat16):
        with _no_cached_casts():
            assert call(1.0) == 2.0
        assert call(2.0) == 4.0


# -- turns -------------------------------------------------------------------------------------


class Event:
    """Fails where it is told to."""

    fail = ""

    def record(self, stream: Any) -> None:
        if Event.fail == "record":
            raise RuntimeError("record")


class Waiting(Stream):
    def wait_event(self, event: Event) -> None:
        if Event.fail == "wait":
            raise RuntimeError("wait")


@pytest.mark.parametrize("fail", ["wait", "record"])
def test_a_failing_event_does_not_keep_others_waiting(
    monkeypatch: pytest.MonkeyPatch, fail: str
) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Waiting())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "fail", "")
    turns = Turns(torch.device("cuda"))
    with turns.take():
        pass
    monkeypatch.setattr(Event, "fail", fail)
    with pytest.raises(RuntimeError, match=fail), turns.take():
        pass
    assert turns._lock.acquire(blocking=False)
    turns._lock.release()
    monkeypatch.setattr(Event, "fail", "")
    with turns.take():
        assert not turns._lock.acquire(blocking=False)


# -- on a CUDA device --------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_a_planner_on_every_device(kind: str, current: int) -> None:
    """Whichever captures first, and whichever device is the current one."""
    for index in (0, 1, 0):
        here = torch.device("cuda", index)
        torch.manual_seed(index)
        layers = nn.Sequential(nn.Linear(8, 64), nn.Mish(), nn.Linear(64, 8)).to(here)
        planner = Planner(
            lambda x, timestep, context, layers=layers: layers(x.flatten(1)).view_as(x),
            samplers()["ddim"],
            SHAPE,
            device=here,
            engine="graph",
        )
        program = programs(planner.sampler)[kind]
        runtime = runtime_for(planner, program)
        with torch.cuda.device(current):
            for seed in (0, 10):
                noise = planner.draw_noise(seeds=range(seed, seed + 3))
                found, record = runtime(noise=noise)
                assert record.fallback == (None,) * 3
                expected, _ = Runtime(planner, program)(noise=noise)
                torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["static", "adaptive"])
@pytest.mark.parametrize("error", ERRORS)
def test_an_exception_while_recording_leaves_a_working_runtime(
    error: type[BaseException], kind: str
) -> None:
    here = torch.device("cuda")
    failing = True

    def fails(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        if failing and torch.cuda.is_current_stream_capturing():
            raise error("while recording")
        return 0.1 * x

    planner = Planner(fails, samplers()["ddim"], SHAPE, device=here, engine="graph")
    program = programs(planner.sampler)[kind]
    runtime, stream = runtime_for(planner, program), torch.cuda.current_stream(here)
    if error is torch.OutOfMemoryError:  # full compute needs less, and plans this call
        noise = planner.draw_noise(2)
        found, record = runtime(noise=noise)
        assert record.fallbacks == 2
        assert torch.equal(found, planner.sample(noise=noise))
    else:
        with pytest.raises(error, match="while recording"):
            runtime(noise=planner.draw_noise(2))
    assert torch.cuda.current_stream(here) == stream
    assert not torch.equal(torch.randn(8, device=here), torch.randn(8, device=here))
    failing = False
    for rows in (3, 2):  # another shape, then the one that failed
        noise = planner.draw_noise(rows)
        found, record = runtime(noise=noise)
        assert record.fallbacks == 0
        torch.testing.assert_close(
            found, Runtime(planner, program)(noise=noise)[0], atol=1e-5, rtol=0.0
        )


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_autocast_may_be_left_between_calls(kind: str) -> None:
    """Leaving autocast frees its copies of weights that require gradients; others take the room."""
    here = torch.device("cuda")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 256), nn.Mish(), nn.Linear(256, 8)).to(here)
    assert all(weight.requires_grad for weight in layers.parameters())

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = layers(x.flatten(1)).view_as(x)
        return found

    planner = Planner(denoise, samplers()["ddim"], SHAPE, device=here)
    graph = Planner(denoise, samplers()["ddim"], SHAPE, device=here, engine="graph")
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(seeds=[0, 1])
    runtime = runtime_for(graph, program, on_failure="error")
    others = []
    for _ in range(2):
        with torch.autocast("cuda", torch.float16):
            # First: copies are then cached on this stream, and their room is given to others on it.
            expected, _ = Runtime(planner, program)(noise=noise)
            found, record = runtime(noise=noise)
        assert record.fallbacks == 0
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0.0)  # a few halves of 0.1
        others += [torch.full((256, 8), 1e4, device=here, dtype=torch.half) for _ in range(64)]
