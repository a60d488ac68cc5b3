"""An intercepted loop computes what the runtime does with the same program: the certified one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from torch import Tensor

import muninn
from analytic import mixture_planner
from call_level_cases import SHAPE, Network, certificate_for, clamping_loop
from muninn.adapters.call_level import intercept, tune_without_look_back
from muninn.adapters.diffusers_sampler import DiffusersSampler
from muninn.adapters.styles import diffuser_style
from muninn.engines.intercept import Interceptor
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Kind
from muninn.programs.forecast import Forecast
from muninn.programs.methods import few_steps
from muninn.programs.plan import Adaptive, Program, Static
from muninn.programs.spacing import sampler_states
from runtime_cases import NAMES, SHORT_GAPS, contexts, pin_start, samplers

DDIM = muninn.ddim(muninn.Schedule.cosine(40), kind="sample", clip=1.0)
DDPM = muninn.ddpm(muninn.Schedule.cosine(40), kind="sample", clip=1.0)
PLAN = (0, 1, 2, 3, 6, 10, 15, 21, 28, 36, 39)


def triple(x: Tensor, cond: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return x, t


def case(sampler: Any = DDIM, program: Program | None = None) -> tuple[Network, Planner, Any]:
    network = Network().eval()
    planner = Planner(diffuser_style(network), sampler, SHAPE)
    program = program or Program(Forecast("sample", 2, False), Static(PLAN))
    return network, planner, certificate_for(planner, program)


# -- equal to the certified program ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["sample", "epsilon", "v"])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_the_loop_is_the_runtime_with_the_same_program(name: str, kind: Kind, order: int) -> None:
    sampler = samplers(kind)[name]
    planner = mixture_planner(sampler, condition=pin_start)
    noise, context = planner.draw_noise(3, generator=torch.Generator()), contexts(3)
    for quantity in sampler.kinds:
        if sampler.flow and quantity == "epsilon":
            continue  # a flow's first state is pure noise: its epsilon is the state itself
        program = Program(Forecast(quantity, order, False), Static(SHORT_GAPS))
        expected, record = Runtime(planner, program)(context, noise=noise)
        certificate = certificate_for(planner, program)
        denoiser = intercept(planner.denoiser, planner, certificate)
        theirs = Planner(denoiser, sampler, planner.shape, condition=pin_start)
        full = theirs.sample(context, noise=noise)  # the first run is watched
        assert torch.equal(full, planner.sample(context, noise=noise))
        ours = theirs.sample(context, noise=noise)
        assert denoiser.last is not None and denoiser.last.fallbacks == 0
        assert (denoiser.last.evaluated == record.evaluated).all()
        np.testing.assert_allclose(denoiser.last.estimate, record.estimate, rtol=1e-3, atol=1e-6)
        assert float((expected - full).abs().max()) > 1e-3  # a forecast is not the network
        # measured 1e-6; clipped DDIM that keeps epsilon 1e-5
        torch.testing.assert_close(ours, expected, rtol=0.0, atol=5e-5)


@pytest.mark.parametrize("sampler", [DDIM, DDPM], ids=["ddim", "ddpm"])
def test_a_loop_that_clamps_in_place_and_rewrites_its_timestep(sampler: Any) -> None:
    network, planner, certificate = case(sampler)
    cond = torch.tensor([0.3, -1.0])
    noise = planner.draw_noise(2, generator=torch.Generator())
    full = clamping_loop(network, planner, cond, noise)
    torch.testing.assert_close(planner.sample(cond, noise=noise), full, rtol=0.0, atol=2e-5)
    expected, record = Runtime(planner, certificate.program)(cond, noise=noise)
    cached = intercept(network, planner, certificate, read=triple)
    assert cached.last is None
    assert torch.equal(clamping_loop(network, planner, cond, noise), full)  # watched
    assert cached.last.evaluations.tolist() == [40, 40]
    assert cached.last.fallback[0].startswith("no run before this one")
    network.timesteps.clear()
    for _ in range(3):  # no run knows of the one before
        ours = clamping_loop(network, planner, cond, noise)
        torch.testing.assert_close(ours, expected, rtol=0.0, atol=2e-5)
        assert cached.last is not None and cached.last.fallbacks == 0
        assert cached.last.evaluations.tolist() == [len(PLAN)] * 2
        np.testing.assert_allclose(cached.last.estimate, record.estimate, rtol=1e-3)
        assert cached.last.bound is not None and cached.last.rank is not None
        np.testing.assert_allclose(cached.last.bound, certificate.bound(record.estimate), rtol=1e-3)
        assert cached.last.seconds > 0.0
    visited = [sampler.steps[step].timestep for step in PLAN]
    assert network.timesteps == visited * 3
    assert float((ours - full).abs().max()) > 1e-4
    cached.remove()
    assert torch.equal(clamping_loop(network, planner, cond, noise), full)
    assert "forward" not in vars(network)


@pytest.mark.parametrize(
    ("scheduler", "steps"), [(DDPMScheduler(100), 50), (DDIMScheduler(50), 50)]
)
@pytest.mark.parametrize("quantity", ["epsilon", "sample"])
def test_a_loop_of_diffusers(scheduler: Any, steps: int, quantity: Kind) -> None:
    plan = (*range(12), 14, 17, 20, 24, 28, 33, 38, 43, 49)
    network, planner, certificate = case(
        DiffusersSampler(scheduler, steps), Program(Forecast(quantity, 1, False), Static(plan))
    )
    cond = torch.zeros(2)
    noise = planner.draw_noise(2, generator=torch.Generator().manual_seed(3))
    expected, _ = Runtime(planner, certificate.program)(cond, noise=noise)
    cached = intercept(network, planner, certificate, read=triple)
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        x = torch.randn((2, *SHAPE), generator=generator)
        scheduler.set_timesteps(steps)
        network.timesteps.clear()
        for t in scheduler.timesteps:  # 0-d, on the CPU
            with torch.no_grad():
                output = network(x, cond, t)
            x = scheduler.step(output, t, x, generator=generator).prev_sample
    assert len(network.timesteps) == len(plan) and cached.last.fallbacks == 0
    if quantity == "epsilon":  # the network's own kind: nothing is converted
        assert torch.equal(x, expected)
    # x0 handed over as epsilon is divided by noise levels down to 0.01: measured up to 3e-4
    torch.testing.assert_close(x, expected, rtol=0.0, atol=1e-3)


def test_a_flow_whose_loop_adds_up_its_time() -> None:
    sampler = muninn.euler(10)
    program = Program(Forecast("velocity", 1, False), Static((0, 1, 2, 4, 7, 9)))
    network, planner, certificate = case(sampler, program)
    noise = planner.draw_noise(1, generator=torch.Generator())
    expected, _ = Runtime(planner, program)(torch.ones(1), noise=noise)
    intercept(network, planner, certificate, read=triple)
    for _ in range(2):
        network.timesteps.clear()
        x, time, move = noise.initial.clone(), torch.tensor(1.0), -torch.tensor(1.0) / 10
        with torch.no_grad():
            while time >= -move / 2:  # as openpi does
                x = x + move * network(x, torch.ones(1), time.expand(1))
                time += move  # the view that was passed shows it too
    assert len(network.timesteps) == 6
    torch.testing.assert_close(x, expected, rtol=0.0, atol=1e-5)


def test_an_adaptive_plan_decides_for_one_trajectory_and_not_for_more() -> None:
    network, planner, _ = case()
    counts = set()
    for seed, threshold in ((0, 0.02), (1, 0.002), (2, 0.2)):
        program = Program(Forecast("sample", 1, False), Adaptive(threshold, dense=2))
        noise = planner.draw_noise(1, generator=torch.Generator().manual_seed(seed))
        cond = torch.full((1,), float(seed))
        expected, record = Runtime(planner, program)(cond, noise=noise)
        cached = intercept(network, planner, certificate_for(planner, program), read=triple)
        for _ in range(2):
            ours = clamping_loop(network, planner, cond, noise)
        assert (cached.last.evaluated == record.evaluated).all()
        torch.testing.assert_close(ours, expected, rtol=0.0, atol=2e-5)
        counts.add(int(record.evaluations[0]))
        two = Noise(noise.initial.expand(2, -1, -1))
        clamping_loop(network, planner, cond.expand(2), two)
        assert "decides per trajectory, and the loop samples 2" in cached.last.fallback[0]
        assert cached.last.evaluations.tolist() == [40, 40]
        cached.remove()
    assert len(counts) == 3


# -- families ------------------------------------------------------------------------------------


def test_a_family_without_look_back_is_tuned_certified_and_deployed() -> None:
    network, planner, _ = case()
    generator = torch.Generator().manual_seed(0)
    cond = torch.randn(140, 1, generator=generator)
    family = tune_without_look_back(planner, cond[:40], tolerance=0.02, progress=False)
    programs = [program for program in family.programs[1:] if isinstance(program, Program)]
    assert len(programs) == len(family) - 1 >= 2 and family.name == "frontier"
    assert all(not program.forecast.look_back for program in programs)
    assert all(isinstance(program.plan, Static) for program in programs)
    with pytest.raises(InputError, match=r"the program is a table: .*tune_without_look_back"):
        Interceptor(network, planner, few_steps(planner.sampler, sampler_states(planner.sampler)))
    certificate = muninn.calibrate(
        planner, cond[40:], tolerance=0.02, risk=0.1, family=family, progress=False
    )
    assert 2 <= certificate.realised[-1]["evaluations_mean"] < 40 and certificate.member > 0
    cached = intercept(network, planner, certificate, read=triple)
    noise = planner.draw_noise(1, generator=generator)
    for _ in range(2):
        clamping_loop(network, planner, cond[:1], noise)
    assert isinstance(certificate.program, Program)
    plan = certificate.program.plan
    assert isinstance(plan, Static) and cached.last.evaluations.tolist() == [len(plan.anchors)]
    with pytest.raises(InputError, match="at least one call"):
        tune_without_look_back(planner, 0, tolerance=0.02)


def test_a_program_that_looks_back_is_refused() -> None:
    network, planner, certificate = case(program=Program(Forecast("sample", 2), Static(PLAN)))
    with pytest.raises(InputError, match=r"looks back.*tune_without_look_back"):
        intercept(network, planner, certificate, read=triple)
    assert "forward" not in vars(network)
