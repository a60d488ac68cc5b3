"""Convolution by matrix products is the same convolution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from muninn_bench.networks.on_gpu import MatrixConv1d, use_matrix_products


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(5, 1, 2), (4, 2, 1), (1, 1, 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_equals_torch(kernel: int, stride: int, padding: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Conv1d(3, 7, kernel, stride=stride, padding=padding, bias=bias).double()
    x = torch.randn(2, 3, 16, dtype=torch.float64)
    assert torch.allclose(MatrixConv1d(plain)(x), plain(x), atol=1e-12)


def test_replaces_in_place_and_keeps_what_it_cannot_do() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1), nn.SiLU(), nn.Sequential(nn.Conv1d(4, 4, 3, groups=2))
    )
    x = torch.randn(2, 2, 9)
    before = network(x)
    use_matrix_products(network)
    assert isinstance(network[0], MatrixConv1d)
    assert isinstance(network[2][0], nn.Conv1d)  # type: ignore[index]
    assert torch.allclose(network(x), before, atol=1e-6)
