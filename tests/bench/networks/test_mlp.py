"""The perceptron's contract: its stem is the penultimate activation, its core one linear layer."""

from __future__ import annotations

import pytest
import torch

from muninn.errors import InputError
from muninn_bench.networks import MlpConfig, TrajectoryMlp


def test_the_core_is_linear_in_the_stem() -> None:
    torch.manual_seed(0)
    network = TrajectoryMlp(MlpConfig(width=32), horizon=4)
    x, t = torch.randn(3, 4, 6), torch.tensor([0, 5, 9])
    h = network.stem(x, t)
    assert h.shape == (3, 32)
    assert torch.equal(network.pool(h), h)
    expected = (h @ network.head.weight.T + network.head.bias).view(3, 4, 6)
    torch.testing.assert_close(network(x, t), expected)


def test_plan_and_timestep_reach_the_stem() -> None:
    torch.manual_seed(0)
    network = TrajectoryMlp(MlpConfig(width=32), horizon=4)
    x, t = torch.randn(2, 4, 6), torch.tensor([1, 8])
    assert not torch.allclose(network.stem(x, t), network.stem(x, t.flip(0)))
    assert not torch.allclose(network.stem(x, t), network.stem(x.flip(1), t))


def test_it_learns_the_noise_of_a_constant_plan() -> None:
    # With x0 = 0 the noise is x / s: one least-squares problem that a working network solves.
    torch.manual_seed(0)
    network = TrajectoryMlp(MlpConfig(channels=2, width=64, layers=2), horizon=3)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    t, losses = torch.zeros(128, dtype=torch.long), []
    for _ in range(150):
        noise = torch.randn(128, 3, 2)
        loss = (network(0.5 * noise, t) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.05 * sum(losses[:10])


@pytest.mark.parametrize("config", [MlpConfig(layers=0), MlpConfig(time_width=2)])
def test_impossible_shapes_are_refused(config: MlpConfig) -> None:
    with pytest.raises(InputError, match="at least 1 hidden layer"):
        TrajectoryMlp(config, horizon=4)
