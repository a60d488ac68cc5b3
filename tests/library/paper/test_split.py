"""A split is its denoiser: same numbers, the stem once, guidance only in the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from analytic import Counting, mixture_denoiser
from muninn.context import select
from muninn.errors import InputError
from muninn.model.denoiser import ClassifierFreeGuidance, GradientGuidance
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.paper.named_split import NamedSplit
from muninn.paper.split import (
    DEPTHS,
    GuidedSplit,
    InputSplit,
    NetworkSplit,
    Probe,
    Split,
    split_of,
)
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.diffuser import InpaintedDenoiser
from split_cases import Perceptron, counting

SCHEDULE = Schedule.cosine(20)
SAMPLER = ddim(SCHEDULE, 10, kind="sample")
ROWS = torch.tensor([3, 0, 4])


def networks() -> list[Any]:
    """Each network of ours and one without frames, tiny, with weights where they start at zero."""
    torch.manual_seed(0)
    unet = UnetConfig(widths=(8, 16), blocks=2, middle_blocks=1, time_width=16, heads=2)
    transformer = TransformerConfig(
        patch=2, width=16, blocks=4, heads=2, frame_width=8, time_width=16
    )
    made = [
        TemporalUnet(unet, SCHEDULE, 8),
        TrajectoryTransformer(transformer, SCHEDULE, 8),
        Perceptron(8),
    ]
    with torch.no_grad():
        for parameter in (parameter for network in made for parameter in network.parameters()):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return [network.eval() for network in made]


NETWORKS = pytest.mark.parametrize("network", networks(), ids=lambda one: type(one).__name__)


def plans(batch: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 8, 6, generator=generator), torch.full((batch,), 11)


class Conditioned(nn.Module):
    """A network with a context (batch, 2)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Linear(6 + 2, 16)
        self.head = nn.Linear(16, 6)

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        joined = torch.cat([x, context[:, None].expand(-1, x.shape[1], -1)], dim=-1)
        out: Tensor = self.head(self.embed(joined).tanh())
        return out + 0.01 * timestep[:, None, None]


# -- networks of ours ----------------------------------------------------------------------------


@NETWORKS
@pytest.mark.parametrize("depth", [1, 2])
@torch.no_grad()
def test_core_after_stem_is_the_network(network: Any, depth: int) -> None:
    split, (x, t) = NetworkSplit(network, depth), plans()
    hidden = split.stem(x, t, None)
    assert torch.equal(split.core(hidden, x, t, None), network(x, t))
    feature = split.feature(hidden, x)
    assert feature.dtype == torch.float32 and feature.shape[0] == 5 and feature.ndim == 2
    assert torch.equal(feature, network.pool(network.stem(x, t, depth=depth)))


