"""A probe by submodule name: same numbers as the explicit split, the stem once, nothing left."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from muninn.context import select
from muninn.errors import DenoiserError, InputError
from muninn.model.schedule import Schedule
from muninn.paper.named_split import NamedSplit
from muninn.paper.split import NetworkSplit
from muninn_bench.networks.transformer import TrajectoryTransformer, TransformerConfig
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.planners.diffuser import InpaintedDenoiser
from split_cases import (
    DIM,
    HORIZON,
    PARTS,
    Foreign,
    Perceptron,
    Repeated,
    attributes,
    counting,
    first,
    inputs,
)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Planners run without gradients."""
    with torch.no_grad():
        yield


# -- against the explicit split of our own networks ----------------------------------------------


class AtDepth(nn.Module):
    """A network of ours whose forward meets its parts at the given depth."""

    def __init__(self, network: Any, depth: int) -> None:
        super().__init__()
        self.network, self.depth = network, depth

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        hidden = self.network.stem(x, t, self.depth)
        out: Tensor = self.network.core(hidden, x, t, self.depth)
        return out


def ours() -> list[tuple[nn.Module, int, str, str]]:
    """(network, depth, name of the last submodule of that stem, pool)."""
    torch.manual_seed(0)
    schedule = Schedule.cosine(20)
    unet = UnetConfig(widths=(8, 16), blocks=2, middle_blocks=1, time_width=16, heads=2)
    tokens = TransformerConfig(patch=2, width=16, blocks=4, heads=2, frame_width=8, time_width=16)
    cases: list[tuple[nn.Module, int, str, str]] = [
        (TemporalUnet(unet, schedule, HORIZON), 1, "first", "time_last"),
        (TemporalUnet(unet, schedule, HORIZON), 2, "down.0", "time_last"),
        (TrajectoryTransformer(tokens, schedule, HORIZON), 1, "blocks.0", "tokens"),
        (TrajectoryTransformer(tokens, schedule, HORIZON), 2, "blocks.1", "tokens"),
        (Perceptron(HORIZON), 1, "hidden", "none"),
    ]
    for network, *_ in cases:
        for parameter in network.parameters():
            parameter.requires_grad_(False).add_(0.1 * torch.randn_like(parameter))
    return cases


OURS = pytest.mark.parametrize(
    ("network", "depth", "name", "pool"),
    ours(),
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)


@OURS
@pytest.mark.parametrize("rows", PARTS, ids=str)
def test_the_named_probe_is_bit_identical_to_the_explicit_split(
    network: Any, depth: int, name: str, pool: str, rows: Tensor | slice
) -> None:
    explicit = NetworkSplit(network, depth)
    whole = AtDepth(network, depth)
    named = NamedSplit(InpaintedDenoiser(whole), whole, f"network.{name}", pool)
    x, t, _ = inputs()
    mine, theirs = named.stem(x, t, None), explicit.stem(x, t, None)
    assert torch.equal(named.feature(mine, x), explicit.feature(theirs, x))
    mine, theirs, own = select(mine, rows), select(theirs, rows), (x[rows], t[rows], None)
    feature = named.feature(mine, x[rows])
    assert torch.equal(feature, explicit.feature(theirs, x[rows]))
    assert feature.dtype == torch.float32
    found, expected = named.core(mine, *own), explicit.core(theirs, *own)
    if rows is PARTS[-1]:  # computed in the order of the stem
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(found, expected)


