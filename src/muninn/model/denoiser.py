"""The denoiser seam: any callable, with guidance composed into one effective prediction.

The runtime sees one function ``denoiser(x, timestep, context) -> prediction``. Guidance wraps it
in another function of the same signature, so a step that is forecast skips *all* of its forwards
and gradients.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from muninn.context import Context
from muninn.errors import DenoiserError, InputError
from muninn.identity.digest import tensor_bytes
from muninn.identity.links import COMPILED, identified
from muninn.identity.snapshot import Snapshot
from muninn.model.sampler import Sampler

_LOOPS = threading.local()


@contextmanager
def own_loop() -> Iterator[None]:
    """Around loops of Muninn's own: in them a network that was intercepted is the plain one."""
    _LOOPS.inside = getattr(_LOOPS, "inside", 0) + 1
    try:
        yield
    finally:
        _LOOPS.inside -= 1


def in_own_loop() -> bool:
    """Whether this thread is in a loop of Muninn's own."""
    return getattr(_LOOPS, "inside", 0) > 0


@contextmanager
def at_timestep(value: float | None) -> Iterator[None]:
    """Around an evaluation of which the host knows that all rows are at one timestep."""
    before = known_timestep()
    _LOOPS.timestep = value
    try:
        yield
    finally:
        _LOOPS.timestep = before


def known_timestep() -> float | None:
    """The timestep of the evaluation under way in this thread, where the host knows it; else None.

    Guidance that is for some timesteps only can so leave out its work at the others, without
    waiting for a device, and in a CUDA graph of a fixed plan. Not for what is captured or compiled
    by itself: that would keep the timestep it was captured at. A compiler is told None.
    """
    if torch.compiler.is_compiling():
        return None
    found: float | None = getattr(_LOOPS, "timestep", None)
    return found


class Denoiser(Protocol):
    """Predicts at state ``x`` (batch, ...) and ``timestep`` (batch,); returns the shape of x."""

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor: ...


