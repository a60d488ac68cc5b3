"""The shipped planner: diffusers' DDIM on an epsilon network, successful, with two real ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from few_step_cases import few_steps
from muninn.certify.metrics import measure, resolve
from muninn.model.planner import Planner
from muninn_bench.networks.teacher import load_teacher
from muninn_bench.planners.diffuser import inpaint_ends
from muninn_bench.task import Stream, context_rows
from muninn_bench.tasks.discs.task import NETWORK, TASK

FILE = Path(__file__).parents[4] / "models" / "discs" / "teacher.safetensors"
CALLS = 60


@pytest.fixture(scope="module")
def planner() -> Planner:
    return TASK.planner("diffuser")


@pytest.fixture(scope="module")
def contexts() -> Tensor:
    return context_rows(TASK, "diffuser", Stream.TEST, CALLS, 0)


@pytest.fixture(scope="module")
def plans(planner: Planner, contexts: Tensor) -> tuple[Tensor, Tensor]:
    """Two plans for every problem, from different noise."""
    first, second = range(CALLS), range(1000, 1000 + CALLS)
    return sampled(planner, contexts, first), sampled(planner, contexts, second)


def sampled(planner: Planner, contexts: Tensor, seeds: range) -> Tensor:
    return planner.sample(contexts, noise=planner.draw_noise(seeds=list(seeds)))


def goes_left(plans: Tensor) -> np.ndarray:
    ways = TASK.positions("diffuser", plans)
    return ways[np.arange(len(ways)), np.abs(ways[:, :, 0]).argmin(axis=1), 1] > 0.0


def test_the_network_is_a_small_unet_for_the_noise() -> None:
    teacher = load_teacher(FILE)
    assert FILE.stat().st_size <= 3_000_000
    assert (teacher.predicts, teacher.clip, teacher.schedule.steps) == ("epsilon", 1.0, 100)
    assert teacher.network.config == NETWORK
    count = sum(parameter.numel() for parameter in teacher.network.parameters())
    assert 400_000 <= count <= 600_000


@torch.no_grad()
def test_the_planner_is_diffusers_own_ddim_loop(planner: Planner, contexts: Tensor) -> None:
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(100, beta_schedule="squaredcos_cap_v2", clip_sample=True)
    scheduler.set_timesteps(100)
    network, ends = load_teacher(FILE).network, contexts[:8]
    noise = planner.draw_noise(seeds=list(range(8)))
    x = inpaint_ends(noise.initial.clone(), ends)
    for timestep in scheduler.timesteps:
        prediction = network(x, timestep.expand(len(x)))
        x = inpaint_ends(scheduler.step(prediction, timestep, x).prev_sample, ends)
    # Only float32 rounding apart.
    torch.testing.assert_close(planner.sample(ends, noise=noise), x, atol=1e-5, rtol=0.0)


def test_full_compute_reaches_the_goal_past_the_disc(plans: tuple[Tensor, Tensor]) -> None:
    results = []
    for found in plans:
        for number, plan in enumerate(found):
            episode = TASK.begin("diffuser", Stream.TEST, number)
            episode.follow(plan)
            results.append(episode.result().success)
    assert np.mean(results) >= 0.95


def test_other_noise_takes_the_other_way(plans: tuple[Tensor, Tensor]) -> None:
    one, other = (goes_left(found) for found in plans)
    assert 0.3 <= one.mean() <= 0.7
    assert 0.3 <= (one != other).mean() <= 0.7


def test_few_steps_are_not_full_compute(
    planner: Planner, contexts: Tensor, plans: tuple[Tensor, Tensor]
) -> None:
    fast = sampled(few_steps(planner, 10), contexts, range(CALLS))
    metric = resolve(TASK.metric("diffuser"))[1]
    assert TASK.tolerance == 0.01
    assert np.mean(np.array(measure(metric, plans[0], fast)) > TASK.tolerance) >= 0.5
    assert (goes_left(plans[0]) != goes_left(fast)).any()
