"""The graph engine: what it does around a capture is tested here, captures on a CUDA device."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import muninn
import muninn.engines.graphs
import muninn.engines.shapes
from analytic import mixture_denoiser, mixture_planner
from graph_cases import stand_in_for_cuda
from muninn.engines.choose import runtime_for
from muninn.engines.graphs import GraphRuntime, RoundGraphRuntime
from muninn.engines.runtime import Runtime
from muninn.engines.shapes import MOST_SHAPES, TRIES
from muninn.errors import CertificateError, DenoiserError, InputError
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Program, Static
from runtime_cases import SHAPE, contexts, gate, pin_start, programs, samplers

FIXED = [name for name in programs(samplers()["ddim"]) if name.startswith("static")]


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return stand_in_for_cuda(monkeypatch)


def planner_for(name: str = "ddim") -> Planner:
    return replace(mixture_planner(samplers()[name]), condition=pin_start)


def planner_on(device: torch.device, name: str = "ddim", **fields: Any) -> Planner:
    sampler = samplers()[name]
    denoiser = mixture_denoiser(sampler, SHAPE).to(device)
    return Planner(denoiser, sampler, SHAPE, condition=pin_start, device=device, **fields)


@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("name", ["ddim", "ddpm", "euler"])
def test_a_replayed_call_is_the_eager_call(captures: list[Any], name: str, kind: str) -> None:
    planner = planner_for(name)
    program = programs(planner.sampler)[kind]
    graph, eager = GraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):  # the second call replays what the first captured
        noise = planner.draw_noise(seeds=range(first, first + 3))
        context = contexts(3) + 0.1 * first  # other values: they must reach the captured call
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
        assert torch.equal(found, expected)
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert np.array_equal(record.charged, reference.charged)  # type: ignore[arg-type]
    assert len(captures) == 1


def test_shapes_are_captured_once_each_and_the_oldest_forgotten(captures: list[Any]) -> None:
    planner = planner_for()
    runtime = GraphRuntime(planner, Program(Forecast("sample", 0, False), Everywhere()))
    for rows in (1, 2, 1, 2, 1):
        runtime(contexts(rows), noise=planner.draw_noise(rows))
    assert [len(made.result.after) for made in captures] == [1, 2]
    for rows in range(3, 3 + MOST_SHAPES):
        runtime(contexts(rows), noise=planner.draw_noise(rows))
    runtime(contexts(1), noise=planner.draw_noise(1))
    assert [len(made.result.after) for made in captures].count(1) == 2


@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_what_cannot_be_captured_is_planned_in_full(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The eager program is not the one that was certified: full compute is."""
    asked = 0

    def refuse(*_: Any) -> Any:
        nonlocal asked
        asked += 1
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(muninn.engines.graphs, "capture", refuse)
    planner = replace(planner_for(), engine="graph")
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(2)
    runtime = runtime_for(planner, program)
    for call in range(TRIES + 2):
        found, record = runtime(contexts(2), noise=noise)
        assert torch.equal(found, planner.sample(contexts(2), noise=noise))
        assert record.fallbacks == 2
        assert "engine='eager'" in str(record.fallback[0])
        assert asked == min(call + 1, TRIES)  # given up, for this shape
    runtime(contexts(3), noise=planner.draw_noise(3))
    assert asked == TRIES + 1
    with pytest.raises(DenoiserError, match="not permitted"):
        runtime_for(planner, program, on_failure="error")(contexts(2), noise=noise)


def test_a_planner_names_its_engine(captures: list[Any]) -> None:
    eager, graph = planner_for(), replace(planner_for(), engine="graph")
    static, adaptive = (programs(eager.sampler)[kind] for kind in ("static", "adaptive"))
    assert type(runtime_for(eager, static)) is Runtime
    assert type(runtime_for(graph, static)) is GraphRuntime
    assert type(runtime_for(graph, adaptive)) is RoundGraphRuntime
    assert "engine" not in eager.identity()
    assert graph.identity() == {**eager.identity(), "engine": "graph"}
    with pytest.raises(InputError, match="engine is one of"):
        replace(eager, engine="magic")  # type: ignore[arg-type]


def test_a_certificate_holds_for_its_engine(captures: list[Any]) -> None:
    graph = replace(planner_for(), engine="graph")
    family = Family.of(Forecast("sample", 1), (Everywhere(), Static((0, 1, 2, 5, 9, 14, 19, 24))), "x")
    certificate = muninn.calibrate(
        graph, contexts(90), tolerance=0.5, family=family, progress=False
    )
    assert captures  # certified on what will be deployed
    found, _ = muninn.cache(graph, certificate)(contexts(2))
    assert found.shape == (2, *graph.shape)
    with pytest.raises(CertificateError, match="engine"):
        muninn.cache(planner_for(), certificate)


