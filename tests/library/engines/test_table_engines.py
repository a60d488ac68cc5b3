"""Tables when a network fails, in graphs, and compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analytic import mixture_denoiser, mixture_planner
from graph_cases import stand_in_for_cuda
from muninn.engines.choose import runtime_for
from muninn.engines.graphs import TableGraphRuntime
from muninn.engines.tables import TableRuntime
from muninn.errors import DenoiserError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.programs.caches import forecast
from muninn.programs.methods import dpm_solver, few_steps
from muninn.programs.spacing import State, sampler_states
from muninn.programs.table import Table
from runtime_cases import ANCHORS, SHAPE, STEPS, contexts, pin_start, samplers

BAD, SEEDS, AT = 2, range(5), 4  # the row that fails, of five, and the step
Poison = Callable[[Tensor], Any]


def states_of(sampler: Sampler) -> list[State]:
    own = sampler_states(sampler)
    return [own[anchor] for anchor in ANCHORS]


def tables(sampler: Sampler) -> dict[str, Table]:
    states = states_of(sampler)
    found = {"few steps": few_steps(sampler, states), "forecast": forecast(sampler, states)}
    return found if sampler.flow else {**found, "solver": dpm_solver(sampler, states)}


def planner_for(name: str = "ddim") -> Planner:
    return mixture_planner(samplers()[name], SHAPE, condition=pin_start)


# -- failures ----------------------------------------------------------------------------------


def failing(planner: Planner, poison: Poison, row: int | None = BAD, times: int = 1) -> Planner:
    """Fails at step AT, so often: in one row of the first context, or in all of them."""
    left, bad = times, contexts(len(SEEDS))[BAD]
    timestep = planner.sampler.steps[AT].timestep

    def denoise(x: Tensor, told: Tensor, context: Any) -> Any:
        nonlocal left
        prediction = planner.denoiser(x, told, context)
        if abs(float(told[0]) - timestep) > 1e-6 or left == 0:
            return prediction
        left -= 1
        if row is None:
            return poison(prediction)
        hit = (context == bad).all(dim=1)
        prediction[hit] = poison(prediction[hit])
        return prediction

    return replace(planner, denoiser=denoise)


def nan(prediction: Tensor) -> Tensor:
    return torch.full_like(prediction, float("nan"))


def one_infinity(prediction: Tensor) -> Tensor:
    prediction = prediction.clone()
    prediction.flatten()[-1] = float("-inf")
    return prediction


@pytest.mark.parametrize("poison", [nan, one_infinity])
@pytest.mark.parametrize("name", ["ddpm", "clipped ddim", "euler"])
def test_a_row_with_nan_gets_full_compute_and_the_others_do_not_notice(
    name: str, poison: Poison
) -> None:
    """Clipping would make an infinity finite: it is found before."""
    planner = planner_for(name)
    table, noise = tables(planner.sampler)["few steps"], planner.draw_noise(seeds=SEEDS)
    clean, reference = TableRuntime(planner, table)(contexts(5), noise=noise)
    found, record = TableRuntime(failing(planner, poison), table)(contexts(5), noise=noise)
    row = torch.tensor([BAD])
    full = planner.sample(contexts(5)[row], noise=noise.select(row))
    others = [other for other in SEEDS if other != BAD]
    assert torch.equal(found[row], full) and torch.equal(found[others], clean[others])
    reason = f"the denoiser returned NaN or Inf at step {AT}"
    assert record.fallback == tuple(reason if r == BAD else None for r in SEEDS)
    assert record.evaluations.tolist() == [
        len(ANCHORS) + (STEPS if row == BAD else 0) for row in SEEDS
    ]
    assert np.isnan(record.estimate[BAD])
    assert np.array_equal(record.estimate[others], reference.estimate[others])
    with pytest.raises(DenoiserError, match=rf"NaN or Inf at step {AT} \(rows \[2\]\)"):
        runtime_for(failing(planner, poison), table, on_failure="error")(contexts(5), noise=noise)


def test_nan_in_full_compute_too_raises() -> None:
    planner = planner_for()
    runtime = TableRuntime(failing(planner, nan, times=-1), tables(planner.sampler)["solver"])
    with pytest.raises(DenoiserError, match="full compute does not give a finite trajectory"):
        runtime(contexts(5), noise=planner.draw_noise(seeds=SEEDS))


def test_sums_that_overflow_are_planned_in_full() -> None:
    planner = Planner(lambda x, t, c: torch.full_like(x, 2e38), samplers()["ddim"], SHAPE)
    table = tables(planner.sampler)["few steps"]
    weights = table.array
    weights[0, -1, 1:4] = 3.0, -3.0, 1.0
    noise = planner.draw_noise(seeds=SEEDS)
    found, record = TableRuntime(planner, replace(table, weights=weights))(noise=noise)
    assert torch.equal(found, planner.sample(noise=noise))
    assert record.fallback == ("the trajectory is not finite",) * 5


MISFITS: dict[str, tuple[Poison, str]] = {
    "shape": (lambda prediction: prediction[:, :1], "returned shape"),
    "dtype": (lambda prediction: prediction.double(), "returned torch.float64 after"),
    "integers": (lambda prediction: prediction.long(), "returned torch.int64"),
    "type": (lambda prediction: (prediction, None), "returned tuple"),
}


@pytest.mark.parametrize("misfit", list(MISFITS))
def test_a_prediction_that_does_not_fit(misfit: str) -> None:
    planner, (poison, message) = planner_for(), MISFITS[misfit]
    table, noise = tables(planner.sampler)["forecast"], planner.draw_noise(seeds=SEEDS)
    broken = failing(planner, poison, row=None)
    found, record = TableRuntime(broken, table)(contexts(5), noise=noise)
    assert torch.equal(found, planner.sample(contexts(5), noise=noise))
    assert record.fallbacks == 5 and message in str(record.fallback[0])
    assert record.evaluations.tolist() == [ANCHORS.index(AT) + 1 + STEPS] * 5
    for options in ({"on_failure": "error"}, {"strict": True}):
        runtime = runtime_for(failing(planner, poison, row=None), table, **options)
        with pytest.raises(DenoiserError, match=message):
            runtime(contexts(5), noise=noise)


# -- engines -----------------------------------------------------------------------------------


def test_a_planner_names_the_runtime_of_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_cuda(monkeypatch)
    monkeypatch.setattr(torch, "compile", lambda denoiser: denoiser)
    planner = planner_for()
    table = tables(planner.sampler)["few steps"]
    for engine, kind in (
        ("eager", TableRuntime),
        ("compile", TableRuntime),  # graphs besides, on a GPU
        ("graph", TableGraphRuntime),
    ):
        assert type(runtime_for(replace(planner, engine=engine), table)) is kind


@pytest.mark.parametrize("kind", ["few steps", "forecast"])
@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "ddpm", "euler"])
def test_a_replayed_table_is_the_eager_one(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = stand_in_for_cuda(monkeypatch)
    planner = planner_for(name)
    table = tables(planner.sampler)[kind]
    graph, eager = TableGraphRuntime(planner, table), TableRuntime(planner, table)
    plans = []
    for first in (0, 10):  # the second call replays what the first captured
        noise = planner.draw_noise(seeds=range(first, first + 3))
        context = contexts(3) + 0.1 * first
        found, record = graph(context, noise=noise)
        expected, reference = eager(context, noise=noise)
        plans.append((found, expected))
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert np.array_equal(record.charged, reference.charged)  # type: ignore[arg-type]
    assert all(torch.equal(found, expected) for found, expected in plans)
    assert len(captures) == 1


def test_a_failing_row_of_a_replayed_table_gets_full_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in_for_cuda(monkeypatch)
    planner = planner_for()
    noise = planner.draw_noise(seeds=SEEDS)
    broken = failing(planner, nan, times=2)  # in the capture, and in its replay
    graph = TableGraphRuntime(broken, tables(planner.sampler)["solver"])
    found, record = graph(contexts(5), noise=noise)
    row = torch.tensor([BAD])
    assert torch.equal(found[row], planner.sample(contexts(5)[row], noise=noise.select(row)))
    assert record.fallbacks == 1


def test_the_compiled_network_is_the_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile(denoiser: Any) -> Any:
        compiled.append(denoiser)
        return denoiser

    monkeypatch.setattr(torch, "compile", compile)
    planner = planner_for()
    table, noise = tables(planner.sampler)["solver"], planner.draw_noise(seeds=SEEDS)
    found, _ = runtime_for(replace(planner, engine="compile"), table)(contexts(5), noise=noise)
    assert compiled == [planner.denoiser]
    assert torch.equal(found, TableRuntime(planner, table)(contexts(5), noise=noise)[0])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_is_the_eager_table(fresh_compiler: None) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(2, 16), nn.Mish(), nn.Linear(16, 2)).eval()
    planner = Planner(lambda x, timestep, context: layers(x), samplers()["ddim"], SHAPE)
    table, noise = tables(planner.sampler)["solver"], planner.draw_noise(seeds=[1, 2])
    found, record = runtime_for(replace(planner, engine="compile"), table)(noise=noise)
    assert record.fallback == (None, None)
    torch.testing.assert_close(
        found, TableRuntime(planner, table)(noise=noise)[0], atol=1e-5, rtol=1e-5
    )


# -- on a CUDA device --------------------------------------------------------------------------


def planner_on(device: torch.device, name: str, **fields: Any) -> Planner:
    sampler = samplers()[name]
    denoiser = mixture_denoiser(sampler, SHAPE).to(device)
    return Planner(denoiser, sampler, SHAPE, condition=pin_start, device=device, **fields)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["few steps", "forecast"])
@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "ddpm", "euler"])
def test_a_cuda_graph_is_the_eager_table(name: str, kind: str, dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    planner = planner_on(device, name, dtype=dtype)
    table = tables(planner.sampler)[kind]
    graph, eager = TableGraphRuntime(planner, table), TableRuntime(planner, table)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-3
    for first in (0, 10):
        noise = planner.draw_noise(seeds=range(first, first + 3))
        context = (contexts(3) + 0.1 * first).to(device)
        found, record = graph(context, noise=noise)
        assert record.fallback == (None,) * 3  # captured, not full compute
        expected, reference = eager(context, noise=noise)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
        assert np.array_equal(record.evaluated, reference.evaluated)
        assert record.estimate == pytest.approx(reference.estimate, abs=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ddim", "ddpm"])
def test_a_cuda_graph_of_all_steps_is_full_compute(name: str) -> None:
    device = torch.device("cuda")
    planner = planner_on(device, name, engine="graph")
    table = few_steps(planner.sampler, sampler_states(planner.sampler))
    noise, context = planner.draw_noise(seeds=range(3)), contexts(3).to(device)
    found, record = runtime_for(planner, table, on_failure="error")(context, noise=noise)
    expected = planner.sample(context, noise=noise)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert record.evaluated.all()
