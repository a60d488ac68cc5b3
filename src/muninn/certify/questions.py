"""Questions to a network and the answers it gave: how a certificate knows its network again.

Equal weights do not make equal networks: activations, integer settings, hooks, quantisation and
edited code leave the weights as they are. So a certificate keeps a few states, timesteps and a
context of calibration, with the network's predictions there, and whoever loads it asks again.
What differs by more than rounding is another network. Rounding is measured when the certificate
is made; elsewhere (another processor, another release of torch) a stated limit stands in for it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from muninn.certify.stored_context import Arrays, restore
from muninn.context import Context, select
from muninn.identity.arithmetic import Arithmetic
from muninn.identity.undisturbed import under_autocast, undisturbed
from muninn.model.denoiser import Denoiser, at_timestep, own_loop
from muninn.model.planner import Condition, Planner
from muninn.model.schedule import FloatArray

SPREADS = 8
"""Answers within this many measured spreads are the same."""

LIMITS = {"float64": 1e-9, "float32": 1e-3, "tf32": 5e-2, "float16": 5e-2, "bfloat16": 2e-1}
"""Where no spread was measured: largest difference of an answer, in shares of its root mean
square, by the coarsest precision that the network computes with."""

_DIGITS = {"tf32": "float32"}  # what its answers are kept in
_ARRAYS = ("states", "answers", "timesteps", "spread")
_PLAIN = ("context", "dtype", "precision", "machine")


def machine(device: torch.device) -> dict[str, Any]:
    """What rounding depends on besides the network: processor, threads and release of torch."""
    release = re.match(r"\d+\.\d+", torch.__version__)
    found = {"torch": release.group() if release else torch.__version__}
    if device.type == "cuda":
        return {**found, "processor": torch.cuda.get_device_name(device)}
    if device.type == "cpu":
        return {**found, "processor": _processor(), "threads": torch.get_num_threads()}
    return {**found, "processor": device.type}


@functools.cache
def _processor() -> str:
    """Name of the CPU and the instructions that torch uses on it."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        name = found.group(1) if found else name
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


@dataclass(frozen=True)
class Asked:
    """States, timesteps and contexts at which a network is asked, and how."""

    states: Tensor  # (steps, rows, *shape)
    timesteps: Tensor  # what the network is told at each, (steps,)
    context: Context  # of the rows
    arithmetic: Arithmetic  # of calibration; its autocast is put around the questions

    def predictions(
        self, denoiser: Denoiser, rows: slice | Tensor = slice(None), known: bool = True
    ) -> Tensor:
        """The answers of some rows, asked together, (steps, rows, *shape).

        ``known``: guidance is told the timestep by the host, as it is in the eager loop.
        """
        kind, own = self.states.device.type, select(self.context, rows)
        with under_autocast(self.arithmetic, kind), torch.no_grad(), own_loop():
            answers = []
            values = self.timesteps.tolist()
            for state, timestep, value in zip(self.states, self.timesteps, values, strict=True):
                given = state[rows].clone()  # some networks write into what they are given
                told = timestep.expand(len(given)).clone()
                with at_timestep(value if known else None):
                    answers.append(denoiser(given, told, own).detach().clone())
        return torch.stack(answers)

    def conditioned(self, condition: Condition | None) -> Tensor | None:
        """The states as a planner's condition leaves them."""
        if condition is None:
            return None
        return torch.stack([condition(each.clone(), self.context).clone() for each in self.states])