def test_what_is_not_a_tensor_is_part_of_what_was_captured(captures: list[Any]) -> None:
    planner = planner_for()

    def shifted(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        shift = float(context["table"][-1]) + context["gain"] + context["module"].shift
        return 0.1 * x + shift + 0.0 * context["tensor"].mean()

    class Module:
        def __init__(self, shift: float) -> None:
            self.shift = shift

    planner = Planner(shifted, planner.sampler, planner.shape)
    runtime = GraphRuntime(planner, programs(planner.sampler)["static"])
    table, other = np.zeros(5000), np.zeros(5000)
    other[-1] = 1.0
    noise, base = planner.draw_noise(seeds=[1]), Module(0.0)
    first = {"table": table, "gain": 0.0, "module": base, "tensor": torch.zeros(1, 1)}
    for change in ({}, {"table": other}, {"gain": 1.0}, {"module": Module(1.0)}):
        context = {**first, **change}
        found, _ = runtime(context, noise=noise)
        expected, _ = Runtime(planner, programs(planner.sampler)["static"])(context, noise=noise)
        assert torch.equal(found, expected)
    assert len(captures) == 4
    runtime({**first, "table": np.zeros(5000)}, noise=noise)
    assert len(captures) == 4  # equal content is not captured again


def test_results_are_the_callers_own(captures: list[Any]) -> None:
    planner = planner_for()
    runtime = GraphRuntime(planner, programs(planner.sampler)["static"])
    noise = planner.draw_noise(seeds=[1])
    first, _ = runtime(contexts(1), noise=noise)
    kept = first.clone()
    first.fill_(7.0)
    again, _ = runtime(contexts(1), noise=noise)
    assert torch.equal(again, kept)


@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddim", "ddpm", "stochastic ddim", "euler"])
def test_replayed_rounds_are_the_eager_call(captures: list[Any], name: str, kind: str) -> None:
    planner = planner_for(name)
    program = programs(planner.sampler)[kind]
    graph, eager = RoundGraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 6))
        context = contexts(6) + 0.1 * first
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert record.estimate == pytest.approx(reference.estimate, rel=1e-3, abs=1e-6)
    assert len(captures) == 5  # rounds of 1, 2, 3, 4 and 6 rows


def test_bad_input_is_refused(captures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_for()
    with pytest.raises(InputError, match="decides on the way"):
        GraphRuntime(planner, gate(planner.sampler))
    monkeypatch.undo()
    for engine in (GraphRuntime, RoundGraphRuntime):
        with pytest.raises(InputError, match="CUDA"):
            engine(planner, programs(planner.sampler)["static"])


@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_the_compiled_network_is_the_eager_one(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    compiled: list[Any] = []

    def compile(denoiser: Any) -> Any:
        compiled.append(denoiser)
        return lambda *inputs: denoiser(*inputs)

    monkeypatch.setattr(torch, "compile", compile)
    planner = planner_for()
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(seeds=[1, 2])
    runtime = runtime_for(replace(planner, engine="compile"), program)
    found, record = runtime(contexts(2), noise=noise)
    expected, reference = Runtime(planner, program)(contexts(2), noise=noise)
    assert torch.equal(found, expected)
    assert np.array_equal(record.evaluated, reference.evaluated)
    assert compiled == [planner.denoiser]  # full compute stays the eager one


def test_what_cannot_be_compiled_is_planned_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def compile(denoiser: Any) -> Any:
        def refuse(*_: Any) -> Any:
            raise TorchDynamoException("no compiler was found\nand much more")

        return refuse

    monkeypatch.setattr(torch, "compile", compile)
    planner = replace(planner_for(), engine="compile")
    program, noise = programs(planner.sampler)["static"], planner.draw_noise(2)
    found, record = runtime_for(planner, program)(contexts(2), noise=noise)
    assert torch.equal(found, planner.sample(contexts(2), noise=noise))
    assert record.fallbacks == 2
    assert "no compiler was found); use engine='eager'" in str(record.fallback[0])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_inductor_is_the_eager_call(kind: str) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 16), nn.Mish(), nn.Linear(16, 2)).eval()
    planner = Planner(lambda x, timestep, context: layers(x), samplers()["ddim"], SHAPE)
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(seeds=[1, 2])
    found, record = runtime_for(replace(planner, engine="compile"), program)(noise=noise)
    assert record.fallback == (None, None)
    expected, reference = Runtime(planner, program)(noise=noise)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert np.array_equal(record.evaluated, reference.evaluated)


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 64), nn.Mish(), nn.Linear(64, 8)).eval()


