"""Convolutions stored channels last: the same function."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from muninn.engines.layout import channels_last
from muninn_bench.tasks.maze2d.planner import bundled_teacher


@given(
    width=st.integers(1, 7),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    groups=st.sampled_from((1, 2)),
    transposed=st.booleans(),
    bias=st.booleans(),
    length=st.integers(16, 33),
)
@settings(max_examples=40)
def test_every_convolution_is_the_same_function(
    width: int, stride: int, dilation: int, groups: int, transposed: bool, bias: bool, length: int
) -> None:
    torch.manual_seed(0)
    kind = nn.ConvTranspose1d if transposed else nn.Conv1d
    own = kind(
        4, 6, width, stride, padding=width // 2, dilation=dilation, groups=groups, bias=bias
    ).double()
    network = nn.Sequential(own)
    x = torch.randn(3, 4, length, dtype=torch.float64)
    found = channels_last(network)(x)
    torch.testing.assert_close(found, network(x), atol=1e-12, rtol=1e-12)
    assert found.stride(1) == 1 or found.shape[1] == 1  # channels are neighbours in memory


def test_the_bundled_network_is_the_same_function_and_untouched() -> None:
    network = bundled_teacher().network
    changed = channels_last(network)
    x, t = torch.randn(2, 256, 6), torch.tensor([3, 90])
    with torch.no_grad():
        torch.testing.assert_close(changed(x, t), network(x, t), atol=1e-4, rtol=1e-4)
    assert any(type(module) is nn.Conv1d for module in network.modules())
    assert not any(type(module) is nn.Conv1d for module in changed.modules())
    assert not any(value.requires_grad for value in changed.parameters())


@pytest.mark.parametrize("mode", ["circular", "reflect"])
def test_other_paddings_stay_as_they_are(mode: str) -> None:
    network = nn.Sequential(nn.Conv1d(2, 2, 3, padding=1, padding_mode=mode))
    assert type(channels_last(network)[0]) is nn.Conv1d
    same = nn.Sequential(nn.Conv1d(2, 2, 3, padding="same"))
    assert type(channels_last(same)[0]) is nn.Conv1d


def test_hooks_stay_where_they_are() -> None:
    network = nn.Sequential(nn.Conv1d(2, 2, 1), nn.Conv1d(2, 2, 1))
    network[0].register_forward_hook(lambda module, inputs, output: output + 1.0)
    nn.utils.parametrizations.weight_norm(network[1])
    changed, x = channels_last(network), torch.randn(1, 2, 5)
    torch.testing.assert_close(changed(x), network(x), atol=1e-6, rtol=1e-6)
    assert changed[0]._forward_hooks