@dataclass(frozen=True)
class Questions:
    """What a network was asked, and what it answered, as a certificate keeps it."""

    states: FloatArray  # float64 or float32, (steps, rows, *shape)
    answers: FloatArray
    timesteps: Any  # (steps,)
    conditioned: FloatArray | None  # states after the planner's condition
    context: Any  # JSON of the rows' context, as stored_context writes it
    arrays: Arrays  # the numbers of that context
    spread: FloatArray
    """By how much an answer changes when it is asked again, alone, among other rows or on the
    deployed engine, in shares of its root mean square, (steps, rows)."""
    dtype: str  # of the states
    precision: str  # the coarsest that the network computes with, a key of LIMITS
    machine: dict[str, Any]  # at calibration

    def difference(
        self, planner: Planner, in_force: Arithmetic, after: Callable[[], None] | None = None
    ) -> str | None:
        """Ask again; how the answers differ, in words, or None if only by rounding.

        ``in_force`` is the certificate's; ``after`` is called whenever the network has answered.
        """
        denoiser, device = planner.denoiser, planner.device
        asked = Asked(
            torch.from_numpy(np.array(self.states)).to(device, getattr(torch, self.dtype)),
            torch.from_numpy(np.array(self.timesteps)).to(device),
            restore(self.context, self.arrays, device),
            in_force,
        )
        with undisturbed(denoiser, device):
            try:
                answers = [asked.predictions(denoiser)]
                if planner.engine != "eager":  # where rows are at steps of their own, in rounds
                    answers.append(asked.predictions(denoiser, known=False))
                if after is not None:
                    after()
                    asked.predictions(denoiser, slice(1))  # it may rewrite other things then
                    after()
                states = asked.conditioned(planner.condition)
            except torch.OutOfMemoryError:
                raise  # says nothing about the network
            except Exception as error:  # whatever another network raises at this one's questions
                reason = f"{type(error).__name__}: {error}".partition("\n")[0][:120]
                return f"it cannot answer the certificate's stored questions ({reason})"
        allowed, words = self.allowed(device)
        stored = torch.from_numpy(np.array(self.answers))
        far = np.maximum.reduce([apart(found, stored) for found in answers])
        if not (far <= allowed).all():
            worst = int(np.nan_to_num(far / allowed, nan=np.inf).argmax())
            return (
                f"its answers to the certificate's stored questions differ by "
                f"{far.flat[worst]:.2g} of their size, where {words} explains "
                f"{allowed.flat[worst]:.2g}: other code, settings or hooks"
            )
        return _other_condition(states, self.conditioned, LIMITS[self.dtype])

    def allowed(self, device: torch.device) -> tuple[FloatArray, str]:
        """Largest difference of each answer that is rounding, and where that is known from."""
        if self._moved(device):
            limit = np.maximum(LIMITS[self.precision], SPREADS * self.spread)
            return limit, f"the limit of {self.precision}"
        kept = _DIGITS.get(self.precision, self.precision)
        least = SPREADS * torch.finfo(getattr(torch, kept)).eps
        return np.maximum(SPREADS * self.spread, least), "measured rounding"

    def _moved(self, device: torch.device) -> list[str]:
        """What is another one here than where the questions were asked first."""
        return [
            f"{name} {self.machine.get(name)} -> {here}"
            for name, here in machine(device).items()
            if self.machine.get(name) != here
        ]

    def elsewhere(self, device: torch.device) -> str | None:
        """Why the stated limit stands in for measured rounding here, or None."""
        if not (moved := self._moved(device)):
            return None
        return (
            f"the certificate was made elsewhere ({', '.join(moved)}): the network's answers are "
            f"compared within {LIMITS[self.precision]:g} of their size, the limit of "
            f"{self.precision}, not within measured rounding"
        )

    # -- the file ----------------------------------------------------------------------------

    def to_file(self) -> tuple[dict[str, Any], Arrays]:
        """Plain fields and arrays."""
        arrays = {name: getattr(self, name) for name in _ARRAYS} | self.arrays
        if self.conditioned is not None:
            arrays["conditioned"] = self.conditioned
        plain = {name: getattr(self, name) for name in _PLAIN}
        return plain, {f"question_{name}": array for name, array in arrays.items()}

    @classmethod
    def from_file(cls, plain: dict[str, Any], arrays: Arrays) -> Questions:
        """The questions that :meth:`to_file` described."""
        own = {
            name.removeprefix("question_"): array
            for name, array in arrays.items()
            if name.startswith("question_")
        }
        conditioned = own.pop("conditioned", None)
        named = {name: own.pop(name) for name in _ARRAYS}
        return cls(**named, conditioned=conditioned, arrays=own, **plain)


def apart(answers: Tensor, others: Tensor) -> FloatArray:
    """Largest difference of each answer, in shares of its root mean square, (steps, rows).

    Infinite where shapes differ, or where only one of two numbers is NaN.
    """
    if answers.shape != others.shape:
        return np.full(others.shape[:2], math.inf)
    one, other = answers.detach().cpu().double().flatten(2), others.cpu().double().flatten(2)
    size = other.square().nanmean(dim=2).sqrt().nan_to_num(0.0).clamp_min(1e-30)
    far = (one - other).abs()
    far[one.isnan() & other.isnan()] = 0.0
    far = far.nan_to_num(math.inf, posinf=math.inf)
    return np.asarray((far.amax(dim=2) / size).numpy(), dtype=np.float64)


def _other_condition(states: Tensor | None, stored: FloatArray | None, limit: float) -> str | None:
    """How a condition differs from the one that left the stored states, or None."""
    other = "the planner's condition is another one: it"
    if states is None or stored is None:
        same = states is None and stored is None
        return None if same else f"{other} {'had' if stored is None else 'has'} none"
    far = apart(states, torch.from_numpy(np.array(stored)))
    if (far <= limit).all():
        return None
    return (
        f"{other} leaves the stored states {np.nanmax(far):.2g} of their size away from where it "
        "left them at calibration"
    )
