"""DPM-Solver++ 2M on a planner's model: diffusers' own scheduler, not a copy of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.planner import Noise, Planner
from muninn.schedule import FloatArray

_PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v": "v_prediction"}


class MultistepPlanner:
    """The same model sampled with a second-order multistep solver, ``count`` evaluations a call.

    Args:
        planner: a diffusion planner; its conditioning is applied as in its own sampler, and x0
            predictions are clipped as there.
        alpha_bar: the model's training schedule, (training steps,).
        count: evaluations per call.
    """

    def __init__(self, planner: Planner, alpha_bar: FloatArray, count: int) -> None:
        if planner.sampler.kind not in _PREDICTIONS:
            raise InputError("DPM-Solver++ needs a diffusion model, not flow matching")
        self._planner = planner
        self._count = count
        before = np.concatenate([[1.0], alpha_bar[:-1]])
        options = {
            "num_train_timesteps": len(alpha_bar),
            "trained_betas": (1.0 - alpha_bar / before).tolist(),
            "prediction_type": _PREDICTIONS[planner.sampler.kind],
            "algorithm_type": "dpmsolver++",
            "solver_order": 2,
        }
        self._scheduler = _scheduler(options)

    @torch.no_grad()
    def sample(self, context: Context, *, noise: Noise) -> Tensor:
        """Trajectories (batch, horizon, dim) from the given initial noise."""
        scheduler = self._scheduler
        scheduler.set_timesteps(self._count)  # also forgets the last call
        planner, clip = self._planner, self._planner.sampler.clip
        x = planner.start(noise, context)
        for timestep in scheduler.timesteps.tolist():
            told = torch.full((len(x),), timestep, dtype=torch.long, device=x.device)
            prediction = planner.denoiser(x, told, context)
            if clip is not None and planner.sampler.kind == "sample":
                prediction = prediction.clamp(-clip, clip)
            x = scheduler.step(prediction, timestep, x).prev_sample
            if planner.condition is not None:
                x = planner.condition(x, context)
        return x


def _scheduler(options: dict[str, Any]) -> Any:
    try:
        from diffusers import DPMSolverMultistepScheduler
    except ImportError as error:
        raise InputError(
            "the DPM-Solver++ baseline needs diffusers: pip install muninn-diffusion[diffusers]"
        ) from error
    return DPMSolverMultistepScheduler(**options)