def network_planner(layers: nn.Sequential, device: torch.device) -> Planner:
    """Follows the network's dtype, as code that casts its inputs does."""

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = layers(x.flatten(1).to(layers[0].weight.dtype)).view_as(x)
        return found.to(x.dtype)

    return Planner(denoise, samplers()["ddim"], SHAPE, device=device, engine="graph")


def there_and_back(layers: nn.Sequential) -> None:
    """Weights leave the device, and come back to another place."""
    here = layers[0].weight.device
    layers.double().to("cpu").to(here).float()


def to_half(layers: nn.Sequential) -> None:
    layers.half()


def assign_others(layers: nn.Sequential) -> None:
    others = network(1).to(layers[0].weight.device)
    layers.load_state_dict(others.state_dict(), assign=True)


def set_data(layers: nn.Sequential) -> None:
    layers[2].weight.data = torch.zeros_like(layers[2].weight)


MOVES = [there_and_back, to_half, assign_others, set_data]


def follows_its_network(device: torch.device, kind: str, move: Callable[[Any], None]) -> None:
    """Calls before and after a move of the weights, of two shapes, equal the eager ones."""
    layers = network(0).to(device)
    planner = network_planner(layers, device)
    program = programs(planner.sampler)[kind]
    runtime = runtime_for(planner, program, on_failure="error")
    noise = [planner.draw_noise(seeds=range(rows)) for rows in (1, 2)]
    before = [runtime(noise=own)[0] for own in noise]
    move(layers)
    for _ in range(2):
        # Would take the place of what was freed.
        others = [torch.full((64, 8), 1e4, device=device) for _ in range(64)]
        for own, first in zip(noise, before, strict=True):
            found, record = runtime(noise=own)
            assert record.fallbacks == 0
            expected, _ = Runtime(planner, program)(noise=own)
            rounding = 1e-3 if move is to_half else 1e-5  # trajectories of size 0.2
            torch.testing.assert_close(found, expected, atol=rounding, rtol=0.0)
            changed = float((found - first).abs().max())
            assert changed > 0.05 or move in (there_and_back, to_half)
        del others


@pytest.mark.parametrize("kind", ["static", "adaptive"])
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_weights_that_moved_are_captured_anew(
    captures: list[Any], kind: str, move: Callable[[Any], None]
) -> None:
    follows_its_network(torch.device("cpu"), kind, move)
    each = 3 if kind == "adaptive" else 2  # shapes, or rounds of one row, and of one and two
    assert len(captures) == 2 * each


def test_what_was_captured_with_moved_weights_is_dropped(captures: list[Any]) -> None:
    layers = network(0)
    planner = network_planner(layers, torch.device("cpu"))
    runtime = GraphRuntime(planner, programs(planner.sampler)["static"])
    graphs = []
    for rows in (1, 2, 3):
        runtime(noise=planner.draw_noise(rows))
        graphs.append(weakref.ref(captures.pop()))
    layers.double()
    runtime(noise=planner.draw_noise(2))
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 3
    with torch.no_grad():
        layers[0].weight.zero_()  # in place: the graph reads the new values
    runtime(noise=planner.draw_noise(2))
    assert len(captures) == 1


def test_a_failed_capture_is_tried_again_with_other_weights(
    captures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    works, pools = muninn.engines.graphs.capture, []
    handles = iter(range(10))
    monkeypatch.setattr(
        muninn.engines.shapes, "shared_pool", lambda device: f"pool {next(handles)}"
    )

    def refuse(function: Any, device: Any, pool: Any = None) -> Any:
        pools.append(pool)
        raise RuntimeError("on another device")

    def note(function: Any, device: Any, pool: Any = None) -> Any:
        pools.append(pool)
        return works(function, device, pool)

    monkeypatch.setattr(muninn.engines.graphs, "capture", refuse)
    layers = network(0)
    planner = network_planner(layers, torch.device("cpu"))
    runtime = GraphRuntime(planner, programs(planner.sampler)["static"])
    for _ in range(TRIES + 1):
        assert runtime(noise=planner.draw_noise(1))[1].fallbacks == 1
    monkeypatch.setattr(muninn.engines.graphs, "capture", note)
    layers.double()
    for rows in (1, 2, 1):
        assert runtime(noise=planner.draw_noise(rows))[1].fallbacks == 0
    monkeypatch.setattr(muninn.engines.graphs, "capture", refuse)
    assert runtime(noise=planner.draw_noise(3))[1].fallbacks == 3
    monkeypatch.setattr(muninn.engines.graphs, "capture", note)
    assert runtime(noise=planner.draw_noise(4))[1].fallbacks == 0
    # One in which a capture failed is left alone.
    failed, good = [f"pool {number}" for number in range(TRIES)], f"pool {TRIES}"
    assert pools == [*failed, good, good, good, f"pool {TRIES + 1}"]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["static", "adaptive"])
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.__name__)
def test_a_graph_follows_its_network(kind: str, move: Callable[[Any], None]) -> None:
    follows_its_network(torch.device("cuda"), kind, move)


