"""Scores: how far a probe's features moved since the last step.

A score maps features ``(batch, width)`` of this step and of the one before to ``(batch,)``, all in
float32 (paper, "Score function and hyperparameters").
``relative_l1`` is the paper's choice; the other two are those of its ablation (iv).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from muninn.errors import InputError

OMEGA = 1e-6
"""The paper's one fixed offset: keeps scores of vanishing features finite."""


def relative_l1(current: Tensor, previous: Tensor) -> Tensor:
    """``||F_t - F_{t+1}||_1 / (||F_{t+1}||_1 + omega)``, the score of the paper.

    >>> relative_l1(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0]]))
    tensor([1.0000])
    """
    current, previous = _prepared(current, previous)
    return (current - previous).abs().sum(dim=1) / (previous.abs().sum(dim=1) + OMEGA)


def cosine(current: Tensor, previous: Tensor) -> Tensor:
    """Cosine distance ``1 - cos(F_t, F_{t+1})``, in [0, 2].

    Computed as half the squared distance between the directions, which is the same number but does
    not cancel: features of neighbouring steps are nearly parallel. A vector shorter than omega
    counts as (almost) no direction, so two vanishing features have distance 0.

    >>> cosine(torch.tensor([[0.0, 2.0]]), torch.tensor([[5.0, 0.0]]))
    tensor([1.])
    """
    one, other = (normalize(feature, eps=OMEGA) for feature in _prepared(current, previous))
    return 0.5 * (one - other).square().sum(dim=1)


def l2(current: Tensor, previous: Tensor) -> Tensor:
    """Euclidean distance ``||F_t - F_{t+1}||_2``; unlike the others it grows with the features.

    >>> l2(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 0.0]]))
    tensor([5.])
    """
    current, previous = _prepared(current, previous)
    distance: Tensor = torch.linalg.vector_norm(current - previous, dim=1)
    return distance


SCORES = {"relative_l1": relative_l1, "cosine": cosine, "l2": l2}


def _prepared(current: Tensor, previous: Tensor) -> tuple[Tensor, Tensor]:
    """Both features in float32; raises InputError unless both are (batch, width)."""
    if current.ndim != 2 or current.shape != previous.shape:
        raise InputError(
            f"a score compares two features of one shape (batch, width), got "
            f"{tuple(current.shape)} and {tuple(previous.shape)}; use Split.feature of the same "
            "split for both, with the same rows"
        )
    return current.float(), previous.float()
