"""Closed-form denoisers: exact posterior means, and predictions that are exact polynomials.

Nothing here is learned, so every test that uses them knows the right answer. The conversions
between parameterisations are written out again, independently of :mod:`muninn.model.sampler`.

Contexts: the mixture reads None or a tensor (batch, ...) that shifts its means; the polynomial
reads None or a tensor (batch,) that scales it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from muninn.model.planner import Planner
from muninn.model.sampler import Kind, Sampler

Denoise = Callable[[Tensor, Tensor, Any], Tensor]


def join(
    kind: Kind,
    sample: Tensor,
    epsilon: Tensor,
    signal: Tensor | float,
    noise: Tensor | float,
    sign: float = 1.0,
) -> Tensor:
    """The prediction of the given kind that says (x0, eps); ``sign`` is that of flow time."""
    if kind == "sample":
        return sample
    if kind == "epsilon":
        return epsilon
    if kind == "v":
        return signal * epsilon - noise * sample
    return sign * (epsilon - sample)


def split(
    kind: Kind,
    x: Tensor,
    prediction: Tensor,
    signal: Tensor | float,
    noise: Tensor | float,
    sign: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """(x0, eps) that a prediction of the given kind says at state x = signal x0 + noise eps."""
    if kind == "sample":
        sample = prediction
    elif kind == "epsilon":
        return (x - noise * prediction) / signal, prediction
    elif kind == "v":  # signal^2 + noise^2 = 1
        return signal * x - noise * prediction, noise * x + signal * prediction
    else:  # signal + noise = 1
        return x - noise * sign * prediction, x + signal * sign * prediction
    return sample, (x - signal * sample) / noise


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))


def levels(sampler: Sampler, timestep: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(signal, noise) of the steps that the rows are told, float64 columns against x."""
    told, signal, noise = _level_table(sampler, x.device)
    # nearest, since flow times are told in float32
    step = (timestep.double()[:, None] - told).abs().argmin(dim=1)
    return _column(signal[step], x), _column(noise[step], x)


@functools.lru_cache(maxsize=64)
def _level_table(sampler: Sampler, device: torch.device) -> Tensor:
    """Rows: timesteps, signal and noise levels. Made once per device: captures cannot copy."""
    table = [[step.timestep, step.signal, step.noise] for step in sampler.steps]
    return torch.tensor(table, dtype=torch.float64, device=device).T


