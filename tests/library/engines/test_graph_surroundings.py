"""Graphs whatever surrounds a call: inference mode, default device, spare noise, kinds of context,
and a device on which the captured work does not run."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import muninn.engines.graphs
from graph_cases import stand_in_for_cuda
from muninn.engines.choose import runtime_for
from muninn.engines.graphs import RoundGraphRuntime, _ready
from muninn.engines.runtime import Runtime
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Noise, Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Program
from runtime_cases import SHAPE, programs, samplers

CPU = torch.device("cpu")
KINDS = ["static", "adaptive"]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return stand_in_for_cuda(monkeypatch)


def network_planner(
    name: str = "ddim", device: torch.device = CPU, engine: Any = "graph"
) -> Planner:
    """Of a small network, with a context that may hold a goal."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 32), nn.Mish(), nn.Linear(32, 8)).to(device).eval()

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = layers(x.flatten(1)).view_as(x)
        return found if context is None else found + context["goal"][:, None]

    return Planner(denoise, samplers()[name], SHAPE, device=device, engine=engine)


def require_same(planner: Planner, kind: str, call: Any, noise: Noise, context: Any = None) -> None:
    """A call of the graph engine is the eager one, and not full compute."""
    found, record = call
    assert record.fallback == (None,) * len(found)
    program = programs(planner.sampler)[kind]
    expected, reference = Runtime(planner, program)(context, noise=noise)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    assert np.array_equal(record.evaluated, reference.evaluated)


# -- inference mode ----------------------------------------------------------------------------


def plans_in_and_out_of_inference_mode(device: torch.device, kind: str, inside: bool) -> None:
    modes: list[Callable[[], AbstractContextManager[Any]]] = [nullcontext, torch.inference_mode]
    for name in ("ddim", "ddpm"):
        planner = network_planner(name, device)
        runtime = runtime_for(planner, programs(planner.sampler)[kind], on_failure="error")
        found = []
        for call, mode in enumerate((modes[inside], modes[not inside], modes[inside])):
            with mode():
                noise = planner.draw_noise(seeds=range(call, call + 3))
                context = {"goal": torch.full((3, 2), 0.1 * call, device=device)}
                found.append(runtime(context, noise=noise))
                require_same(planner, kind, found[-1], noise, context)
        for trajectory, _ in found:
            trajectory += 1.0  # the caller's own, in whatever mode it was planned
            with torch.inference_mode():
                trajectory += 1.0


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_call_may_be_in_inference_mode_or_not(
    captures: list[Any], kind: str, inside: bool
) -> None:
    plans_in_and_out_of_inference_mode(CPU, kind, inside)


@pytest.mark.gpu
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_inference_mode_in_cuda_graphs(kind: str, inside: bool) -> None:
    plans_in_and_out_of_inference_mode(torch.device("cuda"), kind, inside)


def test_work_is_done_on_the_planners_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []

    def device(which: torch.device) -> AbstractContextManager[None]:
        asked.append(which)
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    second = torch.device("cuda", 1)
    with _ready(torch.device("cuda", 0)):  # it is the current one
        assert not torch.is_grad_enabled()
    with torch.inference_mode(), _ready(second):
        assert not torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()
    with _ready(CPU):
        pass
    assert asked == [second]


# -- the default device ------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["graph", "eager"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["ddim", "ddpm"])
def test_a_default_device_does_not_matter(
    captures: list[Any], name: str, kind: str, engine: str
) -> None:
    """On ``meta`` tensors hold nothing: whatever were made there would be noticed."""
    planner = network_planner(name, engine=engine)
    goals = {"goal": torch.ones(5, 2)}
    with torch.device("meta"):
        assert torch.zeros(1).is_meta
        runtime = runtime_for(planner, programs(planner.sampler)[kind], on_failure="error")
        for first in (0, 10):
            noise = planner.draw_noise(seeds=range(first, first + 5))
            call = runtime(goals, noise=noise)
            assert call[0].device == CPU
            require_same(planner, kind, call, noise, goals)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_may_be_the_default_device(kind: str) -> None:
    planner = network_planner(device=torch.device("cuda"))
    with torch.device("cuda"):
        runtime = runtime_for(planner, programs(planner.sampler)[kind], on_failure="error")
        noise = planner.draw_noise(seeds=range(5))
        require_same(planner, kind, runtime(noise=noise), noise)


# -- noise and contexts ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddim", "ddpm"])
@pytest.mark.parametrize("kind", KINDS)
def test_draws_that_no_step_needs_may_come_and_go(
    captures: list[Any], kind: str, name: str
) -> None:
    planner = network_planner(name)
    runtime = runtime_for(planner, programs(planner.sampler)[kind], on_failure="error")
    unused = [i for i, step in enumerate(planner.sampler.steps) if not step.draws_noise][-1]
    for first, extra in ((0, (unused, 99)), (10, ()), (20, (unused,))):
        noise = planner.draw_noise(seeds=range(first, first + 3))
        steps = {**noise.steps, **{step: torch.ones(3, *SHAPE) for step in extra}}
        noise = Noise(noise.initial, steps)
        require_same(planner, kind, runtime(noise=noise), noise)
    assert len({id(made) for made in captures}) == (1 if kind == "static" else 3)


