"""Networks that are not ours, and what counts and compares them, for tests of splits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

BATCH, HORIZON, DIM = 5, 8, 6
PARTS = [
    slice(None),
    slice(1, 4),
    torch.tensor([2]),
    torch.tensor([4, 0, 3]),
    torch.tensor([True, False, False, True, False]),
    torch.arange(BATCH),
    torch.tensor([3, 1, 4, 0, 2]),
]


def inputs(batch: int = BATCH) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, HORIZON, DIM, generator=generator)
    return x, torch.full((batch,), 7), torch.randn(batch, 3, generator=generator)


def counting(network: nn.Module) -> Counter[str]:
    """Counts real forwards of all submodules from now on, by name."""
    counts: Counter[str] = Counter()

    def counted(name: str, forward: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return forward(*args, **kwargs)

        return call

    for name, module in network.named_modules():
        module.forward = counted(name, module.forward)
    return counts


def attributes(network: nn.Module) -> dict[str, dict[str, Any]]:
    """All that instances hold, hooks and replaced forwards included."""
    return {name: dict(vars(module)) for name, module in network.named_modules()}


class Perceptron(nn.Module):
    """A perceptron over the flattened plan and the timestep: no frames, one place to split at."""

    def __init__(self, horizon: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(horizon * DIM + 1, 16), nn.Mish())
        self.head = nn.Linear(16, horizon * DIM)

    def stem(self, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
        out: Tensor = self.hidden(torch.cat([x.flatten(1), t[:, None].to(x.dtype)], dim=1))
        return out

    def core(self, h: Tensor, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
        return self.head(h).view_as(x)

    def pool(self, h: Tensor) -> Tensor:
        return h

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.core(self.stem(x, t), x, t)


class Position(nn.Module):
    """A table of positions: the same for every row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(HORIZON, 16)

    def forward(self, length: int, device: torch.device) -> Tensor:
        out: Tensor = self.table(torch.arange(length, device=device))
        return out


class Mixer(nn.Module):
    """A residual block that works in place where it can, and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(16), nn.Linear(16, 16)
        self.act = nn.ReLU(inplace=True)

    def forward(self, h: Tensor, shift: Tensor) -> tuple[Tensor, None]:
        inner = self.act(self.inner(self.norm(h)))
        inner += shift[:, None]
        return h + inner, None


class Foreign(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(inplace=True), nn.Linear(16, 16))
        self.context = nn.Linear(3, 16)
        self.embed = nn.Linear(DIM, 16)
        self.position = Position()
        self.encoder = nn.ModuleDict({"a": Mixer(), "b": Mixer()})
        self.decoder = nn.ModuleList([Mixer(), Mixer()])
        self.head = nn.Linear(32, DIM)

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        shift = self.time(timestep[:, None].float() / 100)
        shift += self.context(context)
        h = self.embed(x)
        skip = h
        h += self.position(x.shape[1], x.device)
        for block in [*self.encoder.values(), *self.decoder]:
            h, _ = block(h, shift)
        out: Tensor = self.head(torch.cat([h, skip], dim=-1))
        return out.add_(x)


def first(output: Any) -> Tensor:
    """Any output of the foreign network as (batch, width)."""
    tensor: Tensor = output[0] if isinstance(output, tuple) else output
    return tensor.flatten(1)


class Repeated(nn.Module):
    """One block with shared weights, called three times, and one submodule under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.start = self.block = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())
        self.end = nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        h = x
        for _ in range(3):
            h = h + self.block(h)
        out: Tensor = self.end(self.block(h))
        return out
