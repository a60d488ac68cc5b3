"""A second planner network: a Transformer over patches of frames that predicts the noise.

The network sees plans as ``(batch, horizon, channels)`` and works on tokens ``(batch, horizon /
patch, width)`` inside. Start and goal are inpainted in its input, so it takes no other context.
``forward`` is ``core(stem(x, t), x, t)``: the stem is the embedding and the first blocks, a quarter
of them at depth 1 and half of them at depth 2, so that it can be run alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from muninn.errors import InputError
from muninn.model.sampler import Kind
from muninn.model.schedule import Schedule
from muninn_bench.networks.unet import TimeEmbedding, attend


@dataclass(frozen=True)
class TransformerConfig:
    """Architecture of a ``TrajectoryTransformer``.

    With patches of 4 frames the network costs more than the U-Net on a CPU: a third more for one
    plan, twice as much for a batch.
    """

    channels: int = 6
    patch: int = 8  # frames per token
    width: int = 192
    blocks: int = 8  # a multiple of 4: a stem is a quarter or half of them
    heads: int = 6
    expansion: int = 4  # of the feed-forward layers, in widths
    frame_width: int = 32  # of the features per frame, before the embedding and in the head
    kernel: int = 5  # odd
    time_width: int = 128


class Block(nn.Module):
    """Pre-norm attention and feed-forward layers, both scaled, shifted and gated by time.

    The modulation is one projection of the time embedding shared by all blocks plus a table of this
    block's own (Chen et al. 2023, PixArt-alpha, "adaLN-single"): a projection per block would be a
    third of the network. Both gates start at zero, so an untrained block changes nothing.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.table = nn.Parameter(torch.zeros(6, width))
        self.normalise_attention = nn.LayerNorm(width, elementwise_affine=False)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.normalise_feed = nn.LayerNorm(width, elementwise_affine=False)
        self.feed_in = nn.Linear(width, config.expansion * width)
        self.feed_out = nn.Linear(config.expansion * width, width)

    def forward(self, h: Tensor, modulation: Tensor) -> Tensor:
        """Map tokens ``(batch, tokens, width)``, given ``modulation`` ``(batch, 6, width)``."""
        parts = (modulation + self.table)[:, :, None, :].unbind(dim=1)
        scale, shift, gate, feed_scale, feed_shift, feed_gate = parts
        inner = self.normalise_attention(h) * (1.0 + scale) + shift
        h = h + gate * self.project_out(attend(self.project_in(inner), self.heads))
        inner = self.normalise_feed(h) * (1.0 + feed_scale) + feed_shift
        fed: Tensor = self.feed_out(functional.gelu(self.feed_in(inner), approximate="tanh"))
        return h + feed_gate * fed


class TrajectoryTransformer(nn.Module):
    """Transformer over patches of a plan, predicting the noise in it.

    The output is ``skip[t] * x + gain[t] * F(x, t)`` for ``x = a x0 + s noise``, ``a^2 + s^2 = 1``,
    with ``skip = s`` and ``gain = a``: the best linear estimate of the noise for data of unit
    spread plus a learned correction of unit scale at every step (F is then the ``v`` of Salimans
    and Ho, 2022). The plan of a network that gave the noise directly would have its error divided
    by ``a``, which is 2,000 times at the noisiest step; here an error ``d`` of F moves the plan by
    ``s * d``.

    Patches overlap: a convolution over frames comes before the embedding, and the head is two
    convolutions over frames that see the noisy plan too, so that a plan does not break where
    patches meet.

    Raises:
        InputError: the horizon is not a multiple of the patch, the width not one of the heads, the
            kernel even, or the blocks not a multiple of 4.
    """

    predicts: ClassVar[Kind] = "epsilon"
    skip: Tensor
    gain: Tensor

    def __init__(self, config: TransformerConfig, schedule: Schedule, horizon: int) -> None:
        super().__init__()
        _check(config, horizon)
        self.config, self.horizon = config, horizon
        signal = torch.from_numpy(schedule.alpha_bar)
        self.register_buffer("skip", (1.0 - signal).sqrt().float(), persistent=False)
        self.register_buffer("gain", signal.sqrt().float(), persistent=False)
        patch, width = config.patch, config.width

        self.time = TimeEmbedding(config.time_width)
        self.modulate = nn.Linear(config.time_width, 6 * width)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)
        frame_width, padding = config.frame_width, config.kernel // 2
        self.project_in = nn.Conv1d(config.channels, frame_width, config.kernel, padding=padding)
        self.embed = nn.Conv1d(frame_width, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, horizon // patch, width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))

        self.normalise_out = nn.LayerNorm(width)
        self.unfold = nn.Linear(width, patch * frame_width)
        joined = frame_width + config.channels
        self.mix = nn.Conv1d(joined, frame_width, config.kernel, padding=padding)
        self.project_out = nn.Conv1d(frame_width, config.channels, config.kernel, padding=padding)

    def stem(self, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
        """Map a noisy plan to tokens ``(batch, horizon / patch, width)``."""
        frames = functional.silu(self.project_in(x.transpose(1, 2)))
        h: Tensor = self.embed(frames).transpose(1, 2) + self.position
        return self._run(h, t, 0, depth * len(self.blocks) // 4)

    def core(self, h: Tensor, x: Tensor, t: Tensor, depth: int = 1) -> Tensor:
        """Map the stem's tokens of the same depth, and the noisy plan itself, to the noise."""
        h = self._run(h, t, depth * len(self.blocks) // 4, len(self.blocks))
        frames: Tensor = self.unfold(self.normalise_out(h))
        frames = frames.reshape(len(x), self.horizon, self.config.frame_width)
        joined = torch.cat([frames, x.to(frames.dtype)], dim=-1).transpose(1, 2)
        out: Tensor = self.project_out(functional.silu(self.mix(joined)))
        correction = out.transpose(1, 2).to(x.dtype)
        return self.skip[t][:, None, None] * x + self.gain[t][:, None, None] * correction

    def pool(self, h: Tensor) -> Tensor:
        """Average the stem's tokens over the plan: ``(batch, width)``."""
        return h.mean(dim=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Predict the noise in standardised plans ``(batch, horizon, channels)``.

        At inpainted entries it is the noise that makes the sampler find them in the clean plan.
        """
        return self.core(self.stem(x, t), x, t)

    def _run(self, h: Tensor, t: Tensor, first: int, until: int) -> Tensor:
        modulation = self.modulate(self.time(t)).unflatten(-1, (6, self.config.width))
        for block in self.blocks[first:until]:
            h = block(h, modulation)
        return h


def _check(config: TransformerConfig, horizon: int) -> None:
    patch, width, heads, blocks = config.patch, config.width, config.heads, config.blocks
    if horizon % patch:
        raise InputError(f"horizon {horizon} is not a multiple of the patch of {patch} frames")
    if width % heads:
        raise InputError(f"width {width} is not a multiple of {heads} heads; change either")
    if config.kernel % 2 == 0:
        raise InputError(f"the kernel must be odd, got {config.kernel}")
    if blocks % 4 or blocks < 4:
        raise InputError(f"blocks must be a multiple of 4, got {blocks}: a stem is a quarter")
