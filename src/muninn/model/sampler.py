"""A sampler as a table of steps with exact coefficients, in any parameterisation.

A step reads the state ``x`` and a prediction ``p`` of the network and writes the next state.
Every supported step is affine in the clean sample ``x0`` and the noise ``eps`` it derives::

    x_next = from_state * x + from_sample * x0 + from_epsilon * eps + from_noise * xi

so one class serves all of them, and a step can consume a prediction in *any* parameterisation,
not only the network's own. That is what lets a forecast live in the quantity that is smoothest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, astuple, dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.model.schedule import FloatArray, Schedule

Kind = Literal["epsilon", "sample", "v", "velocity"]
DIFFUSION_KINDS: tuple[Kind, ...] = ("epsilon", "sample", "v")
FLOW_KINDS: tuple[Kind, ...] = ("epsilon", "sample", "velocity")


@dataclass(frozen=True)
class Step:
    """One sampler step: where it stands on the schedule and how it combines x, x0, eps, xi."""

    timestep: float  # what the network is told: integer index, or flow time
    signal: float  # x = signal * x0 + noise * eps at this state
    noise: float
    next_signal: float  # the same after the step
    next_noise: float
    from_state: float  # the update of the module docstring
    from_sample: float
    from_epsilon: float
    from_noise: float = 0.0
    draws_noise: bool = False  # whether the plain sampler consumes a random draw at this step


class Level(Protocol):
    """A noise level: ``x = signal * x0 + noise * eps``."""

    @property
    def signal(self) -> float: ...

    @property
    def noise(self) -> float: ...


Affine = tuple[float, float, float, float, float]
"""A step for one kind of prediction p: x0 from (x, p), and the next state from (clipped x0, x, p).
Without clipping x0 does not enter: the third number is 0."""


@dataclass(eq=False, repr=False)
class Sampler:
    """A fixed sequence of steps from noise to a trajectory. Immutable, holds no run state.

    Build one with :func:`muninn.ddpm`, :func:`muninn.ddim` or :func:`muninn.euler`.
    """

    name: str
    kind: Kind  # parameterisation of the network's prediction
    steps: Sequence[Step]  # noisiest first
    _: KW_ONLY
    flow: bool
    clip: float | None = None  # bound on |x0|
    # With clipping, keep the raw noise estimate (diffusers' DDIM) instead of deriving it again
    # from the clipped x0 (Diffuser).
    keep_epsilon: bool = False
    # Of eps - x0 in a flow's velocity: +1 where time runs from 1 (noise) to 0, -1 from 0 to 1.
    velocity_sign: float = 1.0
    details: Mapping[str, Any] = field(default_factory=dict)  # more of the description
    schedule: Schedule | None = None  # of training: levels that the network knows besides

    def __post_init__(self) -> None:
        self.kinds = FLOW_KINDS if self.flow else DIFFUSION_KINDS
        if self.kind not in self.kinds:
            raise InputError(
                f"{self.name} cannot use a network that predicts {self.kind!r}; choose one of "
                f"{self.kinds}"
            )
        if self.clip is not None and not self.clip > 0.0:
            raise InputError(f"clip must be a positive bound on |x0| or None, got {self.clip}")
        self.steps = tuple(self.steps)
        self.drawing = tuple(i for i, step in enumerate(self.steps) if step.draws_noise)
        self._affine = {k: [self._merge(step, k) for step in self.steps] for k in self.kinds}
        table = repr([astuple(step) for step in self.steps]) + repr(self.velocity_sign)
        self._digest = hashlib.sha256(table.encode()).hexdigest()[:16]
        self._frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_frozen", False):
            raise InputError(f"a sampler is fixed once it is made; build another one for {name}")
        super().__setattr__(name, value)

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def stochastic(self) -> bool:
        """Whether a step adds noise, so that paired runs must share more than x_T."""
        return bool(self.drawing)

    def describe(self) -> dict[str, Any]:
        """JSON-ready identity of the sampler; two samplers with equal descriptions agree."""
        return {
            "name": self.name,
            "kind": self.kind,
            "steps": len(self),
            "clip": self.clip,
            "keep_epsilon": self.keep_epsilon,
            **self.details,
            "table": self._digest,
        }

    def _to_sample(self, step: Level, kind: Kind) -> tuple[float, float]:
        """(u, w) with x0 = u * x + w * p."""
        if kind == "sample":
            return 0.0, 1.0
        if kind == "v":
            return step.signal, -step.noise
        if kind == "velocity":
            return 1.0, -self.velocity_sign * step.noise
        if step.signal == 0.0:  # pure noise carries no clean sample: unusable, never silent
            return math.nan, math.nan
        return 1.0 / step.signal, -step.noise / step.signal

    def _to_epsilon(self, step: Level, kind: Kind) -> tuple[float, float]:
        """(u, w) with eps = u * x + w * p."""
        if kind == "epsilon":
            return 0.0, 1.0
        if kind == "v":
            return step.noise, step.signal
        if kind == "velocity":
            return 1.0, self.velocity_sign * step.signal
        return 1.0 / step.noise, -step.signal / step.noise

    def conversion(self, index: int, target: Kind) -> tuple[float, float]:
        """(u, w) with ``target = u * x + w * prediction`` for the network's own prediction."""
        if target == self.kind:
            return 0.0, 1.0
        step, sign = self.steps[index], self.velocity_sign
        scale_e, scale_s = {
            "epsilon": (1.0, 0.0),
            "sample": (0.0, 1.0),
            "v": (step.signal, -step.noise),
            "velocity": (sign, -sign),
        }[target]
        (sample_x, sample_p), (epsilon_x, epsilon_p) = self.estimates(step)
        return scale_e * epsilon_x + scale_s * sample_x, scale_e * epsilon_p + scale_s * sample_p

    def estimates(self, level: Level) -> tuple[tuple[float, float], tuple[float, float]]:
        """Weights of state and prediction in the clean sample and in the noise, at any level."""
        return self._to_sample(level, self.kind), self._to_epsilon(level, self.kind)

    def convert(self, x: Tensor, prediction: Tensor, index: int, target: Kind) -> Tensor:
        """The network's prediction at state ``x`` of step ``index``, as quantity ``target``."""
        from_state, from_prediction = self.conversion(index, target)
        if from_state == 0.0:
            return prediction if from_prediction == 1.0 else prediction * from_prediction
        return (x * from_state).add_(prediction, alpha=from_prediction)

    def unclipped(self, index: int, kind: Kind) -> tuple[float, float]:
        """Weights of the state and of a prediction in the next state, without clipping."""
        return self._unclipped(self.steps[index], kind)

    def _unclipped(self, step: Step, kind: Kind) -> tuple[float, float]:
        sample_x, sample_p = self._to_sample(step, kind)
        epsilon_x, epsilon_p = self._to_epsilon(step, kind)
        return (
            step.from_state + step.from_sample * sample_x + step.from_epsilon * epsilon_x,
            step.from_sample * sample_p + step.from_epsilon * epsilon_p,
        )

    def _merge(self, step: Step, kind: Kind) -> Affine:
        sample = self._to_sample(step, kind)
        if self.clip is None:
            return (*sample, 0.0, *self._unclipped(step, kind))
        if self.keep_epsilon:
            epsilon_x, epsilon_p = self._to_epsilon(step, kind)
            from_state = step.from_state + step.from_epsilon * epsilon_x
            return (*sample, step.from_sample, from_state, step.from_epsilon * epsilon_p)
        from_sample = step.from_sample - step.from_epsilon * step.signal / step.noise
        return (*sample, from_sample, step.from_state + step.from_epsilon / step.noise, 0.0)

    def affine(self, index: int, kind: Kind) -> Affine:
        """A step as numbers, for one kind of prediction."""
        return self._affine[kind][index]

    def step(
        self,
        x: Tensor,
        prediction: Tensor,
        index: int,
        noise: Tensor | None = None,
        kind: Kind | None = None,
    ) -> Tensor:
        """Next state from ``x`` (batch, ...) before step ``index`` and a prediction of its shape.

        Neither is written to. ``kind`` is what the prediction is; the network's own by default.
        InputError where the step draws noise and there is none.
        """
        if prediction.dtype != x.dtype:
            prediction = prediction.to(x.dtype)
        if not self.steps[index].draws_noise:
            noise = None
        elif noise is None:
            raise InputError(f"step {index} of {self.name} needs its noise draw; got none")
        if kind is None or kind == self.kind:
            return self._own_step(x, prediction, index, noise)
        return self._merged_step(x, prediction, index, noise, kind)

    def _own_step(self, x: Tensor, prediction: Tensor, index: int, noise: Tensor | None) -> Tensor:
        """A step with the network's own kind and dtype, for frameworks that round differently."""
        return self._merged_step(x, prediction, index, noise, self.kind)

    def _merged_step(
        self, x: Tensor, prediction: Tensor, index: int, noise: Tensor | None, kind: Kind
    ) -> Tensor:
        """A step with the merged coefficients of the table."""
        sample_x, sample_p, from_sample, from_state, from_prediction = self._affine[kind][index]
        if self.clip is None:
            after = torch.mul(x, from_state).add_(prediction, alpha=from_prediction)
        else:
            sample = prediction
            if sample_x != 0.0:
                sample = (x * sample_x).add_(prediction, alpha=sample_p)
            after = sample.clamp(-self.clip, self.clip).mul_(from_sample)
            after.add_(x, alpha=from_state)
            if from_prediction != 0.0:
                after.add_(prediction, alpha=from_prediction)
        return after if noise is None else after.add_(noise, alpha=self.steps[index].from_noise)

    def coefficients(self, index: int, kind: Kind | None = None) -> tuple[float, float]:
        """Lipschitz constants (K, L') of a step in its state and its prediction.

        With clipping the step is piecewise affine; the larger slope of the pieces is returned.
        """
        kind = kind or self.kind
        state, prediction = self.unclipped(index, kind)
        _, _, _, clipped_state, clipped_prediction = self._affine[kind][index]
        return max(abs(state), abs(clipped_state)), max(abs(prediction), abs(clipped_prediction))

    def sensitivity(self, kind: Kind | None = None) -> FloatArray:
        """Path coefficients L_t = L'_t * prod of later K, (steps,), accumulated in log space."""
        pairs = np.array([self.coefficients(i, kind) for i in range(len(self))])
        with np.errstate(divide="ignore"):
            log_state, log_prediction = np.log(pairs).T
        later = np.concatenate([np.cumsum(log_state[::-1])[::-1][1:], [0.0]])
        path: FloatArray = np.exp(log_prediction + later)
        return path
