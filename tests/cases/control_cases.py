"""Recorded walks with rewards, tiny planners of every kind that learn from them, and agents."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from muninn.model.schedule import FloatArray
from muninn_bench.networks.agent import Agent, save_agent
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.runs import Runs
from muninn_bench.networks.trainer import Lesson, Training
from muninn_bench.planners.decision_diffuser import DecisionDiffuser
from muninn_bench.planners.decision_diffuser_lesson import DecisionLesson
from muninn_bench.planners.diffusion_ql import DiffusionQL
from muninn_bench.planners.diffusion_ql_lesson import DiffusionQLLesson
from muninn_bench.planners.guided_diffuser import AdaptDiffuser, GuidedDiffuser
from muninn_bench.planners.guided_diffuser_lesson import AdaptLesson, GuidedLesson
from muninn_bench.planners.policy import Policy, Recipe
from muninn_bench.tasks.control import ControlTask, Scoring, Taught
from muninn_bench.tasks.kitchen.data import recording

OBSERVATION, ACTION, LIMIT = 4, 2, 30

_SMALL: dict[str, Any] = {"horizon": 8, "widths": (8, 16), "time_width": 16}
_GUIDED: dict[str, Any] = {**_SMALL, "value_widths": (8, 16), "scale": 2.0}

RECIPES: dict[str, Recipe] = {
    "diffuser": GuidedDiffuser(OBSERVATION, ACTION, steps=10, **_GUIDED),
    "decision-diffuser": DecisionDiffuser(OBSERVATION, ACTION, steps=8, inverse_width=16, **_SMALL),
    "adaptdiffuser": AdaptDiffuser(
        OBSERVATION, ACTION, steps=6, rounds=(0.5,), drawn=16, together=8, **_GUIDED
    ),
    "diffusion-ql": DiffusionQL(OBSERVATION, ACTION, steps=5, candidates=12, width=16),
}

LESSONS: dict[str, Callable[..., Lesson]] = {
    "diffuser": GuidedLesson,
    "decision-diffuser": DecisionLesson,
    "adaptdiffuser": AdaptLesson,
    "diffusion-ql": DiffusionQLLesson,
}


def walks(count: int = 12, seed: int = 0) -> Runs:
    """Episodes of 1 to LIMIT frames; a reward is larger where the action is near the state."""
    generator = np.random.default_rng(seed)
    runs = []
    for index in range(count):
        length = LIMIT if index % 3 == 0 else 1 + int(generator.integers(LIMIT - 1))
        states = np.cumsum(0.1 * generator.standard_normal((length, OBSERVATION)), axis=0)
        actions = np.clip(generator.standard_normal((length, ACTION)), -1.0, 1.0)
        reward = 1.0 - np.abs(actions - states[:, :ACTION]).mean(axis=1, keepdims=True)
        runs.append(np.concatenate([states, actions, reward], axis=1))
    return as_runs(runs)


def as_runs(runs: list[FloatArray], observation: int = OBSERVATION) -> Runs:
    """Frames of observation, action and reward."""
    offsets = np.cumsum([0, *map(len, runs)]).astype(np.int64)
    return Runs(np.concatenate(runs).astype(np.float32), offsets, 0.1, 2, observation)


def lesson(name: str, runs: Runs | None = None, task: str = "walk") -> Lesson:
    """The lesson of a tiny planner, on the CPU."""
    given = (RECIPES[name], task, runs or walks(), LIMIT, torch.device("cpu"), 0)
    return LESSONS[name](*given)


def settings(out: Path, **changes: Any) -> Training:
    """A handful of steps."""
    given = {"steps": 4, "batch": 8, "device": "cpu", "fast": False, "report": 2, "minutes": 9.0}
    return Training(out, **{**given, **changes})


def agent(name: str, seed: int = 0) -> Agent:
    """An untrained agent whose weights are all drawn: some layers begin with zeros."""
    recipe = RECIPES[name]
    torch.manual_seed(seed)
    networks = recipe.networks().eval().requires_grad_(False)
    for parameter in networks.parameters():
        parameter.normal_(std=0.3)
    ones = torch.ones(OBSERVATION + ACTION)
    coordinates = Coordinates(-ones, ones)
    return Agent("walk", recipe.planner, networks, coordinates, recipe.steps, {"wanted": 1.5})


def policy(name: str, seed: int = 0) -> Policy:
    """The policy of such an agent."""
    return RECIPES[name].policy(agent(name, seed))


def write_agents(path: Path, sizes: dict[str, tuple[int, int]]) -> Path:
    """A file of linear agents, by name with their channels of observation and action."""
    generator = np.random.default_rng(0)
    tensors, about = {}, {}
    for name, (observation, action) in sizes.items():
        weight = 0.1 * generator.standard_normal((action, observation))
        tensors[f"{name}/mean.weight"] = weight.astype(np.float32)
        about[name] = json.dumps(
            {"kind": "linear", "activation": "none", "clip_observation": None, "epsilon": None,
             "normalised": False}
        )  # fmt: skip
    save_file(tensors, path, metadata=about)
    return path


# -- a world -----------------------------------------------------------------------------------


class Line:
    """A world whose state is a sum of actions; it ends after so many steps, drawn from the seed."""

    made = 0

    def __init__(self, longest: int = 6) -> None:
        Line.made += 1
        self._longest = longest

    def reset(self, seed: int) -> FloatArray:
        generator = np.random.default_rng(seed)
        self._state = 0.1 * generator.standard_normal(OBSERVATION)
        self._left = 1 + int(generator.integers(self._longest))
        return self._state.copy()

    def step(self, action: FloatArray) -> tuple[FloatArray, float, bool]:
        self._state[:ACTION] += 0.1 * action
        self._left -= 1
        return self._state.copy(), 1.0, self._left == 0


def lines(folder: Path) -> ControlTask:
    """A task of such worlds; weights of all planners are written to the folder's ``models``."""

    def taught(recipe: Recipe) -> Taught:
        return Taught(recipe, LESSONS[recipe.planner], {"device": "cpu"})

    for name in RECIPES:
        path = folder / "models" / "lines" / name / "agent.safetensors"
        save_agent(path, replace(agent(name), task="lines"))
    recipes = {name: taught(recipe) for name, recipe in RECIPES.items()}
    scoring = Scoring(0.0, 6.0, complete=6.0)
    return ControlTask("lines", Line, scoring, 30, 0.1, recording, "nothing", recipes)
