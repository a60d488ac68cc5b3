"""The steps of a Diffuser model as a sampler that rounds exactly as Diffuser's own loop does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddpm

_TABLES = (
    "sqrt_recip_alphas_cumprod",
    "sqrt_recipm1_alphas_cumprod",
    "posterior_mean_coef1",
    "posterior_mean_coef2",
    "posterior_log_variance_clipped",
)
"""With r, m, a, b, v at a step: ``x0 = r x - m eps``, then ``a x0 + b x + exp(v / 2) noise``."""


class _DiffuserSampler(Sampler):
    def __init__(self, diffusion: Any) -> None:
        betas = diffusion.betas.detach().double().cpu().numpy()
        table = ddpm(
            Schedule.from_betas("diffuser", betas),
            kind="epsilon" if diffusion.predict_epsilon else "sample",
            clip=1.0 if diffusion.clip_denoised else None,
        )
        tables = [getattr(diffusion, name).detach() for name in _TABLES]
        tables[-1] = (0.5 * tables[-1]).exp()  # on the model's device: exp rounds as there
        # Float32 numbers, which a float holds exactly, noisiest step first.
        rows: list[tuple[float, ...]] = list(zip(*(v.tolist() for v in tables), strict=True))
        self._numbers = rows[::-1]
        steps = [
            replace(step, signal=1 / r, noise=m / r, from_sample=a, from_state=b, from_noise=spread)
            for step, (r, m, a, b, spread) in zip(table.steps, self._numbers, strict=True)
        ]
        # Diffuser draws at the last step too and multiplies the draw by zero.
        steps[-1] = replace(steps[-1], from_noise=0.0, draws_noise=True)
        details = {**table.describe(), "framework": "Diffuser"}
        super().__init__(
            "ddpm",
            table.kind,
            steps,
            flow=False,
            clip=table.clip,
            details=details,
            schedule=table.schedule,
        )

    def _own_step(self, x: Tensor, prediction: Tensor, index: int, noise: Tensor | None) -> Tensor:
        """Next state; order and grouping are Diffuser's."""
        r, m, from_sample, from_state, deviation = self._numbers[index]
        sample = r * x - m * prediction if self.kind == "epsilon" else prediction
        if self.clip is not None:
            sample = sample.clamp(-self.clip, self.clip)
        mean = from_sample * sample + from_state * x
        if noise is None or index == len(self) - 1:
            return mean + 0.0  # as Diffuser does: it changes the sign of a negative zero
        return mean + deviation * noise


def diffuser_sampler(diffusion: Any) -> Sampler:
    """The steps of Diffuser's loop, from the model's own tables: full compute is its, bit for bit.

    A step with a prediction of the network's own kind repeats Diffuser's operations in their
    order; forecasts of another kind use merged coefficients, which round otherwise. The model, a
    GaussianDiffusion on the device on which it samples, is never changed. Raises InputError where
    it lacks one of Diffuser's tables.
    """
    missing = [name for name in ("betas", *_TABLES) if not hasattr(diffusion, name)]
    if missing:
        raise InputError(
            f"{type(diffusion).__name__} has no {', '.join(missing)}; supported is Diffuser's "
            "GaussianDiffusion. For other DDPM loops use muninn.ddpm"
        )
    return _DiffuserSampler(diffusion)
