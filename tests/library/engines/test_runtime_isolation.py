"""Nothing survives a call, nothing is written to, and writing in place does no harm."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from analytic import mixture_denoiser, mixture_planner
from muninn.engines.runtime import Runtime
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Program
from runtime_cases import (
    NAMES,
    SHAPE,
    contexts,
    gate,
    pin_start,
    pinned_copy,
    programs,
    samplers,
)

# -- nothing survives a call -------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_same_call_gives_the_same_plan_whatever_came_between(name: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE)
    runtime = Runtime(planner, gate(planner.sampler))
    noise, other = planner.draw_noise(seeds=[0, 1]), planner.draw_noise(seeds=[7, 8, 9, 10])
    first, first_record = runtime(contexts(2), noise=noise)
    kept = first.clone()
    runtime(contexts(4), noise=other)
    second, second_record = runtime(contexts(2), noise=noise)
    assert torch.equal(first, second) and torch.equal(first, kept)
    assert np.array_equal(first_record.evaluated, second_record.evaluated)
    assert np.array_equal(first_record.estimate, second_record.estimate)


def test_a_call_inside_another_call_disturbs_neither() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    program = gate(planner.sampler)
    clean = Runtime(planner, program)
    outer, inner = planner.draw_noise(seeds=[0, 1]), planner.draw_noise(seeds=[2, 3])
    expected, nested = clean(noise=outer)[0], clean(noise=inner)[0]
    results: list[Tensor] = []
    busy = threading.local()

    def denoiser(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        if not getattr(busy, "inside", False):
            busy.inside = True
            results.append(runtime(noise=inner)[0])
            busy.inside = False
        return planner.denoiser(x, timestep, context)

    runtime = Runtime(replace(planner, denoiser=denoiser), program)
    assert torch.equal(runtime(noise=outer)[0], expected)
    assert len(results) > 3 and all(torch.equal(result, nested) for result in results)


def test_two_threads_may_share_a_runtime() -> None:
    planner = mixture_planner(samplers()["ddpm"], SHAPE)
    runtime = Runtime(planner, gate(planner.sampler))
    noises = [planner.draw_noise(seeds=[3 * i, 3 * i + 1]) for i in range(8)]
    expected = [runtime(noise=noise)[0] for noise in noises]
    fresh = Runtime(planner, gate(planner.sampler))  # its weight tables are still empty
    barrier = threading.Barrier(2)

    def work(order: list[int]) -> list[tuple[int, Tensor]]:
        barrier.wait()
        return [(i, fresh(noise=noises[i])[0]) for i in order]

    with ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(work, list(range(8))), pool.submit(work, list(range(7, -1, -1)))]
        for index, planned in itertools.chain(*(task.result() for task in tasks)):
            assert torch.equal(planned, expected[index])


class Network(nn.Module):
    """A small network with a buffer and a submodule, in training mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        out: Tensor = self.layers(x) * self.scale
        return out


def snapshot(module: nn.Module) -> list[Any]:
    hooks = [name for name in vars(module) if "hooks" in name]
    return [
        [
            type(part),
            part.training,
            sorted(vars(part)),
            [len(vars(part)[name]) for name in hooks],
            [(name, id(value), value._version) for name, value in part.named_parameters()],
            [parameter.grad for parameter in part.parameters()],
            {name: value.tolist() for name, value in part.state_dict().items()},
        ]
        for part in module.modules()
    ]


def test_nothing_is_stored_on_the_users_network() -> None:
    network = Network()
    before = snapshot(network)
    planner = Planner(network, samplers()["ddim"], SHAPE, pin_start)
    planner.identity()
    for program in programs(planner.sampler).values():
        planned, _ = Runtime(planner, program)(contexts(3), noise=planner.draw_noise(3))
        assert not planned.requires_grad
    assert snapshot(network) == before


def test_what_a_call_is_given_is_not_written_to() -> None:
    for name in NAMES:
        planner = mixture_planner(samplers()[name], SHAPE, condition=pin_start)
        noise, context = planner.draw_noise(seeds=[0, 1]), contexts(2)
        kept = [noise.initial.clone(), *(draw.clone() for draw in noise.steps.values())]
        planned, _ = Runtime(planner, gate(planner.sampler))(context, noise=noise)
        planned.fill_(9.0)
        for tensor, before in zip([noise.initial, *noise.steps.values()], kept, strict=True):
            assert torch.equal(tensor, before)
        assert torch.equal(context, contexts(2))


# -- denoisers and conditions that write in place ----------------------------------------------


@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddpm", "clipped ddim", "euler"])
def test_a_denoiser_that_reuses_its_output_buffer_changes_nothing(name: str, kind: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE)
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(seeds=range(5))
    expected, record = Runtime(planner, program)(contexts(5), noise=noise)
    buffer = torch.empty(5, *SHAPE)

    def reusing(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        prediction = planner.denoiser(x, timestep, context)
        buffer.fill_(float("nan"))  # whoever still looks at the last answer sees this
        buffer[: len(x)] = prediction
        return buffer[: len(x)]

    planned, again = Runtime(replace(planner, denoiser=reusing), program)(contexts(5), noise=noise)
    assert torch.equal(planned, expected)
    assert np.array_equal(record.evaluated, again.evaluated) and again.fallbacks == 0


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
def test_a_condition_that_writes_in_place_equals_one_that_copies(kind: str, when: Any) -> None:
    planner = mixture_planner(samplers()["ddpm"], SHAPE, condition=pin_start, condition_when=when)
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(seeds=range(5))
    in_place, _ = Runtime(planner, program)(contexts(5), noise=noise)
    copied, _ = Runtime(replace(planner, condition=pinned_copy), program)(contexts(5), noise=noise)
    assert torch.equal(in_place, copied)
    assert torch.equal(in_place[:, 0], contexts(5))


def test_a_denoiser_that_writes_to_its_input_gives_a_row_the_same_plan_in_any_batch() -> None:
    sampler = samplers()["ddim"]
    inner = mixture_denoiser(sampler, SHAPE)

    def clamping(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return inner(x.clamp_(-0.8, 0.8), timestep, context)

    planner = Planner(clamping, sampler, SHAPE)
    program = Program(Forecast("sample", 1, look_back=False), Adaptive(0.02, dense=2))
    runtime, seeds = Runtime(planner, program), list(range(6))
    together, record = runtime(noise=planner.draw_noise(seeds=seeds))
    assert len({tuple(row) for row in record.evaluated.tolist()}) > 1
    for row in seeds:
        alone, _ = runtime(noise=planner.draw_noise(seeds=[row]))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0.0, atol=1e-5)


def test_a_denoiser_that_returns_its_input_is_no_special_case() -> None:
    sampler = samplers()["ddim"]
    planner = Planner(lambda x, t, c: x, sampler, SHAPE)
    copying = Planner(lambda x, t, c: x.clone(), sampler, SHAPE)
    noise = planner.draw_noise(seeds=range(4))
    for program in programs(sampler).values():
        mine, _ = Runtime(planner, program)(noise=noise)
        assert torch.equal(mine, Runtime(copying, program)(noise=noise)[0])
