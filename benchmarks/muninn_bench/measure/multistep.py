"""Multistep solvers on a planner's model: diffusers' own schedulers, at states that we choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn_bench.measure.baselines import State, visiting

Solver = Literal["dpmsolver", "unipc"]
ORDERS: dict[Solver, tuple[int, ...]] = {"dpmsolver": (2, 3), "unipc": (1, 2, 3)}
"""Orders that are offered; the first of DPM-Solver++ is DDIM itself."""


class MultistepPlanner:
    """The same model sampled with a multistep solver that evaluates it at the given states.

    diffusers' solvers know the noise levels of the states that they visit and nothing else of the
    model. So the scheduler is built for a model that was trained on just these levels and asked to
    visit all of them, with its own spacing ``trailing``; the network is told its own timesteps.

    The planner's conditioning is applied as in its own sampler, its clipping to the clean sample
    that the solver is given. States come noisiest first; from the last the solver goes to the clean
    sample. Solvers: DPM-Solver++, multistep, and UniPC, bh2.
    """

    def __init__(
        self,
        planner: Planner,
        states: Sequence[State],
        solver: Solver = "dpmsolver",
        order: int = 2,
    ) -> None:
        if planner.sampler.flow:
            raise InputError("a multistep solver needs a diffusion model, not flow matching")
        if solver not in ORDERS:
            raise InputError(f"solver is one of {', '.join(ORDERS)}, got {solver!r}")
        if order not in ORDERS[solver]:
            raise InputError(f"{solver} has the orders {ORDERS[solver]}, got {order}")
        self._planner = visiting(planner, states)
        self._sigmas = torch.tensor([state.noise / state.signal for state in states] + [0.0])
        before, betas = 1.0, []
        for state in reversed(states):
            betas.append(1.0 - state.signal**2 / before)
            before = state.signal**2
        self._scheduler = _scheduler(solver, betas, order)

    @torch.no_grad()
    def sample(self, context: Context, *, noise: Noise) -> Tensor:
        """Trajectories (batch, horizon, dim) from the given initial noise."""
        planner, scheduler, clip = self._planner, self._scheduler, self._planner.sampler.clip
        count = len(planner.sampler)
        scheduler.set_timesteps(count)  # also forgets the last call
        places = scheduler.timesteps.tolist()
        if places != list(range(count))[::-1] or len(scheduler.sigmas) != count + 1:
            raise InputError(f"diffusers visits {places} of {count} states; use a tested version")
        # Its own are products of float32 betas: off by per cents where two levels are far apart.
        scheduler.sigmas = self._sigmas
        x = planner.start(noise, context)
        for step, place in enumerate(places):
            prediction = planner.denoiser(x, planner.timestep(step, len(x)), context)
            clean = planner.sampler.convert(x, prediction, step, "sample")
            # Kept for later steps, so never the network's own buffer.
            clean = clean.clone() if clip is None else clean.clamp(-clip, clip)
            x = scheduler.step(clean, place, x).prev_sample
            if planner.condition is not None:
                x = planner.condition(x, context)
        return x


def _scheduler(solver: Solver, betas: list[float], order: int) -> Any:
    try:
        from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler
    except ImportError as error:
        raise InputError(
            "the multistep solvers need diffusers: pip install muninn-diffusion[diffusers]"
        ) from error
    kind = DPMSolverMultistepScheduler if solver == "dpmsolver" else UniPCMultistepScheduler
    return kind(
        num_train_timesteps=len(betas),
        trained_betas=betas,
        prediction_type="sample",
        timestep_spacing="trailing",
        solver_order=order,
    )