@dataclass(frozen=True, eq=False)
class MixtureDenoiser:
    """Exact prediction for x0 ~ sum of weights_j N(means_j + shift, deviations_j^2 I).

    Attributes:
        sampler: tells signal and noise levels and the kind to answer in.
        means: (components, *shape), float64.
        deviations, weights: (components,), float64.
    """

    sampler: Sampler
    means: Tensor
    deviations: Tensor
    weights: Tensor

    def to(self, device: torch.device) -> MixtureDenoiser:
        """The same on a device."""
        tensors = (self.means, self.deviations, self.weights)
        return MixtureDenoiser(self.sampler, *(tensor.to(device) for tensor in tensors))

    def _parts(self, x: Tensor, timestep: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Per component: log density of x, and posterior mean given it."""
        signal, noise = levels(self.sampler, timestep, x)
        means = self.means[None].expand(len(x), *self.means.shape)
        if context is not None:
            gap = x.ndim - context.ndim
            shift = context.double().view(len(x), *[1] * (gap + 1), *context.shape[1:])
            means = means + shift
        deviations = self.deviations.view(1, -1, *[1] * (x.ndim - 1))
        variance = signal[:, None] ** 2 * deviations**2 + noise[:, None] ** 2
        offset = x.double()[:, None] - signal[:, None] * means
        size = x[0].numel()
        log_density = (
            self.weights.log()[None]
            - 0.5 * (offset**2 / variance).flatten(2).sum(dim=2)
            - 0.5 * size * variance.flatten(1).log()
        )
        inside = means + signal[:, None] * deviations**2 / variance * offset
        return log_density, inside

    def log_density(self, x: Tensor, timestep: Tensor, context: Tensor | None = None) -> Tensor:
        """log p_t(x) up to a constant, (batch,), differentiable in x."""
        return self._parts(x, timestep, context)[0].logsumexp(dim=1)

    def posterior_mean(self, x: Tensor, timestep: Tensor, context: Tensor | None = None) -> Tensor:
        """E[x0 | x_t = x], float64."""
        log_density, inside = self._parts(x, timestep, context)
        share = (log_density - log_density.logsumexp(dim=1, keepdim=True)).exp()
        return (share.view(*share.shape, *[1] * (x.ndim - 1)) * inside).sum(dim=1)

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor | None = None, /) -> Tensor:
        signal, noise = levels(self.sampler, timestep, x)
        sample = self.posterior_mean(x, timestep, context)
        epsilon = (x.double() - signal * sample) / noise
        sign = self.sampler.velocity_sign
        return join(self.sampler.kind, sample, epsilon, signal, noise, sign).to(x.dtype)


@dataclass(frozen=True, eq=False)
class PolynomialDenoiser:
    """Prediction whose ``quantity`` is a polynomial in the smooth variable, whatever the state.

    The smooth variable is the angle ``atan2(noise, signal)`` of a diffusion and the noise level
    of a flow (method, section 4).

    Attributes:
        sampler: tells the levels and the kind to answer in.
        quantity: the parameterisation that is polynomial.
        coefficients: (degree + 1, *shape), float64, lowest power first.
    """

    sampler: Sampler
    quantity: Kind
    coefficients: Tensor

    def value(self, timestep: Tensor, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The quantity at a timestep, (batch, *shape), float64."""
        signal, noise = levels(self.sampler, timestep, x)
        variable = noise if self.sampler.flow else torch.atan2(noise, signal)
        total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for power, coefficient in enumerate(self.coefficients):
            total = total + coefficient * variable**power
        return total if context is None else total * _column(context.double(), x)

    def __call__(self, x: Tensor, timestep: Tensor, context: Tensor | None = None, /) -> Tensor:
        signal, noise = levels(self.sampler, timestep, x)
        value = self.value(timestep, x, context)
        if self.quantity == self.sampler.kind:
            return value.to(x.dtype)
        sign = self.sampler.velocity_sign
        sample, epsilon = split(self.quantity, x.double(), value, signal, noise, sign)
        return join(self.sampler.kind, sample, epsilon, signal, noise, sign).to(x.dtype)


@dataclass
class Counting:
    """A denoiser that remembers what it was asked: rows and timestep of every forward."""

    inner: Denoise
    rows: list[int] = field(default_factory=list)
    timesteps: list[float] = field(default_factory=list)

    def __call__(self, x: Tensor, timestep: Tensor, context: Any, /) -> Tensor:
        self.rows.append(len(x))
        self.timesteps.append(float(timestep[0]))
        return self.inner(x, timestep, context)


def mixture_denoiser(
    sampler: Sampler,
    shape: Sequence[int],
    *,
    components: int = 3,
    deviation: float = 0.25,
    spread: float = 0.7,
    seed: int = 0,
) -> MixtureDenoiser:
    """A mixture with random means of size ``spread``; a few modes to decide between."""
    generator = torch.Generator().manual_seed(seed)
    means = spread * torch.randn(components, *shape, generator=generator, dtype=torch.float64)
    deviations = deviation * (1 + 0.5 * torch.rand(components, generator=generator).double())
    weights = torch.rand(components, generator=generator).double() + 0.5
    return MixtureDenoiser(sampler, means, deviations, weights / weights.sum())


def mixture_planner(
    sampler: Sampler,
    shape: Sequence[int] = (4, 2),
    *,
    components: int = 3,
    deviation: float = 0.25,
    spread: float = 0.7,
    seed: int = 0,
    **planner_fields: Any,
) -> Planner:
    """A planner whose denoiser is the exact posterior mean of a Gaussian mixture."""
    denoiser = mixture_denoiser(
        sampler, shape, components=components, deviation=deviation, spread=spread, seed=seed
    )
    return Planner(denoiser, sampler, tuple(shape), **planner_fields)


def polynomial_planner(
    sampler: Sampler,
    degree: int,
    shape: Sequence[int] = (4, 2),
    *,
    quantity: Kind | None = None,
    seed: int = 0,
    **planner_fields: Any,
) -> Planner:
    """A planner whose ``quantity`` (its own kind by default) is a polynomial of ``degree``."""
    generator = torch.Generator().manual_seed(seed)
    coefficients = torch.randn(degree + 1, *shape, generator=generator, dtype=torch.float64)
    denoiser = PolynomialDenoiser(sampler, quantity or sampler.kind, coefficients)
    return Planner(denoiser, sampler, tuple(shape), **planner_fields)
