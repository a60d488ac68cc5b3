"""Inpainting and the plain chain against a denoiser whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from muninn.model.schedule import Schedule
from muninn_bench.networks.teacher import Teacher
from muninn_bench.planners.diffuser import inpaint_ends
from muninn_bench.tasks.maze2d.maze import sample_problems
from muninn_bench.tasks.maze2d.planner import maze_contexts, sample_plans

PROBLEMS = sample_problems(5, seed=0)


class Constant(nn.Module):
    """Predict one value everywhere, and keep the inputs."""

    predicts = "sample"

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        self.inputs.append(x.clone())
        return torch.full_like(x, self.value)


def constant_teacher(value: float) -> Teacher:
    limit = torch.tensor([5.0, 4.0, 4.0, 4.0, 1.0, 1.0])
    network = Constant(value)
    return Teacher(network, -limit, limit, 16, Schedule.cosine(10), 0.03)  # type: ignore[arg-type]


def test_inpainting_sets_states_only() -> None:
    ends = torch.stack([torch.ones(2, 4), -torch.ones(2, 4)], dim=1)
    out = inpaint_ends(torch.zeros(2, 8, 6), ends)
    assert torch.equal(out[:, 0, :4], ends[:, 0])
    assert torch.equal(out[:, -1, :4], ends[:, 1])
    assert not out[:, 1:-1].any()
    assert not out[:, :, 4:].any()


@pytest.mark.parametrize(("predicted", "kept"), [(0.5, 0.5), (3.0, 1.0), (-2.0, -1.0)])
def test_the_chain_ends_at_the_clipped_prediction_between_its_ends(
    predicted: float, kept: float
) -> None:
    teacher = constant_teacher(predicted)
    plans = teacher.normalise(torch.tensor(sample_plans(teacher, PROBLEMS, seed=0)))
    start, goal = maze_contexts(teacher, PROBLEMS).unbind(dim=1)
    torch.testing.assert_close(plans[:, 0, :4].float(), start)
    torch.testing.assert_close(plans[:, -1, :4].float(), goal)
    torch.testing.assert_close(plans[:, 1:-1], torch.full_like(plans[:, 1:-1], kept))


def test_every_evaluation_sees_the_endpoints() -> None:
    teacher = constant_teacher(0.0)
    sample_plans(teacher, PROBLEMS, seed=0, steps=4)
    start, goal = maze_contexts(teacher, PROBLEMS).unbind(dim=1)
    inputs = teacher.network.inputs
    assert len(inputs) == 4
    for x in inputs:
        assert torch.equal(x[:, 0, :4], start)
        assert torch.equal(x[:, -1, :4], goal)


def test_noise_does_not_depend_on_the_batch() -> None:
    teacher = constant_teacher(0.0)
    sample_plans(teacher, PROBLEMS, seed=3, batch=2)
    parts = torch.cat(teacher.network.inputs[::10])
    whole = constant_teacher(0.0)
    sample_plans(whole, PROBLEMS, seed=3, batch=5)
    assert torch.equal(parts, whole.network.inputs[0])


def test_problems_become_endpoints_at_rest() -> None:
    teacher = constant_teacher(0.0)
    ends = teacher.unnormalise(maze_contexts(teacher, PROBLEMS))
    start, goal = (end.numpy() for end in ends.unbind(dim=1))
    np.testing.assert_allclose(start, [problem.start for problem in PROBLEMS], atol=1e-5)
    np.testing.assert_allclose(goal[:, :2], [problem.goal for problem in PROBLEMS], atol=1e-5)
    np.testing.assert_allclose(goal[:, 2:], 0.0, atol=1e-6)
