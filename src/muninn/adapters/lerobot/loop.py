"""A LeRobot policy whose sampling loop somebody else answers; all around the loop is its own.

Contexts that are made this way are what the policy's own code tells its loop: encoders,
history and action queue need no second version here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from muninn.adapters.registry import adapter_for
from muninn.context import Context
from muninn.errors import InputError

Processor = Callable[[Any], Any]


@contextmanager
def answered(policy: Any, answer: Callable[[Context], Tensor]) -> Iterator[None]:
    """Inside, the policy's loop returns ``answer(context)``: plans of the planner's shape.

    The policy is reset before and after. Torch's global random numbers are left as they were.

    Raises:
        InputError: the policy cannot be cached as it is (train mode, ...), or its loop was
            replaced, by its cache or by somebody else.
    """
    adapter = adapter_for(policy)
    planner = adapter.planner_of(policy)
    owner, name = adapter.loop(policy)
    present = vars(owner).get(name)
    if present is not None and getattr(present, "__func__", None) is not getattr(type(owner), name):
        raise InputError(
            f"{type(owner).__name__}.{name} of this policy was replaced, by {present!r}; call "
            "disable_cache, or undo that, before calibrating"
        )

    def loop(*args: Any, **kwargs: Any) -> Tensor:
        return answer(adapter.arguments(planner, *args, **kwargs)[0])

    devices = [planner.device] if planner.device.type == "cuda" else []
    policy.reset()
    setattr(owner, name, loop)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        if present is None:
            delattr(owner, name)
        else:
            setattr(owner, name, present)
        policy.reset()


def as_batch(
    policy: Any, frame: Mapping[str, Any], preprocessor: Processor | None, where: str
) -> dict[str, Any]:
    """One observation as ``select_action`` takes it: a batch of one, preprocessed, checked.

    Args:
        policy: says which keys and shapes it needs.
        frame: keys and tensors as in a LeRobotDataset, without batch; other keys are left out.
        preprocessor: the policy's own; None where frames are what it returns.
        where: what the frame is, for errors.

    Raises:
        InputError: a key is missing, a value is no tensor, or one has a wrong shape or dtype, NaN
            or infinity.
    """
    batch: dict[str, Any] = {}
    for key, value in frame.items():
        if key.startswith("observation.") and not key.endswith("_is_pad"):
            tensor = _tensor(value, f"{key} of {where}")[None]
            batch[key] = tensor.float() if tensor.dtype == torch.float64 else tensor
    if "task" in frame:
        batch["task"] = [frame["task"]]
    # Before, because a processor fails on wrong shapes in words of its own; after, because it
    # may rename keys.
    _require(policy, batch, where, complete=False)
    if preprocessor is not None:
        batch = dict(preprocessor(batch))
    _require(policy, batch, where, complete=True)
    return batch


def _tensor(value: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"{what} is {reprlib.repr(value)}; give numbers, or leave that key out (instructions "
            "belong under the key task)"
        ) from error


def _require(policy: Any, batch: Mapping[str, Any], where: str, *, complete: bool) -> None:
    """The observation is what the policy needs; as far as it is there unless ``complete``."""
    # LeRobot fills cameras of this name by itself.
    wanted = {k: f for k, f in policy.config.input_features.items() if "empty_camera" not in k}
    missing = sorted(set(wanted) - set(batch))
    if complete and missing:
        seen = ", ".join(sorted(key for key in batch if key.startswith("observation.")))
        raise InputError(
            f"{where} lacks {', '.join(missing)}; it has {seen or 'no observation.* key'}. Record "
            "these, or rename yours"
        )
    for key, feature in wanted.items():
        value = batch.get(key)
        if value is None:
            continue
        shape, own = (1, *feature.shape), tuple(value.shape)
        image = feature.type.name == "VISUAL"  # the policy may resize these
        if len(own) != len(shape) or (own != shape and not image):
            raise InputError(
                f"{key} of {where} has shape {own[1:]}; the policy takes {shape[1:]}, one "
                "observation at a time"
            )
        if not value.is_floating_point():
            raise InputError(
                f"{key} of {where} is {value.dtype}; give floating-point numbers (images from 0 "
                "to 1, channels first)"
            )
        if not torch.isfinite(value).all():
            raise InputError(f"{key} of {where} is not finite; leave out or mend that recording")
