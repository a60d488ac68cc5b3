"""Algorithm 2 of the paper: pairs of probe score and reuse error, from full and ghost chains.

The ghost chain walks beside full compute with the same noise. It reuses a cached noise prediction
on a fixed schedule, and otherwise takes the prediction of *full compute*, made at a state that is
not its own. A deployed cache cannot do that: its recomputed predictions carry the error of its
state, which these labels leave out (docs/paper.md). It is built here as published.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.context import Context, select
from muninn.context import batch_size as rows_of
from muninn.errors import CalibrationError, DenoiserError, InputError
from muninn.files import write_whole
from muninn.model.denoiser import check_prediction
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.paper.epsilon import eligible_steps, require_eligible, reused, used_epsilon
from muninn.paper.score import SCORES
from muninn.paper.split import Probe
from muninn.progress import Advance, Task

STRIDE = 4
_KEY, _KIND = "muninn_paper", "ghost-pairs-1"


@dataclass(frozen=True, eq=False)
class GhostPairs:
    """Scores and errors of one probe, the calibration sets S_cal(t) of all steps."""

    scores: FloatArray  # (calls, steps) float64, NaN at step 0
    errors: FloatArray  # the same, NaN at steps that are not eligible
    eligible: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or self.scores.shape != self.errors.shape or not len(self.scores):
            raise InputError(
                f"scores and errors must both be (calls, steps), got {self.scores.shape} and "
                f"{self.errors.shape}"
            )
        require_eligible(self.eligible, self.scores.shape[1])
        for name, table in (("score", self.scores), ("error", self.errors)):
            bad = np.argwhere(~np.isfinite(table[:, self.eligible]))
            if len(bad):
                call, step = int(bad[0, 0]), self.eligible[bad[0, 1]]
                raise CalibrationError(
                    f"the {name} of call {call} at step {step} is {table[call, step]}; an envelope "
                    "needs finite pairs at every eligible step. Check the network and the probe"
                )

    @property
    def calls(self) -> int:
        """How many calls were measured."""
        return len(self.scores)

    def take(self, count: int) -> GhostPairs:
        """The pairs of the first ``count`` calls."""
        if not 1 <= count <= self.calls:
            raise InputError(f"count must lie between 1 and {self.calls} calls, got {count}")
        return GhostPairs(self.scores[:count], self.errors[:count], self.eligible)

    def save(self, path: str | Path) -> Path:
        """Write a safetensors file; raises InputError if it cannot be written."""
        header = {_KEY: json.dumps({"eligible": self.eligible, "kind": _KIND})}
        arrays = {"scores": self.scores, "errors": self.errors}
        contiguous = {name: np.ascontiguousarray(table) for name, table in arrays.items()}
        try:
            return write_whole(path, safetensors.numpy.save(contiguous, header))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written ({error.strerror}); free space or choose another path"
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> GhostPairs:
        """Read what :meth:`save` wrote; InputError if it is missing, damaged or something else."""
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; calibrate first or check the path")
        try:
            with safetensors.safe_open(str(path), "numpy") as file:
                stored = json.loads((file.metadata() or {}).get(_KEY, "{}"))
                if not isinstance(stored, dict) or stored.get("kind") != _KIND:
                    raise LookupError(f"it holds something else than {_KIND}")
                scores, errors = file.get_tensor("scores"), file.get_tensor("errors")
            return cls(scores, errors, tuple(stored["eligible"]))
        except (safetensors.SafetensorError, OSError, ValueError, LookupError) as error:
            raise InputError(
                f"{path}: cannot be read ({error}); check the path, calibrate again or restore a "
                "copy"
            ) from error


def anchor_steps(steps: int, eligible: Sequence[int], stride: int = STRIDE) -> tuple[int, ...]:
    """The set A of steps at which the ghost chain takes and caches the full prediction.

    All steps that are not eligible, and those whose t = steps - index is a multiple of the stride.

    >>> anchor_steps(10, eligible_steps(10))
    (0, 2, 6, 9)
    """
    if stride < 1:
        raise InputError(f"stride counts steps between anchors, at least 1; got {stride}")
    require_eligible(eligible, steps)
    allowed = set(eligible)
    return tuple(i for i in range(steps) if i not in allowed or (steps - i) % stride == 0)


@torch.no_grad()
def full_chain(planner: Planner, context: Context, noise: Noise) -> tuple[list[Tensor], Tensor]:
    """Full compute: the effective noise prediction (batch, *shape) of every step, and trajectories.

    These are bit-identical to :meth:`muninn.model.planner.Planner.sample` with the same noise. A
    prediction of the wrong type, shape or device, or not finite, is a DenoiserError.
    """
    kept, finite = list[Tensor](), list[Tensor]()

    def kept_prediction(x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        prediction = check_prediction(planner.denoiser(x, timestep, context), x, None)
        finite.append(torch.isfinite(prediction).flatten(1).all(dim=1))
        kept.append(used_epsilon(planner.sampler, x, prediction, len(kept)).clone())
        return prediction

    trajectory = replace(planner, denoiser=kept_prediction).sample(context, noise=noise)
    _require_finite(torch.stack(finite), "the denoiser returned NaN or Inf")
    return kept, trajectory


@torch.no_grad()
def ghost_chain(
    planner: Planner,
    full_eps: Sequence[Tensor],
    probes: Sequence[Probe],
    context: Context,
    noise: Noise,
    eligible: Sequence[int],
    stride: int = STRIDE,
) -> tuple[FloatArray, FloatArray]:
    """The ghost chain of Algorithm 2; runs stems of the network, never its core.

    Args:
        full_eps: what :func:`full_chain` kept for this planner on the same context and noise.
        probes: all measured on one chain, since its states do not depend on them.
        eligible: step indices at which reuse is allowed.
        stride: steps between anchors inside the eligible band.

    Returns:
        Scores (probes, batch, steps), NaN at step 0, and errors (batch, steps), the label
        ``||eps_full - eps_cache||_F / sqrt(H d)``, NaN where not eligible; both float64. A score
        that is not finite is a DenoiserError.
    """
    steps = len(planner.sampler)
    anchors = set(anchor_steps(steps, eligible, stride))
    if not probes:
        raise InputError("probes is empty; give at least one Probe")
    if len(full_eps) != steps:
        raise InputError(
            f"full_eps has {len(full_eps)} steps but the sampler has {steps}; pass what full_chain "
            "returned for this planner"
        )
    if any(step.signal == 0.0 for step in planner.sampler.steps):
        raise InputError(
            f"{planner.sampler.name} starts from pure noise, where a noise prediction says nothing "
            "of the trajectory; the published method needs a DDPM or DDIM sampler"
        )
    noise = planner.prepare(context, noise, None)
    x = planner.start(noise, context)
    size, exact = float(x[0].numel()) ** 0.5, torch.promote_types(full_eps[0].dtype, torch.float32)
    allowed = set(eligible)
    blank = torch.full((len(x), steps), float("nan"), dtype=torch.float64, device=x.device)
    scores, errors = blank.repeat(len(probes), 1, 1), blank.clone()
    cache, previous = full_eps[0], _features(planner, probes, x, 0, context)
    for step in range(steps):
        if step > 0:
            features = _features(planner, probes, x, step, context)
            for place, probe in enumerate(probes):
                score = SCORES[probe.score](features[id(probe.split)], previous[id(probe.split)])
                scores[place, :, step] = score
            previous = features
            if step in allowed:
                difference = (full_eps[step].to(exact) - cache.to(exact)).flatten(1)
                errors[:, step] = torch.linalg.vector_norm(difference, dim=1) / size
            if step in anchors:
                cache = full_eps[step]  # the flaw of the module docstring, as published
        x = reused(planner, x, cache, step, noise, context)
    for probe, table in zip(probes, scores, strict=True):
        finite = torch.isfinite(table)
        finite[:, 0] = True  # the first step has no score
        _require_finite(finite.T, f"the probe's {probe.score} score is NaN or Inf")
    return scores.cpu().numpy(), errors.cpu().numpy()


def collect_pairs(
    planner: Planner,
    probes: Sequence[Probe],
    calls: Context | int,
    *,
    eligible: Sequence[int] | None = None,
    stride: int = STRIDE,
    seed: int = 0,
    batch_size: int = 32,
    task: Task | None = None,
) -> list[GhostPairs]:
    """Algorithm 2 over many calls of the planner to deploy: one set of pairs per probe.

    Args:
        calls: contexts like those to come, one row per call; or a number of calls for a planner
            without context.
        eligible, stride: as in :func:`ghost_chain`; :func:`eligible_steps` by default.
        seed: noise of call i is a function of (seed, i) alone.
        batch_size: calls run together.
        task: progress, as of :func:`muninn.progress.bars`.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    context = None if isinstance(calls, int) else calls
    count = calls if isinstance(calls, int) else rows_of(calls)
    if not count or count < 1:
        raise InputError(
            "calls holds no call; give batched contexts (one row per call), or a number of calls "
            "for a planner without context"
        )
    band = eligible_steps(len(planner.sampler)) if eligible is None else tuple(eligible)
    advance: Advance = (lambda done: None) if task is None else task("ghost chains", count)
    measured = []
    for first in range(0, count, batch_size):
        rows = range(first, min(first + batch_size, count))
        own = select(context, slice(rows.start, rows.stop))
        noise = planner.draw_noise(seeds=[call_seed(seed, call) for call in rows])
        full_eps, _ = full_chain(planner, own, noise)
        measured.append(ghost_chain(planner, full_eps, probes, own, noise, band, stride))
        advance(len(rows))
    scores, errors = zip(*measured, strict=True)
    label = np.concatenate(errors)
    return [GhostPairs(table, label, band) for table in np.concatenate(scores, axis=1)]


def _features(
    planner: Planner, probes: Sequence[Probe], x: Tensor, step: int, context: Context
) -> dict[int, Tensor]:
    """The feature F_t of every distinct split, by the identity of the split."""
    timestep = planner.timestep(step, len(x))
    splits = {id(probe.split): probe.split for probe in probes}
    return {key: own.feature(own.stem(x, timestep, context), x) for key, own in splits.items()}


def _require_finite(finite: Tensor, what: str) -> None:
    """Raise DenoiserError with the first step and its rows; ``finite`` is (steps, batch)."""
    if not finite.all():
        step = int((~finite).any(dim=1).nonzero()[0])
        rows = (~finite[step]).nonzero().flatten().tolist()
        raise DenoiserError(
            f"{what} at step {step} (rows {rows[:8]}); check the network, its inputs and its "
            "precision before calibrating"
        )
