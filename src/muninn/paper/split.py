"""Splits: a denoiser cut into a cheap stem, whose features are the probe, and the core after it.

``core(stem(x, t, c), x, t, c)`` is the denoiser itself, guidance included, so a step that is
recomputed after its probe was looked at runs the stem once (paper, "Avoiding double computation").
Networks that are not ours and have no such seam are split by :mod:`muninn.paper.named_split`.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.nn import functional

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.denoiser import Denoiser
from muninn.paper.score import SCORES

DEPTHS = ("stem-1", "stem-2", "input")
"""The paper's probe, its deeper one and its LN(input); from ablation (iv)."""


class Split(Protocol):
    """A denoiser in two parts.

    ``hidden`` is a nest as in :mod:`muninn.context` of tensors with the batch first, so that
    ``context.select(hidden, rows)`` is what the core of those rows needs. ``x`` (batch, ...),
    ``timestep`` (batch,) and ``context`` are those of the same rows.
    """

    def stem(self, x: Tensor, timestep: Tensor, context: Context) -> Any:
        """The first part; its result is ``hidden``."""

    def core(self, hidden: Any, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """The *effective* prediction (guidance included), of the shape of x."""

    def feature(self, hidden: Any, x: Tensor) -> Tensor:
        """The probe's feature F_t, (batch, width) float32."""


@dataclass(frozen=True)
class NetworkSplit:
    """The split of a network that has ``stem``, ``core`` and ``pool``; context is unused.

    ``core(stem(x, t, depth), x, t, depth)`` equals ``network(x, t)``; depth 1 is the paper's probe,
    2 a deeper one; ``pool`` maps the stem's features to (batch, width).
    """

    network: Any
    depth: int = 1

    def __post_init__(self) -> None:
        missing = _missing(self.network)
        if missing:
            raise InputError(
                f"{type(self.network).__name__} lacks {', '.join(missing)}; NetworkSplit needs "
                "stem(x, t, depth), core(h, x, t, depth) and pool(h). For other networks use "
                "NamedSplit(denoiser, module, name, pool)"
            )
        if self.depth not in (1, 2):
            raise InputError(f"depth is 1 (the paper's probe) or 2, got {self.depth!r}")

    def stem(self, x: Tensor, timestep: Tensor, context: Context) -> Any:
        return self.network.stem(x, timestep, depth=self.depth)

    def core(self, hidden: Tensor, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        prediction: Tensor = self.network.core(hidden, x, timestep, depth=self.depth)
        return prediction

    def feature(self, hidden: Tensor, x: Tensor) -> Tensor:
        """Pooled features, (batch, width); pooled in float32."""
        pooled: Tensor = self.network.pool(hidden.float())
        return pooled


@dataclass(frozen=True)
class InputSplit:
    """LN(input): looks at the state only, so the core is the whole denoiser and nothing the stem.

    The feature is LayerNorm without weights over the channels of each frame, averaged over time.
    """

    denoiser: Denoiser

    def stem(self, x: Tensor, timestep: Tensor, context: Context) -> None:
        return None  # the probe reads x itself

    def core(self, hidden: None, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        return self.denoiser(x, timestep, context)

    def feature(self, hidden: None, x: Tensor) -> Tensor:
        """Frames (batch, ..., channels), normalised and averaged: (batch, channels).

        Raises InputError if a frame has one channel: normalised, it is zero whatever the state.
        """
        if x.ndim < 2 or x.shape[-1] < 2:
            raise InputError(
                f"LN(input) needs states (batch, ..., channels) with at least 2 channels, got "
                f"{tuple(x.shape)}; use a stem of the network instead"
            )
        normal = functional.layer_norm(x.float(), (x.shape[-1],))
        return normal.flatten(1, -2).mean(dim=1) if x.ndim > 2 else normal


@dataclass(frozen=True)
class GuidedSplit:
    """The split of the denoiser inside a guidance, with the guidance's ``guide`` in the core.

    With classifier-free guidance the stem is that of the conditional forward; the unconditional
    one runs whole, in the core. A step that reuses runs neither, nor a gradient.
    """

    guidance: Any
    split: Split

    def __post_init__(self) -> None:
        if not callable(getattr(self.guidance, "guide", None)):
            raise InputError(
                f"{type(self.guidance).__name__} has no method guide(prediction, x, timestep, "
                "context); give ClassifierFreeGuidance, GradientGuidance or an object with one"
            )

    def stem(self, x: Tensor, timestep: Tensor, context: Context) -> Any:
        return self.split.stem(x, timestep, context)

    def core(self, hidden: Any, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        prediction = self.split.core(hidden, x, timestep, context)
        guided: Tensor = self.guidance.guide(prediction, x, timestep, context)
        return guided

    def feature(self, hidden: Any, x: Tensor) -> Tensor:
        return self.split.feature(hidden, x)


@dataclass(frozen=True)
class Probe:
    """What is looked at before a step is reused: a split's feature, and the score of its change."""

    split: Split
    score: str = "relative_l1"

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise InputError(f"unknown score {self.score!r}; choose one of {', '.join(SCORES)}")


def split_of(denoiser: Any, depth: str = "stem-1") -> Split:
    """The split of a planner's denoiser that is made of our parts.

    Takes a network with ``stem``, ``core`` and ``pool``; an object that holds such a network as
    ``network``, and nothing else, and calls it as ``network(x, timestep)``; and guidance around
    either. With depth ``input`` it takes any denoiser. Another depth, or a denoiser whose stem
    cannot be known, is an InputError.
    """
    if depth not in DEPTHS:
        raise InputError(f"unknown probe depth {depth!r}; choose one of {', '.join(DEPTHS)}")
    if callable(getattr(denoiser, "guide", None)) and hasattr(denoiser, "denoiser"):
        return GuidedSplit(denoiser, split_of(denoiser.denoiser, depth))
    network = _network_of(denoiser)
    if depth == "input":
        bare = network is denoiser  # called without a context
        return InputSplit((lambda x, timestep, _: denoiser(x, timestep)) if bare else denoiser)
    if network is None:
        raise InputError(
            f"the stem of {type(denoiser).__name__} is not known. Either give its network the "
            "methods stem(x, t, depth), core(h, x, t, depth), pool(h) and use NetworkSplit; or "
            "name the submodule to look at, NamedSplit(denoiser, module, name, pool); or look at "
            "the input only, InputSplit(denoiser), which is depth 'input'"
        )
    return NetworkSplit(network, DEPTHS.index(depth) + 1)


def _network_of(denoiser: Any) -> Any:
    """The network with a split that a denoiser is, or is a bare wrapper of; else None."""
    network = denoiser
    if not isinstance(denoiser, nn.Module):
        # A wrapper that holds more than the network may do more than call it.
        held = getattr(denoiser, "__dict__", {})
        network = held["network"] if set(held) == {"network"} else None
    return None if _missing(network) else network


def _missing(network: Any) -> list[str]:
    """What a network lacks for :class:`NetworkSplit`; a *layer* named stem takes no depth."""
    missing = []
    for name in ("stem", "core", "pool"):
        method = getattr(network, name, None)
        if not callable(method):
            missing.append(name)
        elif name != "pool" and "depth" not in inspect.signature(method).parameters:
            missing.append(f"the argument depth of {name}")
    return missing
