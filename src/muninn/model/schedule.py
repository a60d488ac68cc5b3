"""Noise schedules of diffusion models and the steps at which a sampler visits them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from muninn.errors import InputError

Spacing = Literal["leading", "trailing", "linspace"]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Cumulative signal power of a variance-preserving diffusion; InputError unless it falls."""

    name: str  # how the table was made; part of a certificate
    alpha_bar: FloatArray = field(repr=False)  # (training steps,), inside (0, 1)

    def __post_init__(self) -> None:
        table = np.array(self.alpha_bar, dtype=np.float64)
        object.__setattr__(self, "alpha_bar", table)
        if table.ndim != 1 or table.size == 0:
            raise InputError(
                f"alpha_bar must be a non-empty 1-D table, got shape {table.shape}; "
                "pass one value per training step"
            )
        if not np.isfinite(table).all() or table.min() <= 0.0 or table.max() >= 1.0:
            raise InputError(
                f"alpha_bar must lie in (0, 1), got [{table.min():.3g}, {table.max():.3g}]; "
                "schedules with zero terminal signal, or a step without noise, are not supported"
            )
        rising = np.flatnonzero(np.diff(table) >= 0.0)
        if rising.size:
            at = int(rising[0])
            raise InputError(
                f"alpha_bar must strictly decrease with the timestep, but alpha_bar[{at + 1}]="
                f"{table[at + 1]:.6g} is not below alpha_bar[{at}]={table[at]:.6g}; "
                "check the order of the table (index 0 is the least noisy step)"
            )

    @property
    def steps(self) -> int:
        """Number of training steps."""
        return int(self.alpha_bar.size)

    def digest(self) -> str:
        """Short content hash, so that certificates of different tables do not match."""
        return hashlib.sha256(np.round(self.alpha_bar, 9).tobytes()).hexdigest()[:16]

    @classmethod
    def from_betas(cls, name: str, betas: FloatArray) -> Schedule:
        """Table of ``prod(1 - beta)`` for per-step variances ``betas`` (steps,)."""
        table: FloatArray = np.cumprod(1.0 - np.asarray(betas, dtype=np.float64), dtype=np.float64)
        return cls(name, table)

    @classmethod
    def cosine(cls, steps: int) -> Schedule:
        """Squared-cosine schedule of Nichol and Dhariwal (s = 0.008, beta clipped at 0.999)."""
        _require_steps(steps)

        def power(time: float) -> float:
            return math.cos((time + 0.008) / 1.008 * math.pi / 2) ** 2

        betas = [min(1 - power((i + 1) / steps) / power(i / steps), 0.999) for i in range(steps)]
        return cls.from_betas("cosine", np.array(betas))

    @classmethod
    def linear(cls, steps: int, start: float = 1e-4, end: float = 0.02) -> Schedule:
        """Linear variances from ``start`` to ``end`` (Ho et al. 2020)."""
        _require_steps(steps)
        return cls.from_betas(f"linear({start:g}, {end:g})", np.linspace(start, end, steps))

    @classmethod
    def scaled_linear(cls, steps: int, start: float = 1e-4, end: float = 0.02) -> Schedule:
        """Variances linear in their square root (latent diffusion)."""
        _require_steps(steps)
        betas = np.linspace(start**0.5, end**0.5, steps) ** 2
        return cls.from_betas(f"scaled_linear({start:g}, {end:g})", betas)


def spaced_timesteps(
    training_steps: int, steps: int, spacing: Spacing = "leading", offset: int = 0
) -> list[int]:
    """Training timesteps visited by ``steps`` sampler steps, noisiest first.

    The three spacings are those of the diffusers schedulers; ``offset`` is their
    ``steps_offset`` and applies to ``leading`` only.

    >>> spaced_timesteps(100, 4)
    [75, 50, 25, 0]
    >>> spaced_timesteps(100, 4, "trailing")
    [99, 74, 49, 24]
    """
    _require_steps(steps)
    if steps > training_steps:
        raise InputError(
            f"asked for {steps} sampler steps of a model trained with {training_steps}; "
            f"choose between 1 and {training_steps}"
        )
    if spacing == "leading":
        visited = np.arange(steps) * (training_steps // steps)
        timesteps = visited[::-1] + offset
    elif spacing == "trailing":
        # arange may run one value past its end by rounding: 29 of 100 would visit timestep -1
        timesteps = np.round(np.arange(training_steps, 0, -training_steps / steps))[:steps] - 1
    elif spacing == "linspace":
        timesteps = np.linspace(0, training_steps - 1, steps).round()[::-1]
    else:
        raise InputError(f"unknown spacing {spacing!r}; choose leading, trailing or linspace")
    if timesteps[0] >= training_steps:
        raise InputError(
            f"offset {offset} moves the first timestep to {int(timesteps[0])}, past the last "
            f"training step {training_steps - 1}; use a smaller offset"
        )
    if timesteps[-1] < 0:
        raise InputError(
            f"offset {offset} moves the last timestep to {int(timesteps[-1])}; use an offset of "
            "at least 0"
        )
    return [int(timestep) for timestep in timesteps]


def _require_steps(steps: int) -> None:
    if steps < 1:
        raise InputError(f"a schedule needs at least one step, got {steps}")
