"""FrankaKitchen: four tasks one after the other, planned from demonstrations of people."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muninn_bench.networks.trainer import Lesson
from muninn_bench.planners.decision_diffuser import DecisionDiffuser
from muninn_bench.planners.decision_diffuser_lesson import DecisionLesson
from muninn_bench.planners.guided_diffuser import AdaptDiffuser, GuidedDiffuser
from muninn_bench.planners.guided_diffuser_lesson import AdaptLesson, GuidedLesson
from muninn_bench.planners.policy import Recipe
from muninn_bench.tasks.control import ControlTask, Scoring, Taught
from muninn_bench.tasks.kitchen.data import COMPLETE_RUNS, NO_LIMIT, ORIGINAL, recording
from muninn_bench.tasks.kitchen.world import ACTION, OBSERVATION, STEP_SECONDS, Kitchen

HORIZON = 128
"""Frames of a plan; the paper's 280 is longer than any demonstration to completion."""

EXECUTED = 8
"""Actions carried out of a plan, 0.64 s."""

WIDTHS = (32, 64, 128, 256)

SETTINGS: Mapping[str, Any] = {
    "minutes": 5.5, "steps": 12_000, "batch": 512, "learning_rate": 5e-4, "averaging": 0.999,
}  # fmt: skip

_SIZES: Mapping[str, Any] = {
    "observation": OBSERVATION, "action": ACTION, "horizon": HORIZON, "executed": EXECUTED,
    "widths": WIDTHS,
}  # fmt: skip

RECIPES: Mapping[str, tuple[Recipe, Callable[..., Lesson]]] = {
    "diffuser": (GuidedDiffuser(**_SIZES), GuidedLesson),
    "decision-diffuser": (DecisionDiffuser(**_SIZES), DecisionLesson),
    "adaptdiffuser": (AdaptDiffuser(**_SIZES), AdaptLesson),
}

TAUGHT = {
    f"{name}{suffix}": Taught(recipe, lesson, SETTINGS, runs)
    for suffix, runs in (("", None), ("-complete", COMPLETE_RUNS))
    for name, (recipe, lesson) in RECIPES.items()
}
"""On all demonstrations, and on the complete ones alone."""

TASK = ControlTask(
    "kitchen",
    Kitchen,
    Scoring(0.0, 4.0, complete=4.0),
    NO_LIMIT,
    STEP_SECONDS,
    recording,
    f"that of the demonstrations at {ORIGINAL}",
    TAUGHT,
    lanes=25,  # a simulator takes 80 MB, and a third of a second to make
)
