"""Multistep solvers on a planner's model: diffusers' own schedulers, not copies of ours."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.planner import Noise, Planner
from muninn.schedule import FloatArray

_PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v": "v_prediction"}
Solver = Literal["dpmsolver", "unipc"]


class MultistepPlanner:
    """The same model sampled with a second-order multistep solver, ``count`` evaluations a call.

    Args:
        planner: a diffusion planner; its conditioning is applied as in its own sampler, and its
            clipping to the clean sample that the solver is given.
        alpha_bar: the model's training schedule, (training steps,).
        count: evaluations per call.
        solver: ``dpmsolver`` (DPM-Solver++ 2M) or ``unipc`` (UniPC, order 2).
    """

    def __init__(
        self, planner: Planner, alpha_bar: FloatArray, count: int, solver: Solver = "dpmsolver"
    ) -> None:
        kind, self._clip = planner.sampler.kind, planner.sampler.clip
        if kind not in _PREDICTIONS:
            raise InputError("a multistep solver needs a diffusion model, not flow matching")
        self._planner = planner
        self._count = count
        self._alpha_bar = torch.from_numpy(alpha_bar).to(planner.device, planner.dtype)
        before = np.concatenate([[1.0], alpha_bar[:-1]])
        options = {
            "num_train_timesteps": len(alpha_bar),
            "trained_betas": (1.0 - alpha_bar / before).tolist(),
            # Clipping is done here, on the clean sample.
            "prediction_type": _PREDICTIONS[kind] if self._clip is None else "sample",
            "solver_order": 2,
        }
        self._scheduler = _scheduler(solver, options)

    @torch.no_grad()
    def sample(self, context: Context, *, noise: Noise) -> Tensor:
        """Trajectories (batch, horizon, dim) from the given initial noise."""
        scheduler = self._scheduler
        scheduler.set_timesteps(self._count)  # also forgets the last call
        planner = self._planner
        x = planner.start(noise, context)
        for timestep in scheduler.timesteps.tolist():
            told = torch.full((len(x),), timestep, dtype=torch.long, device=x.device)
            prediction = planner.denoiser(x, told, context)
            if self._clip is not None:
                prediction = self._sample(x, prediction, timestep).clamp(-self._clip, self._clip)
            x = scheduler.step(prediction, timestep, x).prev_sample
            if planner.condition is not None:
                x = planner.condition(x, context)
        return x

    def _sample(self, x: Tensor, prediction: Tensor, timestep: int) -> Tensor:
        """The clean sample that a prediction says."""
        kind, level = self._planner.sampler.kind, self._alpha_bar[timestep]
        if kind == "sample":
            return prediction
        if kind == "v":
            return level.sqrt() * x - (1.0 - level).sqrt() * prediction
        return (x - (1.0 - level).sqrt() * prediction) / level.sqrt()


def _scheduler(solver: Solver, options: dict[str, Any]) -> Any:
    try:
        from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler
    except ImportError as error:
        raise InputError(
            "the multistep baselines need diffusers: pip install muninn-diffusion[diffusers]"
        ) from error
    if solver == "dpmsolver":
        return DPMSolverMultistepScheduler(algorithm_type="dpmsolver++", **options)
    if solver == "unipc":
        return UniPCMultistepScheduler(**options)
    raise InputError(f"solver is 'dpmsolver' or 'unipc', got {solver!r}")
