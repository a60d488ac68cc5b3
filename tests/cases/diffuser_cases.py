"""A stand-in for Diffuser's GaussianDiffusion: the tables that its loop and our adapter read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class GaussianDiffusion:
    """Float32 tables under Diffuser's names, computed with its operations (numpy's root too)."""

    def __init__(
        self, model: Any, betas: Tensor, predict_epsilon: bool = False, clip_denoised: bool = True
    ) -> None:
        self.model, self.betas = model, betas
        self.predict_epsilon, self.clip_denoised = predict_epsilon, clip_denoised
        kept = torch.cumprod(1.0 - betas, 0)
        before = torch.cat([torch.ones(1), kept[:-1]])
        variance = betas * (1.0 - before) / (1.0 - kept)
        self.sqrt_recip_alphas_cumprod = torch.sqrt(1.0 / kept)
        self.sqrt_recipm1_alphas_cumprod = torch.sqrt(1.0 / kept - 1)
        self.posterior_log_variance_clipped = torch.log(torch.clamp(variance, min=1e-20))
        self.posterior_mean_coef1 = betas * _root(before) / (1.0 - kept)
        self.posterior_mean_coef2 = (1.0 - before) * _root(1.0 - betas) / (1.0 - kept)


def _root(values: Tensor) -> Tensor:
    return torch.from_numpy(np.sqrt(values.numpy()))
