"""Gaps of many rows at once equal gaps run one row at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import muninn.engines.vector_gap
from analytic import mixture_denoiser
from muninn.engines.choose import runtime_for
from muninn.engines.gap import column_cache, run_gap
from muninn.engines.vector_gap import (
    StepTable,
    _refuse_to_capture,
    lagrange,
    stacked_draws,
    vector_gap,
)
from muninn.errors import DenoiserError
from muninn.model.planner import Noise, Planner
from muninn.programs.forecast import interpolation_weights, smooth_variable
from runtime_cases import NAMES, SHAPE, gate, programs, samplers

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
def test_equals_one_row_at_a_time(name: str) -> None:
    sampler = samplers()[name]
    variable = smooth_variable(sampler)
    x, values = numbers(5, 4, 2), numbers(5, 3, 4, 2)
    drawn = [i for i, step in enumerate(sampler.steps) if step.draws_noise]
    noise = Noise(x, {step: numbers(5, 4, 2) * 0.1 * (step + 1) for step in drawn})
    for kind in sampler.kinds:
        table = StepTable.of(sampler, kind, torch.device("cpu"))
        draws = stacked_draws(sampler, noise)
        found = vector_gap(table, x, values, NODES, KNOWN, FIRST, UNTIL, draws)
        for row in range(5):
            gap = np.arange(int(FIRST[row]), int(UNTIL[row]))
            if not len(gap):
                assert torch.equal(found[row], x[row])
                continue
            known = KNOWN[row].numpy()
            weights = interpolation_weights(variable[NODES[row].numpy()[known]], variable[gap])
            pick = torch.tensor([row])
            expected = run_gap(
                sampler,
                x[pick],
                tuple(tuple(line) for line in weights.tolist()),
                [values[pick, j] for j in range(3) if known[j]],
                int(FIRST[row]),
                kind,
                noise,
                pick,
                column_cache(),
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
        monkeypatch.setattr(muninn.engines.vector_gap.GAP, "usable", False)
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
    inputs = [t.to(device) for t in (numbers(5, 4, 2), numbers(5, 3, 4, 2), NODES, KNOWN, FIRST)]
    until = UNTIL.to(device)
    for kind in sampler.kinds:
        cpu = StepTable.of(sampler, kind, torch.device("cpu"))
        on_cpu = [t.cpu() for t in inputs]
        expected = vector_gap(cpu, *on_cpu, UNTIL, None if noise is None else noise.cpu())
        found = run_gaps(StepTable.of(sampler, kind, device), *inputs, until, noise)
        torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-5)
