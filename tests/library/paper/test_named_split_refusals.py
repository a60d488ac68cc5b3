"""What a probe by submodule name refuses, and what it says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from muninn.context import select
from muninn.errors import DenoiserError, InputError
from muninn.model.denoiser import ClassifierFreeGuidance
from muninn.paper.named_split import NamedSplit
from split_cases import DIM, HORIZON, Foreign, Repeated, attributes, first, inputs


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Planners run without gradients."""
    with torch.no_grad():
        yield


def test_an_unknown_name_lists_close_ones_or_all() -> None:
    network = Foreign()
    with pytest.raises(InputError, match=r"no submodule 'encoder.c'; close names: .*encoder\.a"):
        NamedSplit(network, network, "encoder.c")
    for name in ("zzzzzzzz", ""):
        with pytest.raises(InputError, match=r"it has: time, time\.0, .*, head\. "):
            NamedSplit(network, network, name)
    with pytest.raises(InputError, match=r"unknown pool 'mean'; .*time_last, tokens, none"):
        NamedSplit(network, network, "embed", "mean")
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module, got function"):
        NamedSplit(network, first, "embed")  # type: ignore[arg-type]


def compiled(network: nn.Module) -> Any:
    return torch.compile(network, backend="eager")


def with_compiled_call() -> nn.Module:
    network = Foreign()
    network.decoder[0].compile(backend="eager")
    return network


def with_compiled_forward() -> nn.Module:
    network = Foreign()
    network.head.forward = torch.compile(network.head.forward, backend="eager")
    return network


def with_compiled_part() -> nn.Module:
    network = Foreign()
    network.decoder[1] = compiled(network.decoder[1])
    return network


@pytest.mark.parametrize(
    ("network", "what"),
    [
        (compiled(Foreign()), "module is compiled"),
        (with_compiled_call(), r"submodule 'decoder\.0' is compiled"),
        (with_compiled_forward(), "submodule 'head' is compiled"),
        (with_compiled_part(), r"submodule 'decoder\.1' is compiled"),
        (nn.DataParallel(Foreign()), "module is data-parallel"),
    ],
    ids=["module", "call", "forward", "submodule", "data-parallel"],
)
def test_networks_whose_calls_cannot_be_recorded_are_refused(network: Any, what: str) -> None:
    with pytest.raises(InputError, match=f"{what}, .*give the plain network"):
        NamedSplit(lambda x, t, c: x, network, "embed")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_networks_and_compiled_denoisers_are_refused() -> None:
    scripted = nn.Sequential(torch.jit.script(nn.Linear(DIM, DIM)), nn.Tanh())
    with pytest.raises(InputError, match="submodule '0' is scripted"):
        NamedSplit(lambda x, t, c: scripted(x), scripted, "1")
    network = Foreign()
    with pytest.raises(InputError, match="denoiser is compiled"):
        NamedSplit(compiled(network), network, "embed")


def test_a_submodule_that_is_not_called_is_named_with_those_that_are() -> None:
    network, (x, t, context) = Foreign(), inputs()
    split = NamedSplit(network, network, "encoder", first)
    with pytest.raises(
        InputError, match=r"'encoder' was not called; .*time, context, embed, .*head"
    ):
        split.stem(x, t, context)
    with pytest.raises(InputError, match=r"'embed' was not called; .*: none"):
        NamedSplit(lambda x, t, c: x, network, "embed").stem(x, t, context)


def test_a_denoiser_that_calls_the_network_twice_is_sent_to_guided_split() -> None:
    network, (x, t, context) = Foreign(), inputs()
    guidance = ClassifierFreeGuidance(network, torch.zeros_like, 2.0)
    split = NamedSplit(guidance, network, "embed", "tokens")
    before = attributes(network)
    hidden = split.stem(x, t, context)
    with pytest.raises(InputError, match=r"Foreign more than once .*GuidedSplit\("):
        split.core(hidden, x, t, context)
    assert attributes(network) == before


def test_a_denoiser_that_doubles_its_batch_is_refused() -> None:
    network, (x, t, context) = Foreign(), inputs()

    def doubled(x: Tensor, t: Tensor, c: Tensor, /) -> Tensor:
        both = network(x.repeat(2, 1, 1), t.repeat(2), torch.cat([c, 0 * c]))
        return both[len(x) :] + 2.0 * (both[: len(x)] - both[len(x) :])

    with pytest.raises(InputError, match=r"returned \(10, 8, 16\) for a batch of 5; .*Classifier"):
        NamedSplit(doubled, network, "embed", "tokens").stem(x, t, context)
    with pytest.raises(InputError, match=r"'position' returned \(8, 16\) for a batch of 5"):
        NamedSplit(network, network, "position", "none").stem(x, t, context)