class Scene(UserDict[str, Any]):
    """A mapping that is no dict, as batches of some libraries are."""


@pytest.mark.parametrize("outer", [Scene, lambda **parts: {"scene": Scene(**parts)}])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_in_any_mapping_reach_the_captured_call(
    captures: list[Any], kind: str, outer: Any
) -> None:
    base = network_planner().denoiser
    kinds: set[type] = set()

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        scene = context.get("scene", context)
        kinds.add(type(scene))
        return base(x, timestep, scene)

    planner = Planner(denoise, samplers()["ddim"], SHAPE, engine="graph")
    runtime = runtime_for(planner, programs(planner.sampler)[kind], on_failure="error")
    contexts = [outer(goal=torch.full((3, 2), goal)) for goal in (0.0, 1.0)]
    noise = planner.draw_noise(seeds=range(3))
    for context in contexts:
        require_same(planner, kind, runtime(context, noise=noise), noise, context)
    context = contexts[0]
    scene = context.get("scene", context)
    scene["goal"] = torch.full((3, 2), 2.0)  # the same mapping, another tensor
    require_same(planner, kind, runtime(context, noise=noise), noise, context)
    assert kinds == {Scene}
    assert len(captures) == (1 if kind == "static" else 3)


def test_a_mapping_that_cannot_be_copied_is_refused(captures: list[Any]) -> None:
    class Sealed(Scene):
        def __init__(self, *, goal: Tensor) -> None:
            super().__init__(goal=goal)

    planner = network_planner()
    runtime = runtime_for(planner, programs(planner.sampler)["static"])
    with pytest.raises(InputError, match=r"type .*Sealed.*pass a dict"):
        runtime(Sealed(goal=torch.zeros(1, 2)))


# -- work that does not run --------------------------------------------------------------------


class Empty:
    """A graph in which nothing was recorded: torch makes one on a stream of another device."""

    replays = 0

    def replay(self) -> None:
        Empty.replays += 1


@pytest.fixture
def empty(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def capture(function: Any, *_: Any) -> Any:
        return Empty(), function()

    monkeypatch.setattr(muninn.engines.graphs, "capture", capture)
    monkeypatch.setattr(Empty, "replays", 0)


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_that_do_nothing_are_planned_in_full(kind: str) -> None:
    """Neither the plan of the first call for ever, nor rounds without end."""
    planner = network_planner()
    program = programs(planner.sampler)[kind]
    runtime = runtime_for(planner, program)
    for seed in (0, 10):
        noise = planner.draw_noise(seeds=[seed, seed + 1])
        found, record = runtime(noise=noise)
        assert record.fallbacks == 2
        assert torch.equal(found, planner.sample(noise=noise))
    assert Empty.replays == 2 * (1 if kind == "static" else len(planner.sampler))
    with pytest.raises(DenoiserError):
        runtime_for(planner, program, on_failure="error")()


@pytest.mark.usefixtures("empty")
def test_rounds_that_do_not_end_say_so() -> None:
    planner = network_planner()
    runtime = runtime_for(planner, programs(planner.sampler)["adaptive"], on_failure="error")
    with pytest.raises(DenoiserError, match=r"rows \[0, 1\] are not at the end after 25 rounds"):
        runtime(noise=planner.draw_noise(2))


def test_as_many_rounds_as_steps_are_enough(captures: list[Any]) -> None:
    planner = network_planner()
    noise = planner.draw_noise(seeds=range(2))
    program = Program(Forecast("sample", 0, False), Everywhere())
    found, record = RoundGraphRuntime(planner, program, on_failure="error")(noise=noise)
    torch.testing.assert_close(found, planner.sample(noise=noise), atol=1e-5, rtol=0.0)
    assert record.evaluations.tolist() == [len(planner.sampler)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_from_the_cpu_that_does_not_block_is_refused_or_followed(kind: str) -> None:
    """Torch may capture it. While the host tensor lives, plans follow its values."""
    device = torch.device("cuda")
    table = torch.zeros(SHAPE)  # not pinned

    def copies(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return 0.1 * x + table.to(x.device, non_blocking=True)

    planner = Planner(copies, samplers()["ddim"], SHAPE, device=device, engine="graph")
    program = programs(planner.sampler)[kind]
    runtime, noise = runtime_for(planner, program), planner.draw_noise(seeds=[0, 1])
    for value in (1.0, 2.0, 3.0):
        table.fill_(value)
        found, record = runtime(noise=noise)
        torch.cuda.synchronize(device)
        if record.fallbacks:
            expected = planner.sample(noise=noise)
        else:
            expected, _ = Runtime(planner, program)(noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_from_the_cpu_that_blocks_is_refused(kind: str) -> None:
    device, table = torch.device("cuda"), torch.ones(SHAPE)

    def copies(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return 0.1 * x + table.to(x.device)

    planner = Planner(copies, samplers()["ddim"], SHAPE, device=device, engine="graph")
    runtime, noise = runtime_for(planner, programs(planner.sampler)[kind]), planner.draw_noise(2)
    found, record = runtime(noise=noise)
    assert record.fallbacks == 2
    assert torch.equal(found, planner.sample(noise=noise))