@OURS
def test_the_stem_runs_once(network: Any, depth: int, name: str, pool: str) -> None:
    network = copy.deepcopy(network)
    module, counts = AtDepth(network, depth), counting(network)
    x, t, _ = inputs()
    module(x, t)
    whole = Counter(counts)

    def difference(part: Callable[[], Any]) -> Counter[str]:
        counts.clear()
        part()
        return Counter(counts)

    named = NamedSplit(InpaintedDenoiser(module), module, f"network.{name}", pool)
    explicit_stem = difference(lambda: network.stem(x, t, depth))
    assert difference(lambda: named.stem(x, t, None)) == explicit_stem
    hidden = named.stem(x, t, None)
    for rows in (slice(None), torch.tensor([1, 3])):
        part = select(hidden, rows)
        core = difference(lambda part=part, rows=rows: named.core(part, x[rows], t[rows], None))
        assert core == whole - explicit_stem  # together one forward, not a call more
        assert not any(module == name or module.startswith(f"{name}.") for module in core)


# -- a foreign network, with all the habits of such ----------------------------------------------


def foreign_names() -> list[str]:
    """Every submodule of the foreign network that is called."""
    silent = {"", "encoder", "decoder"}
    return [name for name, _ in Foreign().named_modules() if name not in silent]


# The table itself has no batch, and cannot be a probe.
PROBES = [name for name in foreign_names() if not name.startswith("position")]


@pytest.mark.parametrize("name", PROBES)
def test_any_submodule_can_be_the_probe_in_batches_and_parts(name: str) -> None:
    network, (x, t, context) = Foreign(), inputs()
    seen: list[Any] = []
    hook = network.get_submodule(name).register_forward_hook(
        lambda module, args, output: seen.append(copy.deepcopy(output))
    )
    whole = network(x, t, context)
    hook.remove()
    split = NamedSplit(network, network, name, first)
    hidden = split.stem(x, t, context)
    assert torch.equal(split.feature(hidden, x), first(seen[0]))
    assert torch.equal(split.core(hidden, x, t, context), whole)
    for rows in PARTS:
        own = select((x, t, context), rows)
        part = split.core(select(hidden, rows), *own)
        torch.testing.assert_close(part, whole[rows], rtol=1e-5, atol=1e-6)
        assert torch.equal(split.feature(select(hidden, rows), own[0]), first(seen[0])[rows])


def test_the_core_can_run_again_from_the_same_hidden() -> None:
    network, (x, t, context) = Foreign(), inputs()
    split = NamedSplit(network, network, "encoder.a", first)
    hidden = split.stem(x, t, context)
    feature = split.feature(hidden, x).clone()
    expected = network(x, t, context)
    for _ in range(2):
        assert torch.equal(split.core(hidden, x, t, context), expected)
    assert torch.equal(split.feature(hidden, x), feature)


@pytest.mark.parametrize("rows", [torch.tensor([3]), torch.tensor([6, 1])], ids=str)
def test_a_table_as_long_as_the_batch_is_not_taken_for_rows(rows: Tensor) -> None:
    # one row of the table would broadcast silently
    network, (x, t, context) = Foreign(), inputs(HORIZON)
    split = NamedSplit(network, network, "encoder.b", first)
    hidden = split.stem(x, t, context)
    own = select((x, t, context), rows)
    part = split.core(select(hidden, rows), *own)
    torch.testing.assert_close(part, network(*own), rtol=1e-5, atol=1e-6)


# -- habits of torch -----------------------------------------------------------------------------


def test_the_fused_path_of_transformer_layers_stays_in_use() -> None:
    torch.manual_seed(8)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    network = nn.Sequential(nn.Linear(DIM, 16), nn.TransformerEncoder(layer, 3), nn.Linear(16, DIM))
    network.eval()
    split = NamedSplit(lambda x, t, c: network(x), network, "1.layers.1", "tokens")
    x, t, _ = inputs()
    hidden = split.stem(x, t, None)
    assert torch.equal(split.core(hidden, x, t, None), network(x))
    inside = NamedSplit(lambda x, t, c: network(x), network, "1.layers.0.linear1", "tokens")
    with pytest.raises(InputError, match="fused path may skip"):
        inside.stem(x, t, None)


