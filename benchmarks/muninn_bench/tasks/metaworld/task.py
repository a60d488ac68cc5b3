"""Meta-World ``pick-place-v3`` with LeRobot's policies: one set of diffusion weights with three
samplers, and a flow."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache as once
from pathlib import Path
from typing import Any

import lerobot  # type: ignore[import-not-found]  # noqa: F401  # a missing package is said here
import metaworld  # type: ignore[import-not-found]  # noqa: F401
import numpy as np
import torch
from torch import Tensor

from muninn.adapters import enable_cache, planner_of
from muninn.adapters.lerobot import executed_actions, global_conditions
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import Metric
from muninn.model.planner import Planner
from muninn.parallel import Workers
from muninn_bench.models import model_file
from muninn_bench.networks.trainer import Training
from muninn_bench.task import Result, Stream
from muninn_bench.tasks.metaworld import policy as policies
from muninn_bench.tasks.metaworld.data import RECORDING
from muninn_bench.tasks.metaworld.policy import STEPS, PolicyLesson, features
from muninn_bench.tasks.metaworld.world import DATA, STEP_LIMIT, PickPlace, draw_problem
from muninn_bench.tasks.recorded import refuse_source

SAMPLERS = {"ddpm100": ("DDPM", 100), "ddim100": ("DDIM", 100), "ddim16": ("DDIM", 16)}
FLOW = f"flow{STEPS}"

LIMITS = (0.1, 0.1, 0.1, 0.1)
"""Acceptable difference of each action channel: 1 mm of commanded motion a step along x, y, z, and
a tenth of the gripper's effort."""

STREAMS = {Stream.TRAIN: DATA, Stream.CERTIFY: 1, Stream.TEST: 2, Stream.TUNE: 3}
"""Numbers of the streams of problems; the data and the committed results were drawn from them."""

_IDLE: list[PickPlace] = []
"""Environments that no episode uses; building one takes as long as two episodes."""


class PickPlaceEpisode:
    """An episode as LeRobot's action queue runs it.

    The policy plans from its last two observations (the first one twice), and the 8 executed
    actions are carried out before it plans again. It ends with success, or after ``STEP_LIMIT``.
    """

    def __init__(self, policy: Any, preprocessor: Any, postprocessor: Any, problem: Any) -> None:
        self._policy, self._before, self._after = policy, preprocessor, postprocessor
        self._world = _IDLE.pop() if _IDLE else PickPlace()
        self._history = np.stack([self._world.reset(problem)] * 2)
        self._steps, self._success = 0, False
        self.time, self.done = 0.0, False  # seconds; whether it succeeded or is out of steps

    def context(self) -> Tensor:
        """What the network is told, (1, condition)."""
        seen = features(torch.from_numpy(self._history[None].astype(np.float32)))
        return global_conditions(self._policy, [self._before(seen)])

    def follow(self, plan: Tensor) -> None:
        """Carry out the executed part of a plan (16, 4), until success."""
        config = self._policy.config
        first = config.n_obs_steps - 1
        executed = self._after(plan[first : first + config.n_action_steps]).numpy()
        for action in np.asarray(executed, np.float64):
            observation, self._success = self._world.step(action)
            self._history = np.stack([self._history[1], observation])
            self._steps += 1
            if self._success:
                break
        self.time = self._steps / 80.0  # the environment makes 80 steps a second
        self.done = self._success or self._steps + config.n_action_steps > STEP_LIMIT
        if self.done:
            _IDLE.append(self._world)

    def result(self) -> Result:
        """The environment's own success signal."""
        return Result(self._success, figures={"steps": float(self._steps)})


class MetaWorld:
    """See :class:`muninn_bench.task.Task`."""

    name = "metaworld"
    extra = "metaworld"
    variants = (*SAMPLERS, FLOW)
    tolerance = 1.0
    unit = "share of the limit of an executed action: 1 is 1 mm of commanded motion a step"
    replans = True

    def planner(self, variant: str) -> Planner:
        """The policy's sampling loop."""
        return self._load(variant)[3]

    def metric(self, variant: str) -> Metric:
        """Largest share of its limit that an executed action differs by, in any channel."""
        policy, _, postprocessor, _ = self._load(variant)
        return executed_actions(policy, postprocessor, LIMITS)

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> PickPlaceEpisode:
        """A problem is a function of stream and number; the seed is of the noise alone."""
        return PickPlaceEpisode(*self._load(variant)[:3], draw_problem(STREAMS[stream], number))

    def own_calls(
        self, variant: str, certificate: Certificate
    ) -> dict[str, Callable[[Tensor], Tensor]]:
        """LeRobot's own sampling loop, plain and on a policy of its own whose cache is enabled."""
        if variant == FLOW:
            planner = self.planner(variant)
            fast = cache(planner, certificate)
            return {"full": planner.sample, "muninn": lambda context: fast(context)[0]}
        other = _policy(variant)[0]
        enable_cache(other, certificate)
        return {"full": _loop(self._load(variant)[0]), "muninn": _loop(other)}

    def make_data(
        self,
        path: Path,
        count: int | None,
        seed: int,
        workers: Workers,
        source: Path | None = None,
    ) -> None:
        """Episodes of Meta-World's scripted policy; a problem is a function of its number."""
        refuse_source(self.name, source)
        RECORDING.generate(path, count, seed, workers)

    def training(self, variant: str, out: Path) -> Training:
        """As the committed policies were trained, on a GPU."""
        return Training(
            out, minutes=5.7, steps=30_000, batch=1024, learning_rate=5e-4, averaging=0.999,
            weight_decay=1e-6, betas=(0.95, 0.999), fast=False,
        )  # fmt: skip

    def lesson(self, variant: str, data: Path, settings: Training) -> PolicyLesson:
        """The weights of a variant; all diffusion variants share theirs."""
        return PolicyLesson(data, variant == FLOW, torch.device(settings.device), settings.seed)

    @once  # noqa: B019  # there is one MetaWorld
    def _load(self, variant: str) -> tuple[Any, Any, Any, Planner]:
        policy, preprocessor, postprocessor = _policy(variant)
        planner = policies.flow_planner(policy) if variant == FLOW else planner_of(policy)
        return policy, preprocessor, postprocessor, planner


def _policy(variant: str) -> tuple[Any, Any, Any]:
    """Policy, pre- and postprocessor, read anew."""
    folder = model_file("metaworld/flow" if variant == FLOW else "metaworld/diffusion")
    return policies.load_policy(folder, *SAMPLERS.get(variant, ("DDPM", 100)))


def _loop(policy: Any) -> Callable[[Tensor], Tensor]:
    own = policy.diffusion.conditional_sample
    return torch.no_grad()(lambda context: own(len(context), global_cond=context))


TASK = MetaWorld()