@dataclass(frozen=True)
class ClassifierFreeGuidance:
    """Classifier-free guidance: ``unconditional + scale * (conditional - unconditional)``.

    ``unconditional`` maps a context to its unconditional twin (drops the label, zeroes it, ...).
    """

    denoiser: Denoiser
    unconditional: Callable[[Context], Context]
    scale: float

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        return self.guide(self.denoiser(x, timestep, context), x, timestep, context)

    def guide(self, prediction: Tensor, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """The effective prediction, given the conditional one; runs the unconditional forward."""
        baseline = self.denoiser(x, timestep, self.unconditional(context))
        return baseline + self.scale * (prediction - baseline)

    def describe(self) -> dict[str, Any]:
        """Identity for certificates."""
        return {
            "guidance": "classifier-free",
            "scale": self.scale,
            "denoiser": described(self.denoiser),
        }


class GradientGuidance:
    """Adds the gradient of an objective to the score, in the network's own parameterisation.

    With ``g = scale * d objective / d x`` the score moves by ``+g``. Since
    ``score = -eps / noise``, epsilon moves by ``-noise * g``, and the other parameterisations by
    what that implies (``sample`` by ``+noise^2 / signal * g``, and so on).
    ``objective(x, timestep, context) -> (batch,)`` is to be *maximised*; its gradient is computed
    only where the denoiser is evaluated. The sampler tells the noise level of each timestep.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        objective: Callable[[Tensor, Tensor, Context], Tensor],
        scale: float,
        sampler: Sampler,
    ) -> None:
        self.denoiser = denoiser
        self.objective = objective
        self.scale = scale
        # d prediction / d eps at fixed x, from x = signal * x0 + noise * eps
        factors = {}
        for step in sampler.steps:
            if sampler.kind == "epsilon":
                slope = 1.0
            elif step.signal == 0.0:
                slope = 0.0  # pure noise: the state does not yet depend on the trajectory
            elif sampler.kind == "sample":
                slope = -step.noise / step.signal
            else:
                slope = sampler.velocity_sign / step.signal
            factors[float(step.timestep)] = -step.noise * slope
        self._times = torch.tensor(list(factors), dtype=torch.float64)
        self._factors = torch.tensor(list(factors.values()), dtype=torch.float64)

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        return self.guide(self.denoiser(x, timestep, context), x, timestep, context)

    def guide(self, prediction: Tensor, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """The effective prediction, given the denoiser's own; computes the gradient."""
        with torch.inference_mode(False), torch.enable_grad():
            point = x.detach().clone().requires_grad_(True)
            value = self.objective(point, timestep, context)
            (gradient,) = torch.autograd.grad(value.sum(), point)
        if self._times.device != x.device:  # once: a captured call must not read from the host
            self._times, self._factors = self._times.to(x.device), self._factors.to(x.device)
        distance = (timestep.detach().double()[:, None] - self._times).abs()
        factor = self._factors[distance.argmin(dim=1)].to(x)
        return prediction + self.scale * factor.view(-1, *[1] * (x.ndim - 1)) * gradient

    def describe(self) -> dict[str, Any]:
        """Identity for certificates."""
        return {
            "guidance": "gradient",
            "scale": self.scale,
            "objective": getattr(self.objective, "__qualname__", type(self.objective).__name__),
            "denoiser": described(self.denoiser),
        }


def described(denoiser: Any) -> Any:
    """The guidance a denoiser carries itself, or None."""
    describe = getattr(denoiser, "describe", None)
    return describe() if callable(describe) else None


def check_prediction(prediction: Any, x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The prediction at state ``x``, if a sampler can use it; ``dtype`` is that of earlier ones.

    Raises:
        DenoiserError: wrong type, shape, device or dtype. NaN is the caller's to judge, per row.
    """
    if not isinstance(prediction, Tensor):
        raise DenoiserError(
            f"the denoiser returned {type(prediction).__name__}, not a tensor; wrap it so that it "
            "returns the prediction only"
        )
    if prediction.shape != x.shape:
        raise DenoiserError(
            f"the denoiser returned shape {tuple(prediction.shape)} for a state of shape "
            f"{tuple(x.shape)}; a prediction must have the shape of the state"
        )
    if prediction.device != x.device:
        raise DenoiserError(
            f"the denoiser returned a tensor on {prediction.device} for a state on {x.device}; "
            "move the network and the planner to one device"
        )
    if not prediction.is_floating_point() or (dtype is not None and prediction.dtype != dtype):
        raise DenoiserError(
            f"the denoiser returned {prediction.dtype}"
            + (f" after {dtype} earlier in the same call" if dtype else "")
            + "; it must return one floating-point dtype throughout a call"
        )
    return prediction


def _contents(
    denoiser: Any, skip: Collection[Hashable], left_out: list[str], kinds: tuple[type, ...]
) -> Iterator[tuple[str, bytes, int]]:
    """(name, bytes, count) of all a denoiser computes with, as far as certificates identify it.

    Tensors and arrays of modules, closures, globals and attributes; settings of modules that are
    of some kinds, ``training`` among them. Integers are left out: they are often counters, which
    change from call to call. So are strings, which are often the paths of files.
    """
    for path, part in identified(denoiser, skip, left_out):
        if isinstance(part, nn.Module):
            yield from _of_module(part, path, skip, left_out, kinds)
        elif isinstance(part, Tensor):
            yield "tensor", *tensor_bytes(part)
        elif isinstance(part, np.ndarray):
            yield "array", np.ascontiguousarray(part).tobytes(), part.size
        else:
            yield "number", repr(part).encode(), 0


def _of_module(
    part: nn.Module,
    path: str,
    skip: Collection[Hashable],
    left_out: list[str],
    kinds: tuple[type, ...],
) -> Iterator[tuple[str, bytes, int]]:
    modules, own = dict(part.named_modules()), set()
    if skip:
        for name, module in modules.items():
            for key in module._buffers:
                whole = f"{path}/{name}.{key}"
                if whole in skip or (id(module._buffers), key) in skip:
                    own.add(f"{name}.{key}".lstrip("."))
                    left_out.append(whole)
    for name, value in part.state_dict().items():
        if isinstance(value, Tensor) and name not in own:
            yield name, *tensor_bytes(value)
    for name, module in modules.items():
        for key, setting in sorted(vars(module).items()):
            if isinstance(setting, kinds) and key != COMPILED:
                whole = f"{path}/{name}.{key}"
                if skip and (whole in skip or (id(vars(module)), key) in skip):
                    left_out.append(whole)
                else:
                    yield f"{name}.{key}", repr(setting).encode(), 0


def fingerprint(
    denoiser: Any, skip: Collection[Hashable] = (), older: bool = False
) -> dict[str, Any]:
    """Identity of a denoiser: hash of all it computes with, its name, and its guidance.

    Places to ``skip``, by path or by identity, are those that it rewrites by itself; ``left_out``
    lists the paths of those that were met. Certificates of ``older`` files know strings, too.

    ``weights`` is None where neither a tensor was found nor a name that the user gave to what
    cannot be hashed (``muninn_identity``): then a certificate cannot tell this denoiser from
    another of the same name.
    """
    if not callable(denoiser):
        raise InputError(f"a denoiser must be callable, got {type(denoiser).__name__}")
    state = hashlib.sha256()
    numbers, left_out = 0, list[str]()
    kinds = (float, bool, str) if older else (float, bool)
    for name, content, count in _contents(denoiser, skip, left_out, kinds):
        state.update(name.encode() + b":" + content)
        numbers += count
    names = Snapshot(denoiser).names()
    for name in names:
        state.update(f"named:{name}\n".encode())
    found = {
        "denoiser": getattr(denoiser, "__qualname__", type(denoiser).__qualname__),
        "parameters": numbers,
        "weights": state.hexdigest()[:32] if numbers or names else None,
        "guidance": described(denoiser),
    }
    return {**found, "left_out": sorted(left_out)} if left_out else found