def test_hooks_of_the_user_apply_once_to_each_value() -> None:
    network, (x, t, context) = Foreign(), inputs()
    network.embed.register_forward_hook(lambda module, args, output: output * 2.0)
    network.context.register_forward_pre_hook(lambda module, args: (args[0] + 1.0,))
    expected = network(x, t, context)
    split = NamedSplit(network, network, "encoder.a", first)
    assert torch.equal(split.core(split.stem(x, t, context), x, t, context), expected)


def test_repeated_calls_are_replayed_in_order_and_the_first_is_the_probe() -> None:
    network, (x, t, _) = Repeated(), inputs()
    expected = network(x, t, None)
    value = network.block(x)
    counts = counting(network)
    for name, left in (("block", 3), ("start", 3), ("block.0", 3), ("end", 0)):
        split = NamedSplit(network, network, name, "tokens")
        hidden = split.stem(x, t, None)
        if name in ("block", "start"):
            assert torch.equal(split.feature(hidden, x), value.mean(1))
        counts.clear()
        assert torch.equal(split.core(hidden, x, t, None), expected)
        assert counts["start.0"] == left


def test_a_network_that_catches_exceptions_does_not_catch_the_stop() -> None:
    class Careful(Repeated):
        def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
            try:
                return super().forward(x, timestep, context)
            except Exception:
                return x

    network, (x, t, _) = Careful(), inputs()
    split = NamedSplit(network, network, "block", "tokens")
    assert torch.equal(split.core(split.stem(x, t, None), x, t, None), network(x, t, None))


# -- nothing stays -------------------------------------------------------------------------------


class Breaking(Foreign):
    """Fails in a block when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: str | None = None
        for name, block in [("stem", self.encoder["a"]), ("core", self.decoder[0])]:
            block.register_forward_pre_hook(lambda module, args, name=name: self._check(name))

    def _check(self, name: str) -> None:
        if self.broken == name:
            raise RuntimeError(f"broken {name}")


def test_the_network_is_untouched_after_success_and_after_failure() -> None:
    network, (x, t, context) = Foreign(), inputs()
    # a replaced forward of the user's own is put back
    own = functional.silu
    network.decoder[1].act.forward = own
    before, weights = attributes(network), copy.deepcopy(network.state_dict())
    expected = network(x, t, context)
    split = NamedSplit(network, network, "encoder.b", first)
    hidden = split.stem(x, t, context)
    assert attributes(network) == before
    split.core(hidden, x, t, context)
    assert attributes(network) == before
    with pytest.raises(InputError):
        NamedSplit(network, network, "position", first).stem(x, t, context)
    with pytest.raises(RuntimeError):
        split.stem(x[..., 1:], t, context)
    with pytest.raises(DenoiserError):
        split.core(hidden, x[..., 1:], t, context)
    assert attributes(network) == before
    assert network.decoder[1].act.forward is own
    assert list(network.state_dict()) == list(weights)
    for twin in (network, copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(twin(x, t, context), expected)


@pytest.mark.parametrize("part", ["stem", "core"])
def test_an_exception_in_either_part_leaves_no_trace(part: str) -> None:
    network, (x, t, context) = Breaking(), inputs()
    split = NamedSplit(network, network, "encoder.b", first)
    before = attributes(network)
    network.broken = part
    with pytest.raises(RuntimeError, match=f"broken {part}"):
        split.core(split.stem(x, t, context), x, t, context)
    network.broken = None
    assert attributes(network) == before
    expected = network(x, t, context)
    assert torch.equal(split.core(split.stem(x, t, context), x, t, context), expected)


def test_two_splits_of_one_network_keep_their_own_recordings() -> None:
    network, (x, t, context) = Foreign(), inputs()
    early = NamedSplit(network, network, "embed", "tokens")
    late = NamedSplit(network, network, "decoder.0", first)
    hidden = early.stem(x, t, context), late.stem(-x, t, context)
    assert torch.equal(early.core(hidden[0], x, t, context), network(x, t, context))
    assert torch.equal(late.core(hidden[1], -x, t, context), network(-x, t, context))
