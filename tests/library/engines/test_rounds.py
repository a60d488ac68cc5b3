"""The batched engine equals the reference runtime, row by row, whatever the batch."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
import muninn.engines.gap
import muninn.engines.rounds
from analytic import Counting, mixture_denoiser, mixture_planner
from muninn.engines.gap import stacked_draws
from muninn.engines.kernels.optional import OptionalKernel
from muninn.engines.rounds import RoundRuntime
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Plan, Program
from runtime_cases import NAMES, SHAPE, STEPS, contexts, pin_start, programs, samplers

SEEDS = range(6)


def planner_for(name: str, condition: Any = pin_start) -> Planner:
    return replace(mixture_planner(samplers()[name]), condition=condition)


@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", NAMES)
def test_equals_the_reference(name: str, kind: str) -> None:
    planner = planner_for(name)
    program = programs(planner.sampler)[kind]
    noise = planner.draw_noise(seeds=SEEDS)
    expected, reference = Runtime(planner, program)(contexts(6), noise=noise)
    found, record = RoundRuntime(planner, program)(contexts(6), noise=noise)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)
    assert np.array_equal(record.evaluated, reference.evaluated)
    assert np.array_equal(record.evaluations, reference.evaluations)
    assert record.estimate == pytest.approx(reference.estimate, rel=1e-3, abs=1e-6)
    assert record.charged == pytest.approx(reference.charged, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("quantity", ["sample", "epsilon", "v"])
@pytest.mark.parametrize("look_back", [False, True])
def test_every_forecast(order: int, quantity: Any, look_back: bool) -> None:
    planner = planner_for("clipped ddim", None)
    plan = Adaptive(0.05, dense=max(order + 1, 2), longest=6, cap=18, emphasis=-1.0)
    program = Program(Forecast(quantity, order, look_back), plan)
    noise = planner.draw_noise(seeds=SEEDS)
    expected, reference = Runtime(planner, program)(noise=noise)
    found, record = RoundRuntime(planner, program)(noise=noise)
    assert np.array_equal(record.evaluated, reference.evaluated)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "plan",
    [
        Adaptive(1e-5, dense=2, cap=5),  # the cap binds
        Adaptive(1e6, dense=1),  # the history decides when a gate may begin
        Adaptive(0.02, dense=6, longest=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [0, 1, 3])
def test_every_rule_of_the_gate(order: int, plan: Adaptive) -> None:
    planner = planner_for("ddim")
    if plan.cap < order + 3:
        plan = replace(plan, cap=order + 3)
    program = Program(Forecast("sample", order), plan)
    noise = planner.draw_noise(seeds=SEEDS)
    _, reference = Runtime(planner, program)(contexts(6), noise=noise)
    _, record = RoundRuntime(planner, program)(contexts(6), noise=noise)
    assert np.array_equal(record.evaluated, reference.evaluated)
    assert (record.evaluations <= plan.cap).all()


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float16, 0.02), (torch.bfloat16, 0.15), (torch.float64, 1e-6)]
)
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_other_precisions(dtype: torch.dtype, bound: float, kind: str) -> None:
    planner = replace(planner_for("ddim"), dtype=dtype)
    program = programs(planner.sampler)[kind]
    noise = planner.draw_noise(seeds=SEEDS)
    context = contexts(6).to(dtype)
    expected, _ = Runtime(planner, program)(context, noise=noise)
    found, record = RoundRuntime(planner, program)(context, noise=noise)
    assert found.dtype == dtype
    assert not record.fallbacks
    assert float((found - expected).abs().max()) <= bound


def test_full_compute_and_what_is_spent() -> None:
    planner = planner_for("ddpm")
    counting = Counting(planner.denoiser)
    planner = replace(planner, denoiser=counting)
    noise = planner.draw_noise(seeds=SEEDS)
    full = planner.sample(contexts(6), noise=noise)
    counting.rows.clear()
    program = Program(Forecast("sample", 0, False), Everywhere())
    found, record = RoundRuntime(planner, program)(contexts(6), noise=noise)
    torch.testing.assert_close(found, full, atol=1e-5, rtol=0.0)
    assert counting.rows == [6] * STEPS
    assert (record.evaluations == STEPS).all()


def test_a_round_serves_every_unfinished_row() -> None:
    """Rows differ in their steps, yet there are only as many rounds as the hungriest row needs."""
    planner = planner_for("ddim")
    counting = Counting(planner.denoiser)
    planner = replace(planner, denoiser=counting)
    program = Program(Forecast("sample", 1), Adaptive(0.01, dense=2))
    noise = planner.draw_noise(seeds=range(12))
    _, record = RoundRuntime(planner, program)(contexts(12), noise=noise)
    assert len({tuple(row) for row in record.evaluated.tolist()}) > 1
    assert len(counting.rows) == record.evaluations.max()
    assert sum(counting.rows) == record.evaluations.sum()


def test_rows_do_not_depend_on_the_batch() -> None:
    planner = planner_for("stochastic ddim")
    program = Program(Forecast("sample", 1), Adaptive(0.02, dense=2))
    noise, context = planner.draw_noise(seeds=SEEDS), contexts(6)
    together, record = RoundRuntime(planner, program)(context, noise=noise)
    for row in SEEDS:
        pick = torch.tensor([row])
        alone, own = RoundRuntime(planner, program)(context[pick], noise=noise.select(pick))
        torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0.0)
        assert np.array_equal(own.evaluated[0], record.evaluated[row])


def test_a_row_with_nan_gets_full_compute() -> None:
    planner = planner_for("ddim")
    healthy = planner.denoiser
    poisoned = True

    def broken(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        out = healthy(x, timestep, context).clone()
        if poisoned and len(out) == 6:
            out[2] = float("nan")
        return out

    program = programs(planner.sampler)["static"]
    noise, context = planner.draw_noise(seeds=SEEDS), contexts(6)
    found, record = RoundRuntime(replace(planner, denoiser=broken), program)(context, noise=noise)
    full = planner.sample(context[2:3], noise=noise.select(torch.tensor([2])))
    torch.testing.assert_close(found[2:3], full, atol=1e-6, rtol=0.0)
    assert [reason is not None for reason in record.fallback] == [row == 2 for row in SEEDS]
    clean, _ = Runtime(planner, program)(context, noise=noise)
    others = [row for row in SEEDS if row != 2]
    torch.testing.assert_close(found[others], clean[others], atol=2e-5, rtol=0.0)


@pytest.mark.parametrize("plan", [Everywhere(), Adaptive(0.1, dense=1)])
def test_a_sampler_of_one_step(plan: Any) -> None:
    planner = mixture_planner(muninn.ddim(muninn.Schedule.cosine(100), 1, kind="sample"))
    program, noise = Program(Forecast("sample", 0), plan), planner.draw_noise(seeds=[1, 2])
    found, record = RoundRuntime(planner, program)(contexts(2), noise=noise)
    torch.testing.assert_close(found, planner.sample(contexts(2), noise=noise))
    assert record.evaluations.tolist() == [1, 1]


def test_a_kernel_that_cannot_be_built_is_left_out_for_good(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def launch(*_: Any) -> Any:
        nonlocal tried
        tried += 1
        raise RuntimeError("no C compiler was found")

    kernel = OptionalKernel("nowhere", "launch")
    monkeypatch.setattr(kernel, "usable", True)
    monkeypatch.setattr(kernel, "_launch", launch)
    assert kernel.run(1) is None
    assert kernel.run(1) is None
    assert tried == 1
    assert "no C compiler" in caplog.text


def test_a_kernel_survives_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(room: bool) -> str:
        if not room:
            raise torch.OutOfMemoryError("no room")
        return "done"

    kernel = OptionalKernel("nowhere", "launch")
    monkeypatch.setattr(kernel, "usable", True)
    monkeypatch.setattr(kernel, "_launch", launch)
    with pytest.raises(torch.OutOfMemoryError):
        kernel.run(False)
    assert kernel.run(True) == "done"


@pytest.mark.parametrize("kernel", [muninn.engines.gap.GAP, muninn.engines.rounds.PLAN])
def test_a_kernel_names_a_function_that_is_there(kernel: OptionalKernel) -> None:
    """Without importing its module, which needs Triton."""
    found = importlib.util.find_spec(kernel.module)
    assert found is not None and found.origin is not None
    body = ast.parse(Path(found.origin).read_text()).body
    assert kernel.name in [part.name for part in body if isinstance(part, ast.FunctionDef)]


def test_a_plan_that_rounds_cannot_run_is_refused() -> None:
    class Other(Everywhere):
        pass

    class Foreign(Plan):
        fixed = True

    planner = planner_for("ddim")
    for kind in (Other, Foreign):  # what a subclass overrides would not be run
        with pytest.raises(InputError, match=rf"not {kind.__name__} \(.*use engine='eager'"):
            RoundRuntime(planner, Program(Forecast("sample", 0), kind()))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddim", "euler"])
def test_the_plan_kernel_equals_the_operations(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rounds of real calls: the same next steps, and the same charges up to rounding."""
    device = torch.device("cuda")
    sampler = samplers()[name]
    planner = Planner(mixture_denoiser(sampler, SHAPE).to(device), sampler, SHAPE, device=device)
    runtime = RoundRuntime(planner, programs(sampler)[kind])
    noise = planner.draw_noise(seeds=range(5))
    rows = runtime._begin(noise, None)
    active = torch.arange(5, device=device)
    draws = stacked_draws(sampler, noise)
    for _ in range(6):
        runtime._round(rows, active, draws, None)
        due, charged = rows.due.clone(), rows.charged.clone()
        step = rows.nodes[:, -1]
        assert muninn.engines.rounds.PLAN.usable
        monkeypatch.setattr(muninn.engines.rounds.PLAN, "usable", False)
        runtime._plan(rows, active, step)
        monkeypatch.setattr(muninn.engines.rounds.PLAN, "usable", True)
        assert torch.equal(rows.due, due)
        # Differences of values of size one, in single precision: what rounding leaves of them.
        torch.testing.assert_close(rows.charged, charged, atol=1e-7, rtol=1e-5)
