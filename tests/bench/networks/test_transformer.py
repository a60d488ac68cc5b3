"""The Transformer's contract: shapes, the output scaling, what sees what, and its refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig

TINY = TransformerConfig(patch=4, width=16, blocks=4, heads=2, frame_width=8, time_width=16)
SCHEDULE = Schedule.cosine(20)


def tiny_network(horizon: int = 16, seed: int = 0) -> TrajectoryTransformer:
    """Return a network whose zero-initialised layers were given weights too."""
    torch.manual_seed(seed)
    network = TrajectoryTransformer(TINY, SCHEDULE, horizon)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return network.eval()


def test_tokens_are_patches_of_frames() -> None:
    network, x, t = tiny_network(), torch.randn(3, 16, 6), torch.tensor([0, 7, 19])
    assert network.stem(x, t).shape == (3, 4, 16)
    assert network.pool(network.stem(x, t)).shape == (3, 16)
    assert network(x, t).shape == x.shape


def test_plans_of_a_batch_do_not_see_each_other() -> None:
    network, x, t = tiny_network(), torch.randn(4, 16, 6), torch.tensor([1, 5, 9, 19])
    alone = torch.cat([network(x[i : i + 1], t[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(network(x, t), alone, atol=1e-5, rtol=1e-4)


def test_every_frame_sees_the_whole_horizon() -> None:
    network = tiny_network()
    x = torch.randn(1, 16, 6, requires_grad=True)
    network(x, torch.tensor([10]))[0, 0].sum().backward()
    assert x.grad is not None
    assert (x.grad[0].abs().sum(dim=1) > 0).all()


def test_the_timestep_reaches_every_block() -> None:
    network, x = tiny_network(), torch.randn(1, 16, 6)
    h = torch.randn(1, 4, 16)
    one, other = (
        network.modulate(network.time(torch.tensor([t]))).unflatten(-1, (6, 16)) for t in (3, 15)
    )
    for block in network.blocks:
        assert not torch.allclose(block(h, one), block(h, other))
    assert not torch.allclose(network(x, torch.tensor([3])), network(x, torch.tensor([15])))


def test_output_scaling_is_the_best_linear_estimate_of_the_noise() -> None:
    # For x = a x0 + s noise with Var x0 = 1, least squares gives E[noise x] / E[x^2] and the
    # residual's standard deviation is the gain.
    network = tiny_network()
    signal = torch.from_numpy(SCHEDULE.alpha_bar)
    second_moment = signal + (1 - signal)
    best = (1 - signal).sqrt() / second_moment
    residual = 1 - best * (1 - signal).sqrt()
    torch.testing.assert_close(network.skip, best.float())
    torch.testing.assert_close(network.gain.square(), residual.float())


def test_an_error_of_the_correction_is_not_amplified_in_the_plan() -> None:
    # x0 = (x - s eps) / a, so moving F by d must move the plan by s * d at every timestep, also
    # where 1 / a is huge.
    network, x = tiny_network(), torch.randn(1, 16, 6)
    shift = 0.25
    for t in range(20):
        step = torch.tensor([t])
        before = network(x, step).double()
        with torch.no_grad():
            network.project_out.bias.add_(shift)
        after = network(x, step).double()
        with torch.no_grad():
            network.project_out.bias.sub_(shift)
        signal = float(SCHEDULE.alpha_bar[t]) ** 0.5
        spread = (1 - signal**2) ** 0.5
        moved = spread / signal * (after - before)
        expected = torch.full_like(moved, spread * shift)
        # float32 noise predictions of size 4 carry 2e-7 each, which the sampler multiplies by s/a.
        torch.testing.assert_close(moved, expected, atol=1e-6 * spread / signal, rtol=1e-4)


def test_an_untrained_block_changes_nothing() -> None:
    torch.manual_seed(0)
    network = TrajectoryTransformer(TINY, SCHEDULE, 16)
    h = torch.randn(2, 4, 16)
    modulation = network.modulate(network.time(torch.tensor([3, 9]))).unflatten(-1, (6, 16))
    for block in network.blocks:
        assert torch.equal(block(h, modulation), h)


@pytest.mark.parametrize(
    ("change", "horizon", "complaint"),
    [
        ({}, 18, "horizon 18"),
        ({"heads": 3}, 16, "3 heads"),
        ({"kernel": 4}, 16, "odd"),
        ({"blocks": 6}, 16, "multiple of 4"),
        ({"blocks": 0}, 16, "multiple of 4"),
    ],
)
def test_impossible_shapes_are_refused(
    change: dict[str, int], horizon: int, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        TrajectoryTransformer(replace(TINY, **change), SCHEDULE, horizon)