class Folded(nn.Module):
    """Works on (time, batch, channels) or (batch * time, channels) before the probe."""

    def __init__(self, fold: str) -> None:
        super().__init__()
        torch.manual_seed(10)
        self.fold, self.a, self.b = fold, nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        if self.fold == "time first":
            h = self.a(x.transpose(0, 1)).transpose(0, 1)
        else:
            h = self.a(x.flatten(0, 1)).view(x.shape)
        out: Tensor = self.b(h)
        return out


@pytest.mark.parametrize("fold", ["time first", "batch times time"])
@pytest.mark.parametrize("batch", [5, HORIZON])
def test_rows_that_cannot_be_taken_apart_are_refused_and_whole_batches_work(
    fold: str, batch: int
) -> None:
    network, (x, t, _) = Folded(fold), inputs(batch)
    split = NamedSplit(network, network, "b", "tokens")
    hidden, expected = split.stem(x, t, None), network(x, t, None)
    order = torch.arange(batch).flip(0)
    assert torch.equal(split.core(hidden, x, t, None), expected)
    assert torch.equal(split.core(select(hidden, order), x[order], t, None), expected[order])
    for rows in (torch.tensor([2]), torch.tensor([0, 3])):
        with pytest.raises(InputError, match=r"input of submodule 'a' .* cannot be taken apart"):
            split.core(select(hidden, rows), x[rows], t[rows], None)


def test_an_output_that_loses_the_batch_is_refused_in_parts() -> None:
    class Summary(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h.transpose(0, 1).mean(dim=2)

    class Losing(Folded):
        def __init__(self) -> None:
            super().__init__("")
            self.summary = Summary()

        def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
            out: Tensor = self.b(x + self.summary(x).T[:, :, None])
            return out

    network, (x, t, _) = Losing(), inputs()
    split, rows = NamedSplit(network, network, "b", "tokens"), torch.tensor([1, 2])
    hidden = split.stem(x, t, None)
    assert torch.equal(split.core(hidden, x, t, None), network(x, t, None))
    with pytest.raises(InputError, match=r"output of submodule 'summary' has shape \(8, 5\)"):
        split.core(select(hidden, rows), x[rows], t[rows], None)


def test_rows_that_do_not_fit_are_refused() -> None:
    network, (x, t, context) = Foreign(), inputs()
    split = NamedSplit(network, network, "embed", "tokens")
    hidden = split.stem(x, t, context)
    with pytest.raises(InputError, match="hidden has 5 rows but x has 2"):
        split.core(hidden, x[:2], t[:2], context[:2])
    twice = torch.tensor([0, 0, 1, 2, 3])
    with pytest.raises(InputError, match=r"\[0, 0, 1, 2, 3\] name a row twice"):
        split.core(select(hidden, twice), *select((x, t, context), twice))


@pytest.mark.parametrize(("name", "pool"), [("embed", "none"), ("context", "tokens")])
def test_a_pool_that_does_not_fit_is_refused_with_the_shape(name: str, pool: str) -> None:
    network, (x, t, context) = Foreign(), inputs()
    split = NamedSplit(network, network, name, pool)
    with pytest.raises(InputError, match=rf"pool '{pool}' does not give \(5, width\) .*\(5, "):
        split.feature(split.stem(x, t, context), x)


class Wandering(nn.Module):
    """Takes another path at every call."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.change, self.calls = change, 0
        self.a, self.b, self.c = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        self.calls += 1
        layers = [self.a, self.b, self.c]
        if self.calls > 1 and self.change == "order":
            layers = [self.b, self.a, self.c]
        elif self.calls > 1 and self.change == "end":
            layers = [self.a]
        elif self.calls > 1 and self.change == "shape":
            x = x[:, :4]
        for layer in layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("change", ["order", "end", "shape"])
def test_a_path_that_changes_between_stem_and_core_is_an_error(change: str) -> None:
    network, (x, t, _) = Wandering(change), inputs()
    split = NamedSplit(network, network, "b", "tokens")
    hidden = split.stem(x, t, None)
    with pytest.raises(DenoiserError, match=r"did not call submodule '[ab]' as it did in the stem"):
        split.core(hidden, x, t, None)


def test_a_target_called_by_a_module_that_does_not_contain_it_is_refused() -> None:
    class Borrowing(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.borrowed = [layer]  # in a list: not registered

        def forward(self, h: Tensor) -> Tensor:
            out: Tensor = self.borrowed[0](h)
            return out

    network = Repeated()
    network.end = Borrowing(network.block[0])  # type: ignore[assignment]
    x, t, _ = inputs()
    split = NamedSplit(lambda x, t, c: network.end(x), network, "block.0", "tokens")
    with pytest.raises(InputError, match=r"called from inside 'end', .*name 'end' instead"):
        split.stem(x, t, None)