@pytest.mark.gpu
def test_a_network_on_another_device_fails_as_it_does_eagerly() -> None:
    there = torch.device("cuda")
    layers = network(0).to(there)
    planner = network_planner(layers, there)
    runtime = runtime_for(planner, programs(planner.sampler)["static"])
    noise = planner.draw_noise(seeds=[0, 1])
    before, _ = runtime(noise=noise)
    layers.to("cpu")
    with pytest.raises(RuntimeError, match="device"):
        runtime(noise=noise)
    layers.to(there)
    after, record = runtime(noise=noise)
    assert record.fallbacks == 0
    assert torch.equal(after, before)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compile"])
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_engines_on_a_network(engine: Any, kind: str) -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 16), nn.Mish(), nn.Linear(16, 2)).eval().to(device)
    eager = Planner(lambda x, timestep, _: layers(x), samplers()["ddim"], SHAPE, device=device)
    program = programs(eager.sampler)[kind]
    runtime = runtime_for(replace(eager, engine=engine), program)
    for rows in (1, 3, 1):
        noise = eager.draw_noise(seeds=range(rows))
        found, record = runtime(noise=noise)
        assert record.fallback == (None,) * rows
        expected, _ = Runtime(eager, program)(noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)


@pytest.mark.gpu
def test_a_failing_capture_leaves_a_working_planner() -> None:
    """Reading on the host is forbidden while capturing; full compute is what remains."""
    device = torch.device("cuda")

    def reads(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return 0.1 * x * float(x.new_ones(1).item())

    planner = Planner(reads, samplers()["ddim"], SHAPE, device=device, engine="graph")
    stream = torch.cuda.current_stream(device)
    noise = planner.draw_noise(seeds=[0, 1])
    found, record = runtime_for(planner, programs(planner.sampler)["static"])(noise=noise)
    assert record.fallbacks == 2
    assert torch.equal(found, planner.sample(noise=noise))
    assert torch.cuda.current_stream(device) == stream  # not the one that others capture on
    after = planner_on(device, engine="graph")  # the device is not left in a bad state
    _, record = runtime_for(after, programs(after.sampler)["static"])(contexts(2).to(device))
    assert record.fallbacks == 0


@pytest.mark.gpu
def test_two_threads_share_a_captured_call() -> None:
    device = torch.device("cuda")
    planner = planner_on(device, engine="graph")
    runtime = runtime_for(planner, programs(planner.sampler)["static"])
    own = contexts(8).to(device)

    def plan(seed: int) -> Tensor:
        noise = planner.draw_noise(seeds=[seed])
        with torch.cuda.stream(torch.cuda.Stream(device)):
            found, _ = runtime(own[seed : seed + 1], noise=noise)
            return found.cpu()

    alone = [plan(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(plan, [seed for _ in range(10) for seed in range(8)]))
    for place, found in enumerate(together):
        assert torch.equal(found, alone[place % 8])


ANOTHER_PROCESS = """
import hashlib
import torch
from muninn.engines.choose import runtime_for
from runtime_cases import contexts, programs
from test_graphs import planner_on

device = torch.device("cuda")
planner = planner_on(device, engine="graph")
for kind in ("static", "adaptive"):
    runtime = runtime_for(planner, programs(planner.sampler)[kind], on_failure="error")
    for call in range(50):
        found, _ = runtime(contexts(3).to(device), noise=planner.draw_noise(seeds=[7, 8, 9]))
    print(hashlib.sha256(found.cpu().numpy().tobytes()).hexdigest())
"""


@pytest.mark.gpu
def test_two_processes_plan_the_same() -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "cases")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*folders, *sys.path])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ANOTHER_PROCESS], env=variables, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=240)[0].split() for process in processes]
    assert printed[0] == printed[1]
    assert len(printed[0]) == 2


