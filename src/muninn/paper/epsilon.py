"""The noise prediction that the published method caches, and the steps at which it may."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from muninn.context import Context
from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler


def used_epsilon(sampler: Sampler, x: Tensor, prediction: Tensor, step: int) -> Tensor:
    """The effective noise prediction that a sampler step consumes (paper, "Muninn wrapper").

    A network that predicts epsilon is taken at its word. Otherwise epsilon follows from the state
    and the clean sample; where the sampler clips that sample and derives epsilon again (Diffuser,
    DDPM), it is clipped here too, and where it keeps the raw epsilon (diffusers' DDIM), it is not.
    In every case ``sampler.step(x, used_epsilon(...), step, noise, "epsilon")`` takes the step
    that the prediction itself would take, up to rounding.

    Prediction (guidance included) and result have the shape of the state x, (batch, ...). The
    result may be ``prediction`` itself: clone it to keep it beyond the next evaluation.
    """
    if sampler.kind == "epsilon":
        return prediction
    prediction = prediction.to(x.dtype)  # as the sampler does, so that both round alike
    if sampler.clip is None or sampler.keep_epsilon:
        return sampler.convert(x, prediction, step, "epsilon")
    level = sampler.steps[step]
    sample = sampler.convert(x, prediction, step, "sample").clamp(-sampler.clip, sampler.clip)
    return (x - level.signal * sample) / level.noise


def reused(
    planner: Planner, x: Tensor, epsilon: Tensor, step: int, noise: Noise, context: Context
) -> Tensor:
    """State after a step with a kept noise prediction, (batch, *shape), conditioned."""
    after = planner.sampler.step(x, epsilon, step, noise.at(step, slice(None)), "epsilon")
    return after if planner.condition is None else planner.condition(after, context)


def eligible_steps(
    steps: int, prefix: int | None = None, suffix: int | None = None
) -> tuple[int, ...]:
    """Step indices at which reuse is allowed: the paper's T_cache, noisiest first.

    With the paper's t = steps - index: ``suffix < t <= steps - prefix``. Prefix and suffix are
    always evaluated, ceil(0.10 T) steps each by default; so is the first step, whatever they are.
    Negative counts, and none left, are an InputError.

    >>> eligible_steps(10)
    (1, 2, 3, 4, 5, 6, 7, 8)
    >>> [len(eligible_steps(steps)) for steps in (100, 25, 150, 16)]
    [80, 19, 120, 12]
    """
    tenth = -(-steps // 10)  # in integers: 0.10 * 150 is a little more than 15
    prefix = tenth if prefix is None else prefix
    suffix = tenth if suffix is None else suffix
    if prefix < 0 or suffix < 0:
        raise InputError(f"prefix and suffix count steps, at least 0; got {prefix} and {suffix}")
    eligible = tuple(range(max(prefix, 1), steps - suffix))
    if not eligible:
        raise InputError(
            f"a prefix of {prefix} and a suffix of {suffix} leave none of {steps} steps for reuse "
            "(the first is never one); shorten them or use a sampler with more steps"
        )
    return eligible


def require_eligible(eligible: Sequence[int], steps: int) -> None:
    """Raise InputError unless these are increasing step indices without the first step."""
    inside = all(0 < step < steps for step in eligible)
    if not eligible or not inside or list(eligible) != sorted(set(eligible)):
        raise InputError(
            f"eligible must be increasing step indices between 1 and {steps - 1}, got "
            f"{str(eligible)[:80]}; eligible_steps({steps}) gives the published choice"
        )
