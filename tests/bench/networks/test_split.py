"""Stem and core: at any depth, one after the other is the network itself, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from muninn.model.schedule import Schedule
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig

SCHEDULE = Schedule.cosine(20)
HORIZON = 16


def unet(**changes: object) -> TemporalUnet:
    settings: dict[str, object] = {
        "widths": (8, 16), "blocks": 2, "middle_blocks": 1, "time_width": 16, "heads": 2,
    }  # fmt: skip
    return TemporalUnet(UnetConfig(**{**settings, **changes}), SCHEDULE, HORIZON)  # type: ignore[arg-type]


def transformer() -> TrajectoryTransformer:
    config = TransformerConfig(patch=4, width=16, blocks=8, heads=2, frame_width=8, time_width=16)
    return TrajectoryTransformer(config, SCHEDULE, HORIZON)


def rough(build: Callable[[], nn.Module]) -> nn.Module:
    """Return a network none of whose layers is zero, so that a skipped layer shows."""
    torch.manual_seed(0)
    network = build()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval().requires_grad_(False)


NETWORKS: list[Callable[[], nn.Module]] = [unet, transformer]
X, T = torch.randn(3, HORIZON, 6, generator=torch.Generator().manual_seed(1)), torch.arange(3) * 9


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("build", NETWORKS)
def test_core_after_stem_is_the_network(build: Callable[[], nn.Module], depth: int) -> None:
    network = rough(build)
    assert torch.equal(network.core(network.stem(X, T, depth), X, T, depth), network(X, T))


@pytest.mark.parametrize("build", NETWORKS)
def test_depth_one_is_the_default(build: Callable[[], nn.Module]) -> None:
    network = rough(build)
    h = network.stem(X, T)
    assert torch.equal(h, network.stem(X, T, 1))
    assert torch.equal(network.core(h, X, T), network.core(h, X, T, 1))


@pytest.mark.parametrize("build", NETWORKS)
def test_the_deeper_stem_holds_more_layers(build: Callable[[], nn.Module]) -> None:
    network = rough(build)
    shallow, deep = network.stem(X, T, 1), network.stem(X, T, 2)
    assert shallow.shape == deep.shape
    assert not torch.allclose(shallow, deep)
    assert not torch.allclose(network.core(shallow, X, T, 2), network(X, T))


def test_layers_run_by_each_stem() -> None:
    network, ran = rough(transformer), list[int]()
    for place, block in enumerate(network.blocks):
        block.register_forward_hook(lambda *_, place=place: ran.append(place))
    for depth, expected in ((1, [0, 1]), (2, [0, 1, 2, 3])):
        ran.clear()
        h = network.stem(X, T, depth)
        assert ran == expected
        ran.clear()
        network.core(h, X, T, depth)
        assert ran == list(range(len(expected), 8))


def test_the_unet_stems_end_before_the_time_axis_is_halved() -> None:
    network, ran = rough(unet), list[str]()
    network.down[0].register_forward_hook(lambda *_: ran.append("level"))
    network.coarsen[0].register_forward_hook(lambda *_: ran.append("coarsen"))
    network.stem(X, T, 1)
    assert ran == []
    h = network.stem(X, T, 2)
    assert ran == ["level"]
    network.core(h, X, T, 2)
    assert ran == ["level", "coarsen"]


def test_a_unet_of_one_level_has_one_stem() -> None:
    network = rough(lambda: unet(widths=(8,)))
    assert torch.equal(network.stem(X, T, 1), network.stem(X, T, 2))
    assert torch.equal(network.core(network.stem(X, T, 2), X, T, 2), network(X, T))


@pytest.mark.parametrize(
    ("build", "axis"), [(unet, 2), (transformer, 1)], ids=["over frames", "over tokens"]
)
def test_pooling_is_the_mean_over_time(build: Callable[[], nn.Module], axis: int) -> None:
    network = rough(build)
    h = network.stem(X, T)
    torch.testing.assert_close(network.pool(h), h.sum(dim=axis) / h.shape[axis])
