"""A collapsed gap equals stepping through it, and gaps of many rows equal gaps of one row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import muninn.engines.gap
from analytic import mixture_denoiser
from muninn.engines.choose import runtime_for
from muninn.engines.gap import (
    Gaps,
    Past,
    StepTable,
    _refuse_to_capture,
    collapse,
    lagrange,
    stacked_draws,
    vector_gap,
)
from muninn.errors import DenoiserError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.forecast import Forecast, interpolation_weights, smooth_variable
from runtime_cases import NAMES, SHAPE, gate, programs, samplers

SAMPLERS = {
    "ddim": ddim(Schedule.cosine(30), kind="sample"),
    "ddim epsilon": ddim(Schedule.linear(30), kind="epsilon"),
    "ddim clipped": ddim(Schedule.cosine(30), kind="sample", clip=0.7),
    "ddim clipped, epsilon kept": ddim(Schedule.cosine(30), clip=0.7, keep_epsilon=True),
    "ddim stochastic": ddim(Schedule.cosine(30), kind="v", eta=0.5),
    "ddpm": ddpm(Schedule.cosine(30), kind="sample", clip=0.7),
    "euler down": euler(30),
    "euler up": euler([i / 30 for i in range(31)]),
}


def gap(sampler: Sampler, kind: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)

    def draw() -> torch.Tensor:
        return torch.randn(3, 5, 2, generator=generator)

    forecaster = Forecast(kind, 2).bind(sampler)  # type: ignore[arg-type]
    weights = forecaster.extrapolate((4, 7, 12), 20)
    noise = Noise(draw(), {step: draw() for step in range(30)})
    gaps = Gaps(sampler, kind)  # type: ignore[arg-type]
    return gaps.run(draw(), weights, [draw(), draw(), draw()], 13, noise, slice(None))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_collapsed_gap_equals_stepping_through_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = SAMPLERS[name]
    collapsed = {kind: gap(sampler, kind) for kind in sampler.kinds}
    monkeypatch.setattr(muninn.engines.gap, "LARGEST", 0)
    for kind, value in collapsed.items():
        torch.testing.assert_close(value, gap(sampler, kind), atol=2e-5, rtol=2e-5)


def test_a_gap_collapses_exactly_where_steps_are_affine_in_the_state() -> None:
    def collapses(name: str, kind: str) -> bool:
        return collapse(SAMPLERS[name], 5, 9, kind) is not None  # type: ignore[arg-type]

    assert collapses("ddim", "epsilon") and collapses("ddim clipped", "sample")
    assert collapses("euler down", "velocity")
    assert not collapses("ddim clipped", "epsilon")  # its clipping depends on the state
    assert not collapses("ddim clipped, epsilon kept", "sample")
    assert not collapses("ddpm", "sample") and not collapses("ddim stochastic", "v")


# -- many rows -------------------------------------------------------------------------------------

NODES = torch.tensor([[0, 1, 4], [0, 0, 0], [2, 5, 9], [1, 3, 6], [0, 0, 1]])
KNOWN = torch.tensor([[1, 1, 1], [0, 0, 1], [1, 1, 1], [0, 1, 1], [0, 1, 1]]).bool()
FIRST = NODES[:, -1] + 1
UNTIL = torch.tensor([9, 3, 10, 14, 20])


def numbers(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


def test_weights_are_those_of_the_polynomial() -> None:
    variable = torch.from_numpy(smooth_variable(samplers()["ddim"]))
    at = torch.tensor([7, 2, 9, 10, 15])
    found = lagrange(variable, NODES, KNOWN, at)
    for row in range(len(NODES)):
        places = variable[NODES[row][KNOWN[row]]].numpy()
        expected = interpolation_weights(places, variable[at[row : row + 1]].numpy())[0]
        assert found[row][KNOWN[row]].numpy() == pytest.approx(expected, rel=1e-9)
        assert not found[row][~KNOWN[row]].any()


@pytest.mark.parametrize("name", NAMES)
def test_gaps_of_many_rows_equal_gaps_of_one_row(name: str) -> None:
    sampler = samplers()[name]
    variable = smooth_variable(sampler)
    x, values = numbers(5, 4, 2), numbers(5, 3, 4, 2)
    drawn = [i for i, step in enumerate(sampler.steps) if step.draws_noise]
    noise = Noise(x, {step: numbers(5, 4, 2) * 0.1 * (step + 1) for step in drawn})
    for kind in sampler.kinds:
        table = StepTable.of(sampler, kind, torch.device("cpu"))
        draws = stacked_draws(sampler, noise)
        found = vector_gap(table, Past(x, values, NODES, KNOWN, FIRST), UNTIL, draws)
        for row in range(5):
            gap = np.arange(int(FIRST[row]), int(UNTIL[row]))
            if not len(gap):
                assert torch.equal(found[row], x[row])
                continue
            known = KNOWN[row].numpy()
            weights = interpolation_weights(variable[NODES[row].numpy()[known]], variable[gap])
            pick = torch.tensor([row])
            expected = Gaps(sampler, kind).run(
                x[pick],
                tuple(tuple(line) for line in weights.tolist()),
                [values[pick, j] for j in range(3) if known[j]],
                int(FIRST[row]),
                noise,
                pick,
            )
            scale = float(expected.abs().max())
            assert float((found[row] - expected[0]).abs().max()) <= 2e-5 * max(scale, 1.0)


def test_a_capture_without_the_kernel_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(DenoiserError, match="Triton"):
        _refuse_to_capture(torch.float32)
    with pytest.raises(DenoiserError, match="float64"):
        _refuse_to_capture(torch.float64)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    _refuse_to_capture(torch.float64)  # the loop may read on the host


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adaptive_plans_in_graphs_need_the_kernel(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("cuda")
    if dtype == torch.float32:
        monkeypatch.setattr(muninn.engines.gap.GAP, "usable", False)
    sampler = samplers()["ddim"]
    planner = Planner(
        mixture_denoiser(sampler, SHAPE).to(device),
        sampler,
        SHAPE,
        device=device,
        dtype=dtype,
        engine="graph",
    )
    noise = planner.draw_noise(seeds=[0, 1])
    found, record = runtime_for(planner, gate(sampler))(noise=noise)
    expected = "float64" if dtype == torch.float64 else "Triton"
    assert expected in str(record.fallback[0])
    assert torch.equal(found, planner.sample(noise=noise))
    fixed = runtime_for(planner, programs(sampler)["static"])
    assert fixed(noise=noise)[1].fallbacks == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_equals_the_loop(name: str) -> None:
    from muninn.engines.kernels.gap import run_gaps

    sampler, device = samplers()[name], torch.device("cuda")
    noise = numbers(25, 5, 4, 2).to(device) if sampler.stochastic else None
    past = Past(numbers(5, 4, 2), numbers(5, 3, 4, 2), NODES, KNOWN, FIRST)
    there = Past(*(tensor.to(device) for tensor in vars(past).values()))
    for kind in sampler.kinds:
        cpu = StepTable.of(sampler, kind, torch.device("cpu"))
        expected = vector_gap(cpu, past, UNTIL, None if noise is None else noise.cpu())
        found = run_gaps(StepTable.of(sampler, kind, device), there, UNTIL.to(device), noise)
        torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-5)
