"""A planner: a denoiser, a sampler and the shape of a trajectory. The unit Muninn makes fast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from muninn.context import Context, batch_size, call_explained, tensors
from muninn.errors import InputError
from muninn.model.denoiser import Denoiser, at_timestep, check_prediction, fingerprint, own_loop
from muninn.model.sampler import Sampler

Condition = Callable[[Tensor, Context], Tensor]
Engine = Literal["eager", "graph", "compile"]
ENGINES: tuple[Engine, ...] = ("eager", "graph", "compile")


@dataclass(frozen=True)
class Noise:
    """Every random number of one call, drawn before it starts: x_T (batch, ...), and one draw of
    its shape for each sampler step that adds noise, keyed by step."""

    initial: Tensor
    steps: dict[int, Tensor] = field(default_factory=dict)

    def at(self, step: int, rows: Tensor | slice) -> Tensor | None:
        """The draw of ``step`` for the given rows, or None where the sampler adds none."""
        draw = self.steps.get(step)
        return None if draw is None else draw[rows]

    def to(self, dtype: torch.dtype) -> Noise:
        """The same draws in another precision."""
        steps = {step: draw.to(dtype) for step, draw in self.steps.items()}
        return Noise(self.initial.to(dtype), steps)

    def select(self, rows: Tensor | slice) -> Noise:
        """The same draws for some of the rows."""
        return Noise(self.initial[rows], {step: draw[rows] for step, draw in self.steps.items()})


@dataclass(frozen=True)
class Planner:
    """What is needed to sample a trajectory the way the user's own code does.

    Attributes:
        denoiser: ``denoiser(x, timestep, context) -> prediction``, guidance included.
        sampler: the step table; :func:`muninn.ddim` and friends build it.
        shape: of one trajectory, (horizon, dim).
        condition: ``condition(x, context) -> x`` writes known entries (start, goal, history)
            into a state; may work in place. It is applied to every state that the network or the
            user sees, not inside a gap of forecasts: for entries that are overwritten that is
            the same; a condition that changes others (a projection) is cached less accurately.
        condition_when: ``before`` every evaluation and once at the end (Diffuser, CleanDiffuser,
            diffusion_policy), or only ``after`` every step, leaving x_T as drawn.
        device, dtype: of the states.
        engine: what runs programs of this planner: ``eager`` anywhere; ``graph`` on a GPU (CUDA
            graphs); ``compile`` anywhere (the network compiled by torch.compile; on a GPU in
            CUDA graphs too). Full compute, :meth:`sample`, is always the eager one: a certificate
            covers what the engine rounds differently, and holds for that engine only.
    """

    denoiser: Denoiser
    sampler: Sampler
    shape: tuple[int, ...]
    condition: Condition | None = None
    condition_when: Literal["before", "after"] = "before"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    engine: Engine = "eager"

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, Sampler):
            raise InputError(
                "sampler is made by muninn.ddim, muninn.ddpm or muninn.euler, or from a scheduler "
                "of diffusers by muninn.adapters.diffusers_sampler.DiffusersSampler; got "
                f"{type(self.sampler).__name__}"
            )
        # "cuda" means the current device; tensors say which, and are compared with this.
        object.__setattr__(self, "device", torch.empty(0, device=self.device).device)
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if not self.shape or min(self.shape) < 1:
            raise InputError(
                f"shape must be that of one trajectory, (horizon, dim); got {self.shape}"
            )
        if self.condition_when not in ("before", "after"):
            raise InputError(f"condition_when is 'before' or 'after', got {self.condition_when!r}")
        if self.engine not in ENGINES:
            raise InputError(f"engine is one of {', '.join(ENGINES)}, got {self.engine!r}")
        if not self.dtype.is_floating_point:
            raise InputError(f"dtype must be a floating-point dtype, got {self.dtype}")

    def identity(self, skip: Collection[Hashable] = (), older: bool = False) -> dict[str, Any]:
        """JSON-ready identity of the planner; a certificate holds for exactly this.

        ``skip`` are places that the network rewrites by itself, which are no part of it; ``older``
        is for certificates of schema 1.
        """
        condition: dict[str, Any] = {"denoiser": None, "weights": None}
        if self.condition is not None:
            condition = fingerprint(self.condition, skip)
        identity = {
            "model": fingerprint(self.denoiser, skip, older),
            "sampler": self.sampler.describe(),
            "shape": list(self.shape),
            "condition": condition["denoiser"],
            "condition_table": condition["weights"],
            "condition_when": self.condition_when,
            "device": self.device.type,
            "dtype": str(self.dtype).removeprefix("torch."),
        }
        # Named only where it is not the reference, so that older certificates stay readable.
        return identity if self.engine == "eager" else {**identity, "engine": self.engine}

    def draw_noise(
        self,
        batch: int | None = None,
        *,
        generator: torch.Generator | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Noise:
        """All draws of a call, in the order in which the plain sampler would make them.

        Either ``batch`` rows with one generator (torch's global one by default), as plain code
        does, or one of ``seeds`` per row, so that a row's noise does not depend on its batch.
        """
        if (seeds is not None and not len(seeds)) or (batch is not None and batch < 1):
            raise InputError(
                f"noise needs at least one row, got batch={batch}, seeds={seeds}; ask for one row "
                "or give one seed per call"
            )
        if seeds is not None:
            # Drawn on the CPU: a GPU's numbers depend on the shape of the launch.
            own = [torch.Generator().manual_seed(seed) for seed in seeds]
            form: Any = {"dtype": self.dtype, "device": "cpu"}

            def draw() -> Tensor:
                rows = [torch.randn(self.shape, generator=each, **form) for each in own]
                return torch.stack(rows).to(self.device)
        else:
            shape = (1 if batch is None else batch, *self.shape)

            def draw() -> Tensor:
                return torch.randn(shape, generator=generator, device=self.device, dtype=self.dtype)

        return Noise(draw(), {step: draw() for step in self.sampler.drawing})

    def prepare(
        self, context: Context, noise: Noise | None, generator: torch.Generator | None
    ) -> Noise:
        """The noise of a call, after checking that context, noise and planner fit together."""
        rows = batch_size(context)
        for path, tensor in tensors(context):
            if tensor.device != self.device:
                raise InputError(
                    f"{path} is on {tensor.device} but the planner runs on {self.device}; "
                    f"move it with .to({str(self.device)!r})"
                )
        if noise is None:
            return self.draw_noise(rows or 1, generator=generator)
        if not isinstance(noise, Noise):
            raise InputError(
                f"noise holds every draw of a call: make it with planner.draw_noise(batch); got "
                f"{type(noise).__name__}"
            )
        initial = noise.initial
        if initial.shape[1:] != self.shape:
            raise InputError(
                f"noise has shape {tuple(initial.shape)}; expected (batch, *{self.shape})"
            )
        if initial.shape[0] == 0:
            raise InputError("noise holds no row; give at least one call")
        if rows is not None and initial.shape[0] != rows:
            raise InputError(f"noise has {initial.shape[0]} rows but the context has {rows}")
        if initial.device != self.device or initial.dtype != self.dtype:
            raise InputError(
                f"noise is {initial.dtype} on {initial.device}; the planner uses {self.dtype} on "
                f"{self.device}"
            )
        missing = [step for step in self.sampler.drawing if step not in noise.steps]
        if missing:
            raise InputError(
                f"noise lacks the draws of steps {missing[:3]}...; use planner.draw_noise()"
            )
        for i, draw in noise.steps.items():
            if draw.shape != initial.shape or draw.device != initial.device:
                raise InputError(
                    f"the draw of step {i} has shape {tuple(draw.shape)} on {draw.device}; "
                    f"expected {tuple(initial.shape)} on {initial.device}, as x_T"
                )
        return noise

    def timestep(self, step: int, rows: int) -> Tensor:
        """What the network is told at a step: (rows,), long for diffusion, float for flow."""
        value = self.sampler.steps[step].timestep
        dtype = torch.float32 if self.sampler.flow else torch.long
        return torch.full((rows,), value, dtype=dtype, device=self.device)

    def start(self, noise: Noise, context: Context) -> Tensor:
        """State before the first evaluation."""
        x = noise.initial.clone()
        if self.condition is not None and self.condition_when == "before":
            x = self.condition(x, context)
        return x

    def advance(
        self, x: Tensor, prediction: Tensor, step: int, noise: Tensor | None, context: Context
    ) -> Tensor:
        """State after a step with the network's own prediction, conditioned."""
        after = self.sampler.step(x, prediction, step, noise)
        return after if self.condition is None else self.condition(after, context)

    @torch.no_grad()
    def sample(
        self,
        context: Context = None,
        *,
        noise: Noise | None = None,
        generator: torch.Generator | None = None,
        visit: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """The plain sampler: the denoiser at every step. The reference for everything else.

        ``visit(step, x)`` is shown the state before every evaluation.

        Raises:
            InputError: context, noise and planner do not fit together, or the network failed on
                a context without a row dimension.
            DenoiserError: a prediction has the wrong type, shape or device.
        """
        noise = self.prepare(context, noise, generator)
        x = self.start(noise, context)
        with own_loop(), call_explained(x, context):
            for step in range(len(self.sampler)):
                if visit is not None:
                    visit(step, x)
                with at_timestep(self.sampler.steps[step].timestep):
                    prediction = self.denoiser(x, self.timestep(step, len(x)), context)
                prediction = check_prediction(prediction, x, None)
                x = self.advance(x, prediction, step, noise.at(step, slice(None)), context)
        return x


def require_planner(given: object, call: str) -> None:
    """Raise InputError where a verb is given something else than a planner; says the order.

    >>> require_planner("policy.safetensors", "muninn.cache(planner, certificate)")
    Traceback (most recent call last):
    muninn.errors.InputError: planner is a muninn.Planner, got str; the order is
    muninn.cache(planner, certificate)
    """
    if not isinstance(given, Planner):
        kind = type(given).__name__
        raise InputError(f"planner is a muninn.Planner, got {kind}; the order is {call}")
