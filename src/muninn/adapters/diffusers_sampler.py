"""A diffusers scheduler as a sampler whose own steps round exactly as diffusers' do."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler, Step
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm

_KINDS: dict[str, Kind] = {"epsilon": "epsilon", "sample": "sample", "v_prediction": "v"}
_SUPPORTED = ("DDPMScheduler", "DDIMScheduler")


class _Coefficients(NamedTuple):
    """One step in 0-dimensional tensors, computed as the scheduler computes them.

    Next state: ``from_sample * x0 + from_other * (DDPM: x, DDIM: eps) + deviation * noise``.
    """

    signal: Tensor
    noise: Tensor
    from_sample: Tensor
    from_other: Tensor
    deviation: Tensor | float = 0.0


class DiffusersSampler(Sampler):
    """A scheduler's table for some inference steps; full compute equals diffusers bit for bit.

    :class:`Sampler` merges the coefficients of a step in float64, diffusers applies its float32
    tensors one by one: the two differ by rounding. Here a step with a prediction of the
    network's own kind repeats diffusers' operations in their order, and forecasts of another kind
    use the merged table. The scheduler, DDPM or DDIM (eta 0), is never changed; another one, or an
    option that is not supported, is an InputError.
    """

    def __init__(self, scheduler: Any, steps: int) -> None:
        own = copy.deepcopy(scheduler)
        table = _table(own, steps)
        own.set_timesteps(steps)
        visited = [int(timestep) for timestep in own.timesteps]
        if visited != [step.timestep for step in table.steps]:
            raise InputError(
                f"{type(scheduler).__name__} visits timesteps {visited[:3]}... with {steps} steps, "
                f"not {[int(step.timestep) for step in table.steps[:3]]}...; choose another number "
                "of steps or another timestep_spacing"
            )
        self._coefficients = _coefficients(own, visited, table.name)
        pairs = zip(table.steps, self._coefficients, strict=True)
        super().__init__(
            table.name,
            table.kind,
            [_rounded(step, at, table.name) for step, at in pairs],
            flow=False,
            clip=table.clip,
            keep_epsilon=table.keep_epsilon,
            details=table.describe(),
            schedule=table.schedule,
        )

    def _own_step(self, x: Tensor, prediction: Tensor, index: int, noise: Tensor | None) -> Tensor:
        """Next state; sign, order and grouping are diffusers'."""
        at = self._coefficients[index]
        if self.kind == "epsilon":
            sample = (x - at.noise * prediction) / at.signal
        elif self.kind == "sample":
            sample = prediction
        else:
            sample = at.signal * x - at.noise * prediction
        clipped = sample if self.clip is None else sample.clamp(-self.clip, self.clip)
        if self.name == "ddpm":
            mean = at.from_sample * clipped + at.from_other * x
            # Diffusers adds a plain 0 where it draws none, which changes the sign of -0.
            return mean + (0 if noise is None else at.deviation * noise)
        epsilon = prediction  # as x0 implies it before it is clipped
        if self.kind == "sample":
            epsilon = (x - at.signal * sample) / at.noise
        elif self.kind == "v":
            epsilon = at.signal * prediction + at.noise * x
        return at.from_sample * clipped + at.from_other * epsilon


def _rounded(step: Step, at: _Coefficients, name: str) -> Step:
    """The step with the numbers that diffusers computes with.

    It takes ``1 - alpha`` in float32, which is off by up to 3e-4 of the noise level of a nearly
    clean state; a forecast of x0 that is handed over as epsilon must be read back with the same.
    """
    signal, noise, from_sample, from_other, deviation = map(float, at)
    rounded = replace(step, signal=signal, noise=noise, from_sample=from_sample)
    if name == "ddim":
        return replace(rounded, from_epsilon=from_other)
    return replace(rounded, from_state=from_other, from_noise=deviation)


def _table(scheduler: Any, steps: int) -> Sampler:
    """The scheduler's steps with merged coefficients."""
    name = type(scheduler).__name__
    if name not in _SUPPORTED:
        raise InputError(
            f"scheduler {name} is not supported; supported are {', '.join(_SUPPORTED)}. A solver "
            "of higher order (multistep, Heun) needs few steps anyway: take fewer with it instead. "
            "For Euler steps of a flow use muninn.euler; for other loops write an adapter: "
            "docs/guides/adapter.md"
        )
    config = scheduler.config
    if config.prediction_type not in _KINDS:
        raise InputError(
            f"prediction_type {config.prediction_type!r} is not supported; use one of "
            f"{', '.join(_KINDS)}"
        )
    if config.thresholding:
        raise InputError("dynamic thresholding is not supported; use clip_sample")
    schedule = Schedule(config.beta_schedule, scheduler.alphas_cumprod.double().cpu().numpy())
    common: dict[str, Any] = {
        "kind": _KINDS[config.prediction_type],
        "clip": float(config.clip_sample_range) if config.clip_sample else None,
        "spacing": config.timestep_spacing,
        "offset": config.steps_offset,
    }
    if name == "DDIMScheduler":
        end_clean = config.set_alpha_to_one
        return ddim(schedule, steps, keep_epsilon=True, end_clean=end_clean, **common)
    if config.variance_type != "fixed_small":
        raise InputError(
            f"variance_type {config.variance_type!r} is not supported; use 'fixed_small'"
        )
    return ddpm(schedule, steps, **common)


def _coefficients(scheduler: Any, timesteps: list[int], name: str) -> list[_Coefficients]:
    table, result = scheduler.alphas_cumprod, []
    stride = len(table) // len(timesteps)
    for timestep, following in zip(timesteps, [*timesteps[1:], -1], strict=True):
        previous = following if name == "ddpm" else timestep - stride
        end = scheduler.one if name == "ddpm" else scheduler.final_alpha_cumprod
        now, after = table[timestep], table[previous] if previous >= 0 else end
        signal, noise = now**0.5, (1 - now) ** 0.5
        if name == "ddim":
            result.append(_Coefficients(signal, noise, after**0.5, (1 - after) ** 0.5))
            continue
        alpha = now / after
        variance = ((1 - after) / (1 - now) * (1 - alpha)).clamp(min=1e-20)
        from_sample = after**0.5 * (1 - alpha) / (1 - now)
        from_state = alpha**0.5 * (1 - after) / (1 - now)
        result.append(_Coefficients(signal, noise, from_sample, from_state, variance**0.5))
    return result
