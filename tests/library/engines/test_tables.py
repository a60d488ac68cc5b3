"""The runtime of tables: exact, row by row, whatever the network does to its inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import mixture_planner
from muninn.engines.choose import runtime_for
from muninn.engines.tables import TableRuntime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.programs.caches import forecast
from muninn.programs.methods import dpm_solver, few_steps, heun
from muninn.programs.spacing import sampler_states, trained_states
from muninn.programs.table import Table, embedded_differences
from runtime_cases import ANCHORS, NAMES, SHAPE, contexts, pin_start, pinned_copy, samplers
from table_cases import sampled, visited

ROUNDING = {"rtol": 1e-5, "atol": 1e-5}


def table_for(sampler: Sampler, anchors: Any = ANCHORS) -> Table:
    own = sampler_states(sampler)
    return forecast(sampler, [own[anchor] for anchor in anchors], "sample", 1)


def planner_for(name: str = "ddim", **fields: Any) -> Planner:
    return mixture_planner(samplers()[name], SHAPE, condition=pin_start, **fields)


# -- exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("condition", [None, pin_start, pinned_copy])
def test_all_steps_are_full_compute_up_to_rounding(name: str, condition: Any) -> None:
    planner = mixture_planner(samplers()[name], SHAPE, condition=condition)
    noise = planner.draw_noise(seeds=range(4))
    table = few_steps(planner.sampler, sampler_states(planner.sampler))
    found, record = runtime_for(planner, table)(contexts(4), noise=noise)
    torch.testing.assert_close(found, planner.sample(contexts(4), noise=noise), **ROUNDING)
    assert record.evaluated.all() and record.fallbacks == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_equals_its_rows(name: str) -> None:
    planner = planner_for(name)
    runtime = TableRuntime(planner, table_for(planner.sampler))
    noise = planner.draw_noise(seeds=range(5))
    batch, record = runtime(contexts(5), noise=noise)
    for row in range(5):
        one = torch.tensor([row])
        alone, own = runtime(contexts(5)[one], noise=noise.select(one))
        torch.testing.assert_close(alone, batch[one], **ROUNDING)
        assert own.estimate == pytest.approx(record.estimate[row], rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_precisions(name: str) -> None:
    """Sums of half precision are taken in float32; those of float64 stay exact."""
    exact = planner_for(name, dtype=torch.float64)
    table, noise = table_for(exact.sampler), exact.draw_noise(seeds=range(4))
    expected, record = TableRuntime(exact, table)(contexts(4), noise=noise)
    assert expected.dtype == torch.float64
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 2e-2)):
        planner = planner_for(name, dtype=dtype)
        found, own = TableRuntime(planner, table)(contexts(4), noise=noise.to(dtype))
        assert found.dtype == dtype and own.fallbacks == 0
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
        assert own.estimate == pytest.approx(record.estimate, abs=tolerance)


@pytest.mark.parametrize("sampler", [samplers()["ddim"], samplers()["ddpm"]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_sums_are_rounded_once(sampler: Sampler, dtype: torch.dtype) -> None:
    """A prediction that never changes leaves the rounding of the sums and nothing else."""
    planner = Planner(lambda x, t, c: torch.full_like(x, 0.375), sampler, SHAPE, dtype=dtype)
    table = few_steps(sampler, sampler_states(sampler))
    noise = planner.draw_noise(seeds=range(8))
    exact = sampled(replace(planner, dtype=torch.float64), noise.to(torch.float64))
    relative, absolute = (1e-13, 1e-13) if dtype == torch.float64 else (1e-6, 1e-6)
    if dtype == torch.float16:
        relative = 2**-11
    for found, expected in zip(visited(planner, table, noise), exact, strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=relative, atol=absolute)


# -- channels ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddim", "ddpm", "clipped ddim"])
def test_weights_by_channel(name: str) -> None:
    """Equal ones are the scalar table; others give each channel its own table."""
    planner = mixture_planner(samplers()[name], SHAPE)
    own = sampler_states(planner.sampler)
    one = few_steps(planner.sampler, [own[anchor] for anchor in ANCHORS])
    other = replace(one, weights=0.9 * one.array)
    noise, held = planner.draw_noise(seeds=range(3)), torch.randn(SHAPE)
    planner = replace(planner, denoiser=lambda x, t, c: held.expand_as(x))  # no channel sees others
    plans, estimates = {}, {}
    for key, parts in {"1": [one], "11": [one, one], "2": [other], "12": [one, other]}.items():
        table = replace(one, weights=np.concatenate([part.array for part in parts]))
        plans[key], record = TableRuntime(planner, table)(noise=noise)
        estimates[key] = record.estimate
    assert torch.equal(plans["11"], plans["1"])
    assert estimates["11"] == pytest.approx(estimates["1"])
    assert torch.equal(plans["12"], torch.cat([plans["1"][..., :1], plans["2"][..., 1:]], dim=-1))
    assert not torch.equal(plans["12"], plans["1"])


def test_a_table_for_another_planner_is_refused() -> None:
    planner, table = planner_for(), table_for(samplers()["ddim"])
    with pytest.raises(InputError, match="weights for 3 channels, a plan has 2"):
        TableRuntime(planner, replace(table, weights=np.tile(table.array, (3, 1, 1))))
    later = replace(table, states=(table.states[1], *table.states[1:]))
    with pytest.raises(InputError, match="starts at another noise level than the sampler"):
        TableRuntime(planner, later)


# -- noise -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddpm", "stochastic ddim"])
def test_the_samplers_noise_enters_each_state_with_its_weight(name: str) -> None:
    planner = planner_for(name, dtype=torch.float64)
    table, noise = table_for(planner.sampler), planner.draw_noise(seeds=range(3))
    silent = replace(noise, steps={step: 0.0 * draw for step, draw in noise.steps.items()})

    def result(weights: Any, noise: Any) -> Tensor:
        quiet = replace(table, noise=tuple(weights))
        found: Tensor = TableRuntime(planner, quiet)(contexts(3), noise=noise)[0]
        return found

    count = len(table.states)
    assert torch.equal(result([0.0] * count, noise), result([1.0] * count, silent))
    halves = replace(noise, steps={step: 0.5 * draw for step, draw in noise.steps.items()})
    torch.testing.assert_close(result([0.5] * count, noise), result([1.0] * count, halves))
    changed = result([1.0, 0.0] + [1.0] * (count - 2), noise)  # one state, its prediction, the rest
    assert (changed - result([1.0] * count, noise)).abs().max() > 1e-3


# -- the record --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddim", "clipped ddim", "euler", "ddpm"])
def test_the_record(name: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE, dtype=torch.float64)
    sampler, clean = planner.sampler, []

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        step = [own.timestep for own in sampler.steps].index(pytest.approx(float(timestep[0])))
        prediction = planner.denoiser(x, timestep, context)
        sample = sampler.convert(x, prediction, step, "sample")
        clean.append(sample if sampler.clip is None else sample.clamp(-sampler.clip, sampler.clip))
        return prediction

    table = table_for(sampler)
    runtime = TableRuntime(replace(planner, denoiser=denoise), table)
    _, record = runtime(contexts(3), noise=planner.draw_noise(seeds=range(3)))
    assert record.evaluations.tolist() == [len(ANCHORS)] * 3
    assert [np.flatnonzero(row).tolist() for row in record.evaluated] == [list(ANCHORS)] * 3
    assert record.fallback == (None,) * 3 and record.charged is not None
    gaps = torch.einsum(
        "gk,kbhd->gbhd", torch.from_numpy(embedded_differences(table.states)), torch.stack(clean)
    )
    sizes = gaps.flatten(2).norm(dim=2) / SHAPE[0] ** 0.5
    assert record.charged[:, ANCHORS[:-1]] == pytest.approx(sizes.T.numpy())
    assert np.count_nonzero(record.charged) == 3 * (len(ANCHORS) - 1)
    assert record.estimate == pytest.approx(record.charged.sum(axis=1))


def test_the_record_of_states_between_steps_and_of_states_twice() -> None:
    known, sampler = samplers()["ddim"], samplers()["ddim"]
    planner = mixture_planner(sampler, SHAPE)
    own = sampler_states(sampler)
    twice = heun(sampler, [own[0], own[10], own[24]])
    _, record = TableRuntime(planner, twice)(noise=planner.draw_noise(seeds=[0]))
    assert record.evaluations.tolist() == [5] and record.evaluated.sum() == 3
    between = dpm_solver(sampler, [*trained_states(known)[::20], own[24]])
    _, record = TableRuntime(planner, between)(noise=planner.draw_noise(seeds=[0]))
    assert record.evaluations.tolist() == [6]
    assert np.flatnonzero(record.evaluated[0]).tolist() == [0, 5, 10, 15, 20, 24]


# -- networks that write -----------------------------------------------------------------------


def own_buffer(planner: Planner) -> Any:
    buffer = torch.empty(0)

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        buffer.resize_(x.shape).copy_(planner.denoiser(x, timestep, context))
        return buffer

    return denoise


def scribbles(planner: Planner) -> Any:
    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        prediction = planner.denoiser(x, timestep, context)
        x.zero_()
        timestep.mul_(0)
        return prediction

    return denoise


def into_its_input(planner: Planner) -> Any:
    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return x.copy_(planner.denoiser(x, timestep, context))

    return denoise


@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("writes", [own_buffer, scribbles, into_its_input])
def test_networks_that_write_in_place(writes: Any, rows: int, conditioned: bool) -> None:
    """Its kind is the clean sample: what is left of the state does not enter."""
    planner = replace(planner_for(), condition=pin_start if conditioned else None)
    table, noise = table_for(planner.sampler), planner.draw_noise(seeds=range(rows))
    expected, _ = TableRuntime(planner, table)(contexts(rows), noise=noise)
    runtime = TableRuntime(replace(planner, denoiser=writes(planner)), table)
    before = noise.initial.clone()
    for _ in range(2):  # and the first call leaves nothing behind
        found, record = runtime(contexts(rows), noise=noise)
        assert torch.equal(found, expected) and record.fallbacks == 0
    assert torch.equal(noise.initial, before)


def test_a_result_is_the_callers_own() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    noise = planner.draw_noise(seeds=range(2))
    found, _ = TableRuntime(planner, table_for(planner.sampler))(noise=noise)
    assert found.untyped_storage().nbytes() == found.numel() * found.element_size()


@pytest.mark.parametrize("name", ["ddim", "euler"])
def test_the_network_is_told_what_the_plain_sampler_tells_it(name: str) -> None:
    told = list[Tensor]()
    planner = planner_for(name)

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        told.append(timestep.clone())
        return planner.denoiser(x, timestep, context)

    listening = replace(planner, denoiser=denoise)
    noise = planner.draw_noise(seeds=range(2))
    TableRuntime(listening, table_for(planner.sampler))(contexts(2), noise=noise)
    ours, told = told, []
    listening.sample(contexts(2), noise=noise)
    for step, own in zip(ANCHORS, ours, strict=True):
        assert torch.equal(own, told[step]) and own.dtype == told[step].dtype
