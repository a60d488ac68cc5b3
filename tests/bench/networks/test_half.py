"""Half precision in the layers of a network, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from latency_cases import CONFIG
from muninn.model.schedule import Schedule
from muninn_bench.networks.half import halve
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet


@pytest.mark.parametrize("kind", ["unet", "transformer"])
def test_half_precision_stays_inside_the_network(kind: str) -> None:
    torch.manual_seed(0)
    schedule, small = Schedule.cosine(20), TransformerConfig(width=24, blocks=4, heads=2)

    def build() -> TemporalUnet | TrajectoryTransformer:
        torch.manual_seed(1)
        if kind == "unet":
            return TemporalUnet(CONFIG, schedule, 16).requires_grad_(False)
        return TrajectoryTransformer(small, schedule, 16).requires_grad_(False)

    whole, half = build(), halve(build())
    x, t = torch.randn(2, 16, 6), torch.tensor([3, 17])
    found = half(x, t)
    assert found.dtype == torch.float32
    assert {p.dtype for p in half.time.parameters()} == {torch.float32}
    assert half.project_in.weight.dtype == half.project_out.weight.dtype == torch.float16
    assert half.skip.dtype == torch.float32
    assert not torch.equal(found, whole(x, t))  # it did compute in half precision
    torch.testing.assert_close(found, whole(x, t), atol=5e-3, rtol=0.0)
    split = half.core(half.stem(x, t), x, t)  # as the paper's probe calls it
    assert torch.equal(split, found)
