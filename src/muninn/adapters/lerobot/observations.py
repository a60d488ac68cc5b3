"""Observations of a LeRobot policy: batches that its own code takes, checked key by key."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from muninn.errors import InputError

Processor = Callable[[Any], Any]


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
            try:
                tensor = torch.as_tensor(value)[None]
            except (TypeError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"{key} of {where} is {reprlib.repr(value)}; give numbers, or leave that key "
                    "out (instructions belong under the key task)"
                ) from error
            batch[key] = tensor.float() if tensor.dtype == torch.float64 else tensor
    if "task" in frame:
        batch["task"] = [frame["task"]]
    # LeRobot fills cameras of this name by itself.
    wanted = {k: f for k, f in policy.config.input_features.items() if "empty_camera" not in k}
    # Before, because a processor fails on wrong shapes in words of its own; after, because it
    # may rename keys.
    _require_values(wanted, batch, where)
    if preprocessor is not None:
        batch = dict(preprocessor(batch))
    require_keys(wanted, batch, where)
    _require_values(wanted, batch, where)
    return batch


def require_keys(wanted: Iterable[str], batch: Mapping[str, Any], where: str) -> None:
    """Raise InputError with the keys that a batch lacks, and those that it has."""
    missing = sorted(set(wanted) - set(batch))
    if missing:
        seen = ", ".join(sorted(key for key in batch if key.startswith("observation.")))
        raise InputError(
            f"{where} lacks {', '.join(missing)}; it has {seen or 'no observation.* key'}. Add "
            "these, or rename yours"
        )


def _require_values(wanted: Mapping[str, Any], batch: Mapping[str, Any], where: str) -> None:
    """The values that are there are one finite observation of the policy's shapes."""
    for key in (key for key in wanted if batch.get(key) is not None):
        value: Tensor = batch[key]
        shape, own = (1, *wanted[key].shape), tuple(value.shape)
        image = wanted[key].type.name == "VISUAL"  # the policy may resize these
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
