"""A LeRobot policy around its sampling loop: what it must be, what it is shown, who answers.

Whoever answers the loop is told contexts by the policy's own code: encoders, history and action
queue need no second version here.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from muninn.adapters.registry import adapter_for, framework_loop
from muninn.context import Context
from muninn.errors import InputError

Processor = Callable[[Any], Any]


def require_plain(policy: Any, model: nn.Module) -> torch.device:
    """The device of a policy; raises InputError if it is in train mode or under autocast."""
    device = next(model.parameters()).device
    if policy.training or any(part.training for part in model.modules()):
        raise InputError("the policy is in train mode; call policy.eval() first")
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        raise InputError(
            f"autocast to {torch.get_autocast_dtype(device.type)} is on; the policy's loop would "
            "draw other noise than without. Leave the autocast context (LeRobot: use_amp=false)"
        )
    return device


def require_lerobot_loop(owner: Any, name: str) -> None:
    """Refuse a sampling loop that is not LeRobot's own: a cache in its place would drop it."""
    home = getattr(type(owner), name).__module__
    if not home.startswith("lerobot."):
        raise InputError(
            f"{type(owner).__name__}.{name} is defined in {home}, not by LeRobot; this adapter "
            "replaces LeRobot's own loop. Write one for yours: docs/guides/adapter.md"
        )


@contextmanager
def answered(policy: Any, answer: Callable[[Context], Tensor]) -> Iterator[None]:
    """Inside, the policy's loop returns ``answer(context)``: plans of the planner's shape.

    The policy is reset before and after. Torch's global random numbers are left as they were. A
    policy that cannot be cached as it is, or whose loop was replaced already, is an InputError.
    """
    adapter = adapter_for(policy)
    planner = adapter.planner_of(policy)
    owner, name = framework_loop(policy)

    def loop(*args: Any, **kwargs: Any) -> Tensor:
        return answer(adapter.arguments(planner, *args, **kwargs)[0])

    devices = [planner.device] if planner.device.type == "cuda" else []
    policy.reset()
    setattr(owner, name, loop)
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        delattr(owner, name)
        policy.reset()


def as_batch(
    policy: Any, frame: Mapping[str, Any], preprocessor: Processor | None, where: str
) -> dict[str, Any]:
    """One observation as ``select_action`` takes it: a batch of one, preprocessed, checked.

    The frame has keys and tensors as in a LeRobotDataset, without batch; keys other than
    observations and the task are left out. Errors call it ``where``: InputError for a missing key,
    for a value that is no tensor, not finite, or of a wrong shape or dtype, and where the
    preprocessor fails.
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
        try:
            batch = dict(preprocessor(batch))
        except Exception as error:  # whatever its steps raise
            require_keys(wanted, batch, where)  # the usual cause
            raise InputError(
                f"the preprocessor fails on {where} ({type(error).__name__}: {error}); give "
                "observations like those of the policy's dataset, and the task if it reads one"
            ) from error
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
    """Raise InputError unless the values that are there are one observation, and finite."""
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