@pytest.mark.gpu
def test_planners_on_two_devices() -> None:
    there, here = torch.device("cuda"), torch.device("cpu")
    on_cpu = planner_on(here)
    program = programs(on_cpu.sampler)["static"]
    noise = on_cpu.draw_noise(seeds=[0, 1])
    before, _ = runtime_for(on_cpu, program)(contexts(2), noise=noise)
    on_gpu = planner_on(there, engine="graph")
    captured, record = runtime_for(on_gpu, program)(
        contexts(2).to(there), noise=on_gpu.draw_noise(seeds=[0, 1])
    )
    assert record.fallbacks == 0
    torch.testing.assert_close(captured.cpu(), before, atol=1e-4, rtol=0.0)
    with pytest.raises(InputError, match=r"cuda|cpu"):
        runtime_for(on_gpu, program)(contexts(2), noise=noise)


@pytest.mark.gpu
@pytest.mark.parametrize("parameterisation", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_parameterisations_in_cuda_graphs(parameterisation: Any, kind: str) -> None:
    device = torch.device("cuda")
    sampler = samplers(parameterisation)["clipped ddim"]
    denoiser = mixture_denoiser(sampler, SHAPE).to(device)
    planner = Planner(denoiser, sampler, SHAPE, condition=pin_start, device=device)
    program = programs(sampler)[kind]
    graphed = runtime_for(replace(planner, engine="graph"), program, on_failure="error")
    noise, context = planner.draw_noise(seeds=range(5)), contexts(5).to(device)
    found, record = graphed(context, noise=noise)
    expected, reference = Runtime(planner, program)(context, noise=noise)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    assert np.array_equal(record.evaluated, reference.evaluated)


def wide_planner(device: torch.device, seed: int) -> Planner:
    """Of a network whose products need scratch memory."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(8, 512), nn.Mish(), nn.Linear(512, 512), nn.Linear(512, 8))
    layers = layers.to(device).eval().requires_grad_(False)

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        found: Tensor = layers(x.flatten(1)).view_as(x)
        return found

    return Planner(denoise, samplers()["ddim"], SHAPE, device=device, engine="graph")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_a_graph_is_freed_with_its_runtime(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(muninn.engines.graphs, "_sizes", lambda count: [1, count][count < 2 :])
    planner = wide_planner(device, 0)
    program = programs(planner.sampler)[kind]
    held = []
    for _ in range(3):
        runtime = runtime_for(planner, program, on_failure="error")
        for rows in range(1, MOST_SHAPES + 4):
            runtime(noise=planner.draw_noise(rows))
        del runtime
        gc.collect()
        torch.cuda.empty_cache()
        held.append((torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)))
    assert held[-1] == held[0]
    assert held[0][0] < 2**22  # weights, and no scratch memory of 32 MB


@pytest.mark.gpu
def test_two_planners_run_at_the_same_time() -> None:
    """Captured in one thread, replayed in two on streams of their own: nothing is shared."""
    device = torch.device("cuda")
    planners = [wide_planner(device, seed) for seed in (0, 1)]
    runtimes = [
        runtime_for(planner, programs(planner.sampler)["static"], on_failure="error")
        for planner in planners
    ]
    noise = [planner.draw_noise(seeds=range(64)) for planner in planners]
    alone = [run(noise=own)[0] for run, own in zip(runtimes, noise, strict=True)]

    def many(which: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            found = [runtimes[which](noise=noise[which])[0] for _ in range(200)]
            torch.cuda.current_stream(device).synchronize()
            return all(torch.equal(plan, alone[which]) for plan in found)

    torch.cuda.synchronize(device)
    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(many, (0, 1)))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FIXED)
@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "ddpm", "euler"])
def test_a_cuda_graph_is_the_eager_call(name: str, kind: str) -> None:
    device = torch.device("cuda")
    planner = planner_on(device, name)
    program = programs(planner.sampler)[kind]
    graph, eager = GraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 3))
        context = (contexts(3) + 0.1 * first).to(device)
        found, record = graph(context, noise=noise)
        assert record.fallback == (None,) * 3  # captured, not full compute
        expected, reference = eager(context, noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
        assert np.array_equal(record.evaluated, reference.evaluated)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "ddpm", "euler"])
def test_rounds_in_cuda_graphs_are_the_eager_call(name: str, kind: str) -> None:
    device = torch.device("cuda")
    planner = planner_on(device, name)
    program = programs(planner.sampler)[kind]
    graph, eager = RoundGraphRuntime(planner, program), Runtime(planner, program)
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 6))
        context = (contexts(6) + 0.1 * first).to(device)
        found, record = graph(context, noise=noise)
        assert record.fallback == (None,) * 6
        expected, reference = eager(context, noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
        assert np.array_equal(record.evaluated, reference.evaluated)