@NETWORKS
@torch.no_grad()
def test_rows_of_hidden_are_the_hidden_of_those_rows(network: Any) -> None:
    split, (x, t) = NetworkSplit(network, 1), plans()
    hidden = select(split.stem(x, t, None), ROWS)
    own = split.stem(x[ROWS], t[ROWS], None)
    torch.testing.assert_close(hidden, own)
    part = split.core(hidden, x[ROWS], t[ROWS], None)
    torch.testing.assert_close(part, network(x, t)[ROWS], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_deeper_stem_leaves_less_to_the_core() -> None:
    for network in networks()[:2]:
        counts, (x, t) = counting(network), plans()
        work = []
        for depth in (1, 2):
            split = NetworkSplit(network, depth)
            hidden = split.stem(x, t, None)
            counts.clear()
            split.core(hidden, x, t, None)
            work.append(sum(counts.values()))
        assert work[0] > work[1] > 0


def test_features_of_half_precision_are_pooled_in_float32() -> None:
    class Half(nn.Module):
        def stem(self, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
            return x.half()

        def core(self, h: Tensor, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
            return x

        def pool(self, h: Tensor) -> Tensor:
            return h.sum(dim=1)

    x = torch.full((1, 3, 2), 30_000.0)  # the sum overflows float16
    split = NetworkSplit(Half(), 1)  # type: ignore[arg-type]
    assert torch.equal(split.feature(split.stem(x, x, None), x), torch.full((1, 2), 90_000.0))


def test_a_network_without_the_seam_is_told_what_it_lacks() -> None:
    class Lookalike(nn.Module):
        """Has layers of those names, as many vision networks do."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.pool = nn.Conv1d(1, 1, 1), nn.AvgPool1d(2)

    with pytest.raises(InputError, match=r"lacks the argument depth of stem, core; .* NamedSplit"):
        NetworkSplit(Lookalike(), 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"depth is 1 .* or 2, got 3"):
        NetworkSplit(networks()[0], 3)


# -- the input as a probe ------------------------------------------------------------------------


def test_the_input_probe_is_layer_norm_per_frame_averaged_over_time() -> None:
    x = torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(2))
    frames = x.double()
    centred = frames - frames.mean(-1, keepdim=True)
    normal = centred / (frames.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    split = InputSplit(lambda x, t, c: x)
    feature = split.feature(None, x)
    assert feature.dtype == torch.float32
    torch.testing.assert_close(feature.double(), normal.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(split.feature(None, 5.0 * x - 2.0), feature, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        split.feature(None, x[:, 0]).double(), normal[:, 0], atol=1e-5, rtol=0
    )
    torch.testing.assert_close(split.feature(None, x.view(4, 2, 4, 6)), feature)
    assert split.feature(None, x.half()).dtype == torch.float32


def test_the_input_probe_has_no_stem_and_the_whole_denoiser_as_core() -> None:
    inner = Counting(mixture_denoiser(SAMPLER, (8, 6)))
    split, x, t = (
        InputSplit(inner),
        torch.randn(5, 8, 6),
        torch.full((5,), SAMPLER.steps[4].timestep),
    )
    hidden = split.stem(x, t, None)
    split.feature(hidden, x)
    assert inner.rows == []
    assert torch.equal(
        split.core(select(hidden, ROWS), x[ROWS], t[ROWS], None),
        inner.inner(x[ROWS], t[ROWS], None),
    )
    assert inner.rows == [3]


@pytest.mark.parametrize("shape", [(4, 8, 1), (4,)])
def test_the_input_probe_needs_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="at least 2 channels"):
        InputSplit(lambda x, t, c: x).feature(None, torch.zeros(shape))


# -- guidance ------------------------------------------------------------------------------------


def dropped(context: Tensor) -> Tensor:
    return torch.zeros_like(context)


@torch.no_grad()
def test_classifier_free_guidance_splits_exactly_and_reuse_runs_no_core() -> None:
    network = Conditioned()
    counts = counting(network)
    guidance = ClassifierFreeGuidance(network, dropped, 2.5)
    (x, t), context = plans(), torch.randn(5, 2)
    expected = guidance(x, t, context)
    split = GuidedSplit(guidance, NamedSplit(network, network, "embed", "tokens"))
    counts.clear()
    hidden = split.stem(x, t, context)
    feature = split.feature(hidden, x)
    assert counts == {"": 1, "embed": 1}  # conditional stem only: a reused step ends here
    joined = torch.cat([x, context[:, None].expand(-1, 8, -1)], dim=-1)
    assert torch.equal(feature, network.embed(joined).mean(dim=1))
    counts.clear()
    assert torch.equal(split.core(hidden, x, t, context), expected)
    # the conditional core, and the unconditional forward whole; the conditional embed is not rerun
    assert counts == {"": 2, "embed": 1, "head": 2}
    own = (x[ROWS], t[ROWS], context[ROWS])
    assert torch.equal(split.core(select(hidden, ROWS), *own), guidance(*own))


@torch.no_grad()
def test_the_gradient_is_computed_only_in_the_core() -> None:
    network, gradients = networks()[0], []

    def objective(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        x.register_hook(lambda gradient: gradients.append(len(gradient)))
        return -(x**2).flatten(1).sum(dim=1)

    guidance = GradientGuidance(
        InpaintedDenoiser(network), objective, 0.3, ddim(SCHEDULE, kind="sample")
    )
    (x, t), split = plans(), split_of(guidance)
    assert isinstance(split, GuidedSplit) and isinstance(split.split, NetworkSplit)
    hidden = split.stem(x, t, None)
    assert torch.equal(split.feature(hidden, x), NetworkSplit(network, 1).feature(hidden, x))
    assert gradients == []
    predicted = split.core(hidden, x, t, None)
    assert gradients == [5]
    assert torch.equal(predicted, guidance(x, t, None))
    assert not torch.equal(predicted, network(x, t))


@torch.no_grad()
def test_guidance_around_guidance_splits_at_the_innermost_denoiser() -> None:
    network = Conditioned()
    inner = ClassifierFreeGuidance(network, dropped, 1.5)
    outer = GradientGuidance(inner, lambda x, t, c: x.sum((1, 2)) * c[:, 0], 0.3, SAMPLER)
    (x, _), context = plans(), torch.randn(5, 2)
    t = torch.full((5,), SAMPLER.steps[3].timestep)
    named = NamedSplit(network, network, "embed", "tokens")
    split = GuidedSplit(outer, GuidedSplit(inner, named))
    hidden = split.stem(x, t, context)
    assert torch.equal(split.core(hidden, x, t, context), outer(x, t, context))
    assert torch.equal(split.feature(hidden, x), named.feature(hidden, x))


def test_guidance_without_guide_is_refused() -> None:
    with pytest.raises(InputError, match=r"int has no method guide\("):
        GuidedSplit(3, InputSplit(lambda x, t, c: x))  # type: ignore[arg-type]


# -- split_of ------------------------------------------------------------------------------------


@NETWORKS
@pytest.mark.parametrize("depth", DEPTHS)
@torch.no_grad()
def test_split_of_finds_the_network_under_every_wrapping(network: Any, depth: str) -> None:
    (x, t), wrapped = plans(), InpaintedDenoiser(network)
    free = ClassifierFreeGuidance(wrapped, lambda context: None, 2.0)
    gradient = GradientGuidance(free, lambda x, t, c: x.sum((1, 2)), 0.2, ddim(SCHEDULE))
    for denoiser in (network, wrapped, free, gradient):
        split = split_of(denoiser, depth)
        hidden = split.stem(x, t, None)
        expected = network(x, t) if denoiser is network else denoiser(x, t, None)
        assert torch.equal(split.core(hidden, x, t, None), expected)
        inner = InputSplit(wrapped) if depth == "input" else NetworkSplit(network, int(depth[-1]))
        own = inner.feature(inner.stem(x, t, None), x)  # type: ignore[arg-type]
        assert torch.equal(split.feature(hidden, x), own)


@torch.no_grad()
def test_a_bare_network_is_split_under_gradient_guidance_too() -> None:
    network = networks()[0]
    objective, sampler = (lambda x, t, c: x.sum((1, 2))), ddim(SCHEDULE, kind="sample")
    bare = GradientGuidance(network, objective, 0.2, sampler)
    full = GradientGuidance(InpaintedDenoiser(network), objective, 0.2, sampler)
    x, t = plans()
    for depth in DEPTHS:
        split = split_of(bare, depth)
        assert torch.equal(split.core(split.stem(x, t, None), x, t, None), full(x, t, None))


@dataclass(frozen=True)
class Scaled:
    """A wrapper that does more than call its network."""

    network: nn.Module
    scale: float = 2.0

    def __call__(self, x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        out: Tensor = self.scale * self.network(x, timestep)
        return out


@pytest.mark.parametrize(
    "denoiser",
    [lambda x, t, c: x, nn.Linear(6, 6), Scaled(networks()[0]), InpaintedDenoiser(nn.Linear(6, 6))],
    ids=["function", "foreign module", "wrapper with state", "wrapper of a foreign module"],
)
def test_an_unknown_stem_names_the_three_ways_out(denoiser: Any) -> None:
    for depth in ("stem-1", "stem-2"):
        with pytest.raises(InputError, match=r"(?s)NetworkSplit.*NamedSplit.*InputSplit"):
            split_of(denoiser, depth)
    assert isinstance(split_of(denoiser, "input"), InputSplit)


def test_an_unknown_depth_or_score_lists_those_there_are() -> None:
    with pytest.raises(InputError, match=r"unknown probe depth 'stem-3'; .*stem-1, stem-2, input"):
        split_of(networks()[0], "stem-3")
    split: Split = NetworkSplit(networks()[0])
    assert Probe(split).score == "relative_l1"
    with pytest.raises(InputError, match=r"unknown score 'l1'; .*relative_l1, cosine, l2"):
        Probe(split, "l1")


def test_a_plan_through_the_parts_is_the_plan_of_the_planner() -> None:
    denoiser = InpaintedDenoiser(networks()[1])
    sampler = ddim(SCHEDULE, 5, kind="epsilon", clip=2.0)
    split = split_of(denoiser, "stem-2")
    whole = Planner(denoiser, sampler, (8, 6))
    parts = Planner(lambda x, t, c: split.core(split.stem(x, t, c), x, t, c), sampler, (8, 6))
    noise = whole.draw_noise(seeds=[0, 1])
    assert torch.equal(whole.sample(noise=noise), parts.sample(noise=noise))
