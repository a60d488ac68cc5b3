"""The network's contract: shapes, the stem seam, output scaling, independence of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn_bench.networks.unet import DATA_SPREAD, TemporalUnet, UnetConfig

TINY = UnetConfig(widths=(8, 16), blocks=1, middle_blocks=1, time_width=16, heads=2)
SCHEDULE = Schedule.cosine(20)


def tiny_network(horizon: int = 16, seed: int = 0) -> TemporalUnet:
    """Return a network whose zero-initialised layers were given weights too."""
    torch.manual_seed(seed)
    network = TemporalUnet(TINY, SCHEDULE, horizon)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


def test_forward_is_core_after_stem() -> None:
    network, x, t = tiny_network(), torch.randn(3, 16, 6), torch.tensor([0, 7, 19])
    features = network.stem(x, t)
    assert features.shape == (3, 8, 16)
    torch.testing.assert_close(network.core(features, x, t), network(x, t))
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


def test_output_scaling_is_the_best_linear_denoiser() -> None:
    # For x = a x0 + b noise with Var x0 = s^2, least squares gives E[x0 x] / E[x^2] and the
    # residual's standard deviation is the gain.
    network = tiny_network()
    signal = torch.from_numpy(SCHEDULE.alpha_bar)
    second_moment = signal * DATA_SPREAD**2 + 1 - signal
    best = signal.sqrt() * DATA_SPREAD**2 / second_moment
    residual = DATA_SPREAD**2 - best * signal.sqrt() * DATA_SPREAD**2
    torch.testing.assert_close(network.skip, best.float())
    torch.testing.assert_close(network.gain.square(), residual.float())


def test_a_network_for_the_noise_gives_what_its_layers_give() -> None:
    network = TemporalUnet(replace(TINY, predicts="epsilon"), SCHEDULE, 16).eval()
    for parameter in network.project_out.parameters():
        torch.nn.init.constant_(parameter, 0.0)
    torch.nn.init.constant_(network.project_out.bias, 0.25)
    x, t = torch.randn(3, 16, 6), torch.tensor([0, 7, 19])
    assert (network.predicts, tiny_network().predicts) == ("epsilon", "sample")
    torch.testing.assert_close(network(x, t), torch.full_like(x, 0.25))


def test_an_untrained_block_changes_nothing() -> None:
    torch.manual_seed(0)
    network = TemporalUnet(TINY, SCHEDULE, 16)
    h, time = torch.randn(2, 8, 16), torch.randn(2, 16)
    bias = network.first.convolve_out.bias[None, :, None]
    torch.testing.assert_close(network.first(h, time), h + bias)


@pytest.mark.parametrize(
    ("config", "horizon"),
    [
        (TINY, 15),
        (UnetConfig(widths=(8, 12)), 16),
        (UnetConfig(widths=(8, 16), heads=3), 16),
        (replace(TINY, predicts="v"), 16),
    ],
)
def test_impossible_shapes_are_refused(config: UnetConfig, horizon: int) -> None:
    with pytest.raises(InputError):
        TemporalUnet(config, SCHEDULE, horizon)
