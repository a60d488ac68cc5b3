"""The schedules and prediction types of diffusers, and its schedulers in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from muninn.model.sampler import Kind
from muninn.model.schedule import Schedule

SCHEDULES = {
    "squaredcos_cap_v2": Schedule.cosine,
    "linear": Schedule.linear,
    "scaled_linear": Schedule.scaled_linear,
}
PREDICTION_TYPES: dict[str, Kind] = {
    "epsilon": "epsilon",
    "sample": "sample",
    "v_prediction": "v",
}


def in_float64(scheduler: Any, schedule: Schedule, **fields: Tensor) -> Any:
    """The scheduler with Muninn's float64 table in place of its float32 one."""
    scheduler.alphas_cumprod = torch.from_numpy(schedule.alpha_bar)
    for name, value in fields.items():
        setattr(scheduler, name, value)
    return scheduler
