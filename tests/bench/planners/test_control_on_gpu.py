"""Planners that act, on a GPU: plans as on the CPU, up to rounding, and training as it is done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import control_cases as cases
from muninn.paper.split import split_of
from muninn_bench.networks.agent import load_agent
from muninn_bench.networks.on_gpu import moved
from muninn_bench.networks.trainer import train
from muninn_bench.studies.suite.entrants import CapturedSplit


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_plans_and_actions_are_those_of_the_cpu_up_to_rounding(name: str) -> None:
    policy = cases.policy(name)
    there = moved(policy.planner, "cuda")
    contexts = torch.rand(5, cases.OBSERVATION) - 0.5
    noise, drawn = (each.draw_noise(seeds=range(5)) for each in (policy.planner, there))
    plans = policy.planner.sample(contexts, noise=noise)
    found = there.sample(contexts.cuda(), noise=drawn)
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), plans, atol=1e-3, rtol=0.0)
    actions = policy.act(found, contexts)
    assert actions.device.type == "cuda"
    torch.testing.assert_close(actions.cpu(), policy.act(plans, contexts), atol=1e-3, rtol=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_a_teacher_is_trained_on_a_gpu(name: str, tmp_path: Path) -> None:
    lesson = cases.LESSONS[name](
        cases.RECIPES[name], "walk", cases.walks(), cases.LIMIT, torch.device("cuda"), 0
    )
    fast = name != "diffusion-ql"  # its values are not to be rounded
    path = train(lesson, cases.settings(tmp_path, device="cuda", fast=fast))
    recipe = cases.RECIPES[name]
    agent = load_agent(path, "walk", recipe.planner, recipe.networks())
    assert all(torch.isfinite(each).all() for each in agent.networks.state_dict().values())


@pytest.mark.gpu
def test_a_captured_split_is_the_denoiser_up_to_rounding() -> None:
    planner = cases.policy("diffuser").planner
    there = moved(planner, "cuda", graphs=False)
    split = CapturedSplit(split_of(there.denoiser))
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 5, 3):
        x = torch.randn(rows, *planner.shape, generator=generator)
        told, context = torch.full((rows,), 4), torch.rand(rows, cases.OBSERVATION)
        given = [each.cuda() for each in (x, told, context)]
        hidden = split.stem(*given)
        found = split.core(hidden, *given)
        expected = planner.denoiser(x, told, context)
        torch.testing.assert_close(found.cpu(), expected, atol=1e-4, rtol=1e-4)
        assert split.feature(hidden, given[0]).shape[0] == rows
