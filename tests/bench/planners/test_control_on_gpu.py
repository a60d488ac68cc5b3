"""Planners that act, on a GPU: plans as on the CPU, up to rounding, and training as it is done."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import control_cases as cases
from muninn_bench.networks.agent import load_agent
from muninn_bench.networks.on_gpu import moved
from muninn_bench.networks.trainer import train


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
