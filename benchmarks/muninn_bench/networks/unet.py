"""The planner's network: a temporal U-Net that predicts the clean plan, or the noise in it.

The network sees plans as ``(batch, horizon, channels)`` and works on ``(batch, width, time)``
inside. What a plan must contain is inpainted in its input; what it is for can also be told, as a
vector that is embedded and added to the time embedding. ``forward`` is ``core(stem(x, t), x, t)``:
the stem (input projection and first residual block, at full resolution) is a small part of the
work, and is kept apart so that it can be run alone. The deeper stem, of depth 2, is the whole level
of full resolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from muninn.errors import InputError
from muninn.model.sampler import Kind
from muninn.model.schedule import Schedule

DATA_SPREAD = 0.5
"""Standard deviation of plan entries that the output scaling assumes (normalised coordinates)."""


@dataclass(frozen=True)
class UnetConfig:
    """Architecture of a ``TemporalUnet``."""

    channels: int = 6
    widths: tuple[int, ...] = (32, 64, 128, 256)  # each level halves the time axis of the last
    blocks: int = 2  # residual ones per level and direction
    middle_blocks: int = 2  # at the coarsest level, each followed by attention
    kernel: int = 5  # odd
    time_width: int = 128
    heads: int = 4
    predicts: Kind = "sample"  # or "epsilon"
    told: int = 0  # numbers that the network is told about each plan


class TimeEmbedding(nn.Module):
    """Sinusoidal embedding of the integer timestep, then two linear layers.

    With ``told`` numbers the embedding of these, by two layers of its own, is added to it.
    """

    frequencies: Tensor

    def __init__(self, width: int, told: int = 0) -> None:
        super().__init__()
        half = width // 2
        frequencies = torch.exp(-math.log(10_000.0) * torch.arange(half) / (half - 1))
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.layers = nn.Sequential(nn.Linear(2 * half, width), nn.SiLU(), nn.Linear(width, width))
        self.told: nn.Module | None = None
        if told:
            self.told = nn.Sequential(nn.Linear(told, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor, told: Tensor | None = None) -> Tensor:
        """Return the embedding ``(batch, width)`` of timesteps ``(batch,)``, and of what is told.

        Raises:
            InputError: nothing is told, or something to a network that takes nothing.
        """
        angles = t.to(self.frequencies.dtype)[:, None] * self.frequencies
        embedded: Tensor = self.layers(torch.cat([angles.sin(), angles.cos()], dim=-1))
        if (told is None) != (self.told is None):
            raise InputError(
                "the network takes a timestep and nothing else"
                if self.told is None
                else "the network must be told what a plan is for; pass told, (batch, numbers)"
            )
        if self.told is not None and told is not None:
            embedded = embedded + self.told(told)
        return functional.silu(embedded)


class ResidualBlock(nn.Module):
    """Two normalised convolutions; the time embedding scales and shifts between them."""

    def __init__(self, width_in: int, width_out: int, kernel: int, time_width: int) -> None:
        super().__init__()
        self.normalise_in = nn.GroupNorm(8, width_in)
        self.convolve_in = nn.Conv1d(width_in, width_out, kernel, padding=kernel // 2)
        self.modulate = nn.Linear(time_width, 2 * width_out)
        self.normalise_out = nn.GroupNorm(8, width_out)
        self.convolve_out = nn.Conv1d(width_out, width_out, kernel, padding=kernel // 2)
        nn.init.zeros_(self.convolve_out.weight)
        nn.init.zeros_(self.modulate.weight)
        self.shortcut: nn.Module = (
            nn.Identity() if width_in == width_out else nn.Conv1d(width_in, width_out, 1)
        )

    def forward(self, h: Tensor, time: Tensor) -> Tensor:
        """Map features ``(batch, width_in, time)`` to ``(batch, width_out, time)``."""
        scale, shift = self.modulate(time)[:, :, None].chunk(2, dim=1)
        inner = self.convolve_in(functional.silu(self.normalise_in(h)))
        inner = self.normalise_out(inner) * (1.0 + scale) + shift
        out: Tensor = self.convolve_out(functional.silu(inner)) + self.shortcut(h)
        return out


class ResidualBlocks(nn.ModuleList):
    """Residual blocks of one width, one after another."""

    def __init__(self, count: int, width: int, kernel: int, time_width: int) -> None:
        super().__init__(ResidualBlock(width, width, kernel, time_width) for _ in range(count))

    def forward(self, h: Tensor, time: Tensor) -> Tensor:
        """Map features ``(batch, width, time)`` to the same shape."""
        for block in self:
            h = block(h, time)
        return h


class Attention(nn.Module):
    """Self-attention over time with a learned position code: every frame sees every other."""

    def __init__(self, width: int, length: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.normalise = nn.GroupNorm(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, length, width))
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        nn.init.zeros_(self.project_out.weight)

    def forward(self, h: Tensor) -> Tensor:
        """Map features ``(batch, width, length)`` to the same shape."""
        tokens = self.normalise(h).transpose(1, 2) + self.position
        out: Tensor = self.project_out(attend(self.project_in(tokens), self.heads))
        return h + out.transpose(1, 2)


def attend(projected: Tensor, heads: int) -> Tensor:
    """Attention of queries, keys and values, (batch, tokens, 3 width) to (batch, tokens, width)."""
    joint = projected.view(*projected.shape[:2], 3, heads, -1)
    query, key, value = joint.permute(2, 0, 3, 1, 4).unbind(dim=0)
    mixed = functional.scaled_dot_product_attention(query, key, value)
    return mixed.transpose(1, 2).flatten(2)


class TemporalUnet(nn.Module):
    """Temporal U-Net of the Diffuser family, predicting the clean plan or its noise.

    The output is ``skip[t] * x + gain[t] * F(x, t)``. A network that predicts ``sample`` has the
    coefficients of Karras et al. (2022), table 1, written for ``x = sqrt(abar) x0 + sqrt(1 - abar)
    noise``: the best linear denoiser of data of spread 0.5 plus a learned correction of unit scale.
    One that predicts ``epsilon`` has skip 0 and gain 1: its layers give the noise directly, as in
    DDPM and Diffusion Policy.

    Raises:
        InputError: the horizon cannot be halved often enough, a width is not a multiple of 8, or
            the prediction is another kind.
    """

    skip: Tensor
    gain: Tensor

    def __init__(self, config: UnetConfig, schedule: Schedule, horizon: int) -> None:
        super().__init__()
        levels = len(config.widths)
        if horizon % 2 ** (levels - 1):
            raise InputError(f"horizon {horizon} is not a multiple of {2 ** (levels - 1)}")
        if any(width % 8 for width in config.widths) or config.widths[-1] % config.heads:
            raise InputError(f"widths {config.widths} must be multiples of 8 and of the heads")
        self.config, self.horizon = config, horizon
        skip, gain = _output_scaling(config.predicts, torch.from_numpy(schedule.alpha_bar))
        self.register_buffer("skip", skip.float(), persistent=False)
        self.register_buffer("gain", gain.float(), persistent=False)
        widths, kernel, time_width = config.widths, config.kernel, config.time_width

        self.time = TimeEmbedding(time_width, config.told)
        self.project_in = nn.Conv1d(config.channels, widths[0], kernel, padding=kernel // 2)
        self.first = ResidualBlock(widths[0], widths[0], kernel, time_width)

        self.down = nn.ModuleList()
        self.coarsen = nn.ModuleList()
        for level in range(levels - 1):
            count = config.blocks - 1 if level == 0 else config.blocks
            self.down.append(ResidualBlocks(count, widths[level], kernel, time_width))
            self.coarsen.append(nn.Conv1d(widths[level], widths[level + 1], 4, stride=2, padding=1))

        self.middle = nn.ModuleList()
        for _ in range(config.middle_blocks):
            self.middle.append(ResidualBlock(widths[-1], widths[-1], kernel, time_width))
            self.middle.append(Attention(widths[-1], horizon // 2 ** (levels - 1), config.heads))

        self.refine = nn.ModuleList()
        self.merge = nn.ModuleList()
        self.up = nn.ModuleList()
        for level in reversed(range(levels - 1)):
            self.refine.append(nn.Conv1d(widths[level + 1], 2 * widths[level], 3, padding=1))
            self.merge.append(nn.Conv1d(2 * widths[level], widths[level], 1))
            self.up.append(ResidualBlocks(config.blocks, widths[level], kernel, time_width))

        self.normalise_out = nn.GroupNorm(8, widths[0])
        self.project_out = nn.Conv1d(widths[0], config.channels, kernel, padding=kernel // 2)

    @property
    def predicts(self) -> Kind:
        """``sample``, the clean plan, or ``epsilon``, the noise."""
        return self.config.predicts

    def stem(self, x: Tensor, t: Tensor, depth: int = 1, told: Tensor | None = None) -> Tensor:
        """Map a noisy plan to features ``(batch, width, horizon)``; depth 2 is the deeper stem."""
        time = self.time(t, told)
        features: Tensor = self.first(self.project_in(x.transpose(1, 2)), time)
        if depth == 2 and len(self.down):
            features = self.down[0](features, time)
        return features

    def core(
        self, h: Tensor, x: Tensor, t: Tensor, depth: int = 1, told: Tensor | None = None
    ) -> Tensor:
        """Map the stem's features of the same depth, and the noisy plan, to the prediction."""
        time = self.time(t, told)
        skips: list[Tensor] = []
        for level, (blocks, coarsen) in enumerate(zip(self.down, self.coarsen, strict=True)):
            h = h if level == 0 and depth == 2 else blocks(h, time)
            skips.append(h)
            h = coarsen(h)
        for layer in self.middle:
            h = layer(h) if isinstance(layer, Attention) else layer(h, time)
        for refine, merge, blocks in zip(self.refine, self.merge, self.up, strict=True):
            h = _interleave(refine(h))
            h = merge(torch.cat([h, skips.pop()], dim=1))
            h = blocks(h, time)
        out: Tensor = self.project_out(functional.silu(self.normalise_out(h)))
        correction = out.transpose(1, 2).to(x.dtype)
        return self.skip[t][:, None, None] * x + self.gain[t][:, None, None] * correction

    def pool(self, h: Tensor) -> Tensor:
        """Average the stem's features over time: ``(batch, width)``."""
        return h.mean(dim=2)

    def forward(self, x: Tensor, t: Tensor, told: Tensor | None = None) -> Tensor:
        """Predict for plans ``(batch, horizon, channels)`` in ``[-1, 1]``; x0 is not clipped."""
        return self.core(self.stem(x, t, told=told), x, t, told=told)


def _output_scaling(predicts: Kind, signal: Tensor) -> tuple[Tensor, Tensor]:
    """Skip and gain, (steps,) each, for signal powers ``alpha_bar`` (steps,)."""
    if predicts == "epsilon":
        return torch.zeros_like(signal), torch.ones_like(signal)
    if predicts != "sample":
        raise InputError(f"a U-Net predicts 'sample' or 'epsilon', got {predicts!r}")
    total = signal * DATA_SPREAD**2 + 1.0 - signal
    skip, gain = signal.sqrt() * DATA_SPREAD**2 / total, ((1 - signal) / total).sqrt()
    return skip, gain * DATA_SPREAD


def _interleave(h: Tensor) -> Tensor:
    """Double the time axis: ``(batch, 2 width, time)`` to ``(batch, width, 2 time)``."""
    batch, width, length = h.shape
    return h.view(batch, width // 2, 2, length).transpose(2, 3).reshape(batch, width // 2, -1)
