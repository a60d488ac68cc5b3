"""The task: plan the motion of an arm from one pose to another among boxes, once, and follow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from muninn.certify.metrics import Metric
from muninn.certify.paired import call_seed
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers
from muninn_bench.models import model_file
from muninn_bench.networks.agent import Agent, load_agent
from muninn_bench.networks.coordinates import Coordinates
from muninn_bench.networks.runs import load_runs
from muninn_bench.networks.trainer import Training
from muninn_bench.planners.edmp import EDMP
from muninn_bench.planners.motion_choice import Chooser, choose, hand_metric, joints_metric
from muninn_bench.planners.motion_prior import MotionPrior
from muninn_bench.planners.motion_prior_lesson import MotionLesson
from muninn_bench.planners.mpd import MPD
from muninn_bench.planners.policy import beside
from muninn_bench.task import Result, Stream
from muninn_bench.tasks.panda_clutter.arm import filled_up
from muninn_bench.tasks.panda_clutter.body import Everything, Surroundings
from muninn_bench.tasks.panda_clutter.data import BOXES, FRAME_SECONDS, RECORDING
from muninn_bench.tasks.panda_clutter.problem import draw_problem, judge
from muninn_bench.tasks.panda_clutter.robot import LIMITS
from muninn_bench.tasks.recorded import refuse_source

PRIOR = MotionPrior()
RECIPES: dict[str, MPD | EDMP] = {"mpd": MPD(PRIOR), "edmp": EDMP(PRIOR)}

MARGIN = 0.0
"""That a plan must keep to be chosen, metres: the spheres cover the arm and stick out of it."""

COORDINATES = Coordinates(*torch.from_numpy(LIMITS).float().T)
"""The limits of a joint are -1 and 1."""

NAME = "panda-clutter"
_WEIGHTS = f"{NAME}/agent.safetensors"


class ClutterEpisode:
    """One motion; see :class:`muninn_bench.task.Episode`."""

    def __init__(self, chooser: Chooser, boxes: int, seed: int) -> None:
        self._chooser = chooser
        self._problem = draw_problem(np.random.default_rng(seed), boxes)
        self._path: FloatArray | None = None
        self._free = False
        self.done, self.time = False, 0.0

    def context(self) -> Tensor:
        """Start and goal, normalised, then ten boxes in metres, (1, 74)."""
        start, goal, boxes = (torch.from_numpy(each).float() for each in self._problem)
        ends = COORDINATES.normalise(torch.stack([start, goal]))
        return torch.cat([ends.flatten(), filled_up(boxes).flatten()])[None]

    def follow(self, plan: Tensor) -> None:
        """Choose among the plans of a call, (rows, frames, 7), and go the chosen one to its end."""
        chosen = choose(self._chooser, plan[None], self.context())
        self.take(chosen.joints[0], bool(chosen.free[0]))

    def take(self, path: Tensor, free: bool) -> None:
        """Go a path (frames, 7) in radians, which the model of the arm holds free or not."""
        self._path, self._free = path.double().cpu().numpy(), free
        self.done, self.time = True, len(path) * FRAME_SECONDS

    def result(self) -> Result:
        """Success: free at MuJoCo's resolution, within the limits, at the goal."""
        assert self._path is not None
        found = judge(self._problem, self._path)
        figures = {
            "collision": float(found.collision),
            "length_rad": found.length,
            "smoothness_rad2": found.smoothness,
            "clearance_m": found.clearance,
            "held_free": float(self._free),
        }
        return Result(found.success, figures=figures)


class PandaClutter:
    """See :class:`muninn_bench.task.Task`."""

    name = NAME
    extra = "arm"
    variants = tuple(f"{planner}-{difficulty}" for planner in RECIPES for difficulty in BOXES)
    tolerance = 0.01
    unit = "m of the hand between the chosen motions, at the worst frame"
    replans = False

    def planner(self, variant: str) -> Planner:
        """Guided by boxes and floor; one prior serves every variant."""
        return RECIPES[_planner(variant)].planner(_agent(variant), Surroundings())

    def metric(self, variant: str) -> Metric:
        """Largest distance of the hand between the two motions that the arm gets, metres."""
        chooser = _chooser()
        return hand_metric(chooser, partial(_hand, chooser))

    def joints_metric(self, variant: str) -> Metric:
        """Largest difference of a joint between the two motions that the arm gets, radians."""
        return joints_metric(_chooser())

    def figures(self, variant: str, plans: Tensor, contexts: Tensor) -> Mapping[str, FloatArray]:
        """How close the chosen motion comes to anything, and among how many boxes."""
        chosen = choose(_chooser(), plans, contexts)
        boxes = np.full(len(plans), float(BOXES[_difficulty(variant)]))
        return {"clearance_m": chosen.clearance.double().cpu().numpy(), "boxes": boxes}

    def begin(self, variant: str, stream: Stream, number: int, seed: int = 0) -> ClutterEpisode:
        """Two poses with boxes in the straight way between them."""
        _agent(variant)  # without weights nothing begins
        boxes = BOXES[_difficulty(variant)]
        return ClutterEpisode(_chooser(), boxes, call_seed(seed, stream, number))

    def follow_all(self, episodes: Sequence[ClutterEpisode], plans: Tensor) -> None:
        """Choose for all calls at once, where the plans are."""
        contexts = torch.cat([episode.context() for episode in episodes])
        chosen = choose(_chooser(), plans, contexts)
        for episode, path, free in zip(episodes, chosen.joints, chosen.free.tolist(), strict=True):
            episode.take(path, free)

    def training(self, variant: str, out: Path) -> Training:
        """Of the prior, whatever the variant."""
        return Training(out, minutes=9.0, batch=2048)

    def make_data(
        self,
        path: Path,
        count: int | None,
        seed: int,
        workers: Workers,
        source: Path | None = None,
    ) -> None:
        """Record the expert's motions."""
        refuse_source(self.name, source)
        RECORDING.generate(path, count, seed, workers)

    def lesson(self, variant: str, data: Path, settings: Training) -> MotionLesson:
        """The noise in motions between two poses."""
        device = torch.device(settings.device)
        return MotionLesson(PRIOR, NAME, load_runs(data), COORDINATES, device, settings.seed)


def _planner(variant: str) -> str:
    return variant.partition("-")[0]


def _difficulty(variant: str) -> str:
    return variant.partition("-")[2]


def _agent(variant: str) -> Agent:
    """The trained prior.

    Raises:
        InputError: its weights are missing, or of another task.
    """
    return _read(model_file(_WEIGHTS, variant).absolute())


@lru_cache
def _read(path: Path) -> Agent:
    return load_agent(path, NAME, PRIOR.planner, PRIOR.networks())


@lru_cache
def _chooser() -> Chooser:
    return Chooser(Everything(), COORDINATES, MARGIN)


def _hand(chooser: Chooser, joints: Tensor) -> Tensor:
    """Where the hand is, metres, by the arm that lies where the poses are."""
    everything = beside(chooser.clearance, joints)
    assert isinstance(everything, Everything)
    return everything.arm.hand(joints)


TASK = PandaClutter()
