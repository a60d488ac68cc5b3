"""Examine a planner before it is calibrated: what a certificate takes for granted is checked.

Full compute must repeat itself, a call's answer must not depend on the calls beside it, and the
network must answer questions by which it will be known again.
"""

from __future__ import annotations

import base64
import contextlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor

from muninn.certify.paired import full_compute
from muninn.certify.questions import LIMITS, SPREADS, Asked, Questions, apart, machine
from muninn.certify.stored_context import Arrays, UnstorableError, restore, store
from muninn.context import Context, concatenate, select
from muninn.engines.choose import denoiser_on_engine
from muninn.errors import CalibrationError, DenoiserError, InputError
from muninn.identity.arithmetic import Arithmetic, arithmetic, switches
from muninn.identity.snapshot import Snapshot
from muninn.identity.undisturbed import undisturbed
from muninn.identity.watch import in_train_mode
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray

CALLS = 16
"""Calls on which a planner is examined."""

_RANDOM = (
    "draws random numbers (dropout?) or keeps state from call to call; without that it can be "
    "calibrated"
)


@dataclass(frozen=True)
class Examined:
    """What an examination found."""

    questions: Questions | None
    unasked: str | None  # why there are no questions
    together: bool  # rows of one call do not influence each other
    repeats: bool  # full compute gives the same bits twice
    left_out: list[str] = field(default_factory=list)  # what the network rewrites by itself

    def to_json(self) -> dict[str, Any]:
        """Plain values for the journal."""
        if self.questions is None:
            return {**vars(self)}
        plain, arrays = self.questions.to_file()
        packed = base64.b64encode(safetensors.numpy.save(arrays)).decode()
        return {**vars(self), "questions": {"plain": plain, "arrays": packed}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Examined:
        """The examination that :meth:`to_json` described."""
        asked = data["questions"]
        if asked is None:
            return cls(**data)
        arrays = safetensors.numpy.load(base64.b64decode(asked["arrays"]))
        return cls(**{**data, "questions": Questions.from_file(asked["plain"], arrays)})


def require_eval(planner: Planner, name: str = "the planner") -> None:
    """Raise InputError where a network is in train mode: its answers are drawn at random."""
    kind = in_train_mode(planner.denoiser)
    if kind is not None:
        raise InputError(
            f"{name}'s network is in train mode (a {kind}), where dropout and batch statistics "
            "make every plan another one; call .eval() on it first"
        )


def examine(planner: Planner, context: Context, noise: Noise, batch_size: int) -> Examined:
    """Run a planner on up to :data:`CALLS` calls, twice, alone and in other company.

    ``batch_size`` is the number of calls that calibration runs together.

    Raises:
        InputError: the network is in train mode.
        CalibrationError: full compute or the network does not repeat itself, or calls that are
            run together influence each other.
        DenoiserError: full compute is not finite.
    """
    require_eval(planner)
    last = len(planner.sampler) - 1
    steps = sorted({round(last * share / 7) for share in range(8)})
    before = Snapshot(planner.denoiser, planner.condition)
    with undisturbed(planner.denoiser, planner.device):
        states: dict[int, Tensor] = {}

        def visit(step: int, x: Tensor) -> None:
            if step in steps:
                states[step] = x.clone()

        plans = full_compute(planner, context, noise, visit)
        precision = _precision(planner, arithmetic(planner.device))
        repeats = _repeats(plans, planner.sample(context, noise=noise), precision)
        told = torch.cat([planner.timestep(step, 1) for step in steps])
        visited = torch.stack([states[step] for step in steps])
        asked = Asked(visited, told, context, arithmetic(planner.device))
        examined = _question(planner, asked, batch_size, precision, repeats)
        if not (rewritten := before.rewritten()):
            return examined
        left_out = planner.identity(rewritten)["model"].get("left_out", [])
        return replace(examined, left_out=left_out)


def _precision(planner: Planner, in_force: Arithmetic) -> str:
    """The coarsest precision that a network computes with, as far as can be seen."""
    weights = [w.dtype for w in Snapshot(planner.denoiser).tensors if w.is_floating_point()]
    found = {str(dtype).removeprefix("torch.") for dtype in (planner.dtype, *weights)}
    found.add((in_force or {}).get("autocast", ""))
    settings = switches(in_force)
    if settings and settings != {"cudnn_tf32": False}:
        found.add("bfloat16" if planner.device.type == "cpu" else "tf32")
    if planner.device.type == "cuda" and settings.get("cudnn_tf32", True):
        found.add("tf32")  # torch's default for convolutions
    known = [name for name in LIMITS if name in found]  # finest first
    return known[-1] if known else "bfloat16"


def _repeats(once: Tensor, again: Tensor, precision: str) -> bool:
    """Whether full compute gave the same bits twice.

    Raises:
        CalibrationError: it gave another plan.
    """
    if torch.equal(once, again):
        return True
    far = apart(again[None], once[None])
    if (far <= LIMITS[precision]).mean() > 0.5:  # one call that stands between two routes may flip
        return False
    raise CalibrationError(
        f"full compute does not repeat itself: run twice with the same noise, plans differ by up "
        f"to {np.nanmax(far):.2g} of their size. The network {_RANDOM}"
    )


def _question(
    planner: Planner, asked: Asked, batch_size: int, precision: str, repeats: bool
) -> Examined:
    """Ask the network in several ways.

    Raises:
        CalibrationError: as :func:`examine`.
    """
    denoiser, device = planner.denoiser, planner.device
    calls = asked.states.shape[1]
    first = asked.predictions(denoiser, slice(1))
    again = apart(asked.predictions(denoiser, slice(1)), first)
    if not (again <= LIMITS[precision]).all():
        raise CalibrationError(
            f"the network answers the same question differently, by {np.max(again):.2g} of the "
            f"answer's size: it {_RANDOM}"
        )
    least = SPREADS * torch.finfo(planner.dtype).eps
    together = _independent(denoiser, asked, max(least, SPREADS * float(again.max())))
    if not together and batch_size > 1:
        raise CalibrationError(
            "calls that are run together influence each other: the network's answer to a call "
            "changes with the calls beside it (batch statistics, or one scale for a whole batch?). "
            "Calibrate at the batch that will be run: batch_size=1"
        )
    unasked = partial(Examined, None, together=together, repeats=repeats)
    rows = torch.tensor([0, calls - 1] if together and calls > 1 else [0], device="cpu")
    arrays: Arrays = {}
    try:
        described = store(select(asked.context, rows), arrays)
    except UnstorableError as error:
        return unasked(f"the context holds {error}, which a certificate cannot keep")
    kept = Asked(
        asked.states[:, rows], asked.timesteps, restore(described, arrays, device), asked.arithmetic
    )
    try:
        answers = kept.predictions(denoiser)
    except torch.OutOfMemoryError:
        raise  # says nothing about the network
    except Exception as error:  # of a stand-in for a large context, which the network refuses
        name = type(error).__name__
        return unasked(f"it cannot answer for a stand-in of its large context ({name})")
    if not torch.isfinite(answers).all():
        return unasked(
            "its answers to the questions are not finite (for a large context a stand-in is drawn)"
        )
    spread = apart(kept.predictions(denoiser), answers)
    if together:
        spread = np.maximum(spread, _spread(planner, asked, kept, answers, batch_size))
    if not (spread <= LIMITS[precision]).all():
        raise CalibrationError(
            f"the network's answers change by {np.max(spread):.2g} of their size with the number "
            f"of calls run together or on the {planner.engine} engine, more than rounding explains "
            f"({LIMITS[precision]:g} for {precision}). Calibrate at the batch that will be run "
            "(batch_size=1), or on the eager engine"
        )
    conditioned = kept.conditioned(planner.condition)
    questions = Questions(
        states=_plain(kept.states),
        answers=_plain(answers),
        timesteps=kept.timesteps.cpu().numpy(),
        conditioned=None if conditioned is None else _plain(conditioned),
        context=described,
        arrays=arrays,
        spread=spread,
        dtype=str(planner.dtype).removeprefix("torch."),
        precision=precision,
        machine=machine(device),
    )
    return Examined(questions, None, together, repeats)


def _independent(denoiser: object, asked: Asked, limit: float) -> bool:
    """Whether answers stay what they are in other company.

    Every quarter of the calls is asked with two others, in batches of one size, at one place: so
    that not even rounding differs.
    """
    size = asked.states.shape[1] // 4
    if not size:
        return True
    parts = torch.arange(4 * size, device="cpu").view(4, size)
    answers = {
        (left, right): asked.predictions(denoiser, torch.cat([parts[left], parts[right]]))  # type: ignore[arg-type]
        for left in (0, 3)
        for right in (1, 2)
    }
    pairs = [(answers[left, 1][:, :size], answers[left, 2][:, :size]) for left in (0, 3)] + [
        (answers[0, right][:, size:], answers[3, right][:, size:]) for right in (1, 2)
    ]
    return all((apart(one, other) <= limit).all() for one, other in pairs)


def _spread(
    planner: Planner, asked: Asked, kept: Asked, answers: Tensor, batch_size: int
) -> FloatArray:
    """How far answers move when they are asked alone, among others, and on the engine."""
    count = kept.states.shape[1]
    alone = [kept.predictions(planner.denoiser, slice(row, row + 1)) for row in range(count)]
    spread = apart(torch.cat(alone, dim=1), answers)
    # Among as many as calibration runs together: the calls of the examination, over and over.
    company = torch.arange(max(batch_size - count, 0), device="cpu") % asked.states.shape[1]
    among = Asked(
        torch.cat([kept.states, asked.states[:, company]], dim=1),
        kept.timesteps,
        concatenate([kept.context, select(asked.context, company)]),
        kept.arithmetic,
    )
    found = [among.predictions(planner.denoiser, slice(batch_size))]
    if planner.engine != "eager":
        found.append(among.predictions(planner.denoiser, slice(batch_size), known=False))
        with contextlib.suppress(RuntimeError, DenoiserError):  # the engine itself will say so
            found.append(among.predictions(denoiser_on_engine(planner), slice(batch_size)))
    seen = slice(min(count, batch_size))
    for answered in found:
        far = apart(answered[:, seen], answers[:, seen])
        spread[:, seen] = np.maximum(spread[:, seen], far)
    return spread


def _plain(values: Tensor) -> FloatArray:
    """On the host, in a dtype that numpy has; no number changes."""
    exact = values if values.dtype == torch.float64 else values.float()
    return np.asarray(exact.detach().cpu().numpy())
