"""The bundled Maze2D planner deployed: stationary, under five shifts, and measured.

Each scenario gives audited calls; the certified member is measured on them once, with a journal.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import choose_member
from muninn.engines.choose import runtime_for
from muninn.engines.runtime import Runtime
from muninn.model.denoiser import fingerprint
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Workers, workers_of
from muninn.programs.plan import Family
from muninn.progress import bars
from muninn_bench.networks.teacher import Teacher
from muninn_bench.studies.certified import load_family
from muninn_bench.tasks.maze2d import maze
from muninn_bench.tasks.maze2d.data import FRAME_STRIDE
from muninn_bench.tasks.maze2d.planner import bundled_teacher, maze_contexts, maze_planner
from muninn_bench.tasks.maze2d.world import MazeWorld

_CHUNK = 40
_DRIVER = 4
"""Member that drives to the second call of an episode: the one the demo certifies."""
_DRIVEN_FRAMES = 64
"""Frames of a plan that are driven before the robot plans again: 1.9 s."""


@dataclass(frozen=True)
class Scenario:
    """One deployment. Each episode plans, drives 1.9 s of its plan, and plans again from there."""

    name: str
    changes: str  # from the stationary deployment, in words
    jitter: float = maze.START_JITTER  # largest offset of starts and goals from cell centres, m
    position_noise: float = 0.0  # standard deviation of the state the planner is told, m
    velocity_noise: float = 0.0  # m/s
    wall: maze.Cell | None = None  # a free cell that is walled up; the planner is not told
    mass: float = 1.0  # of the ball, as a multiple; neither controller nor planner is told
    half: bool = False  # the network under bfloat16 autocast, which loading does not check


STATIONARY = Scenario("stationary", "nothing")
SHIFTS: tuple[Scenario, ...] = (
    Scenario(
        "new goals",
        "starts and goals up to 0.45 m from the cell's centre instead of 0.25 m, next to walls "
        "and outside of the training data",
        jitter=0.45,
    ),
    Scenario(
        "sensor noise",
        "Gaussian noise of 0.1 m and 0.5 m/s on the start state that the planner is told",
        position_noise=0.1,
        velocity_noise=0.5,
    ),
    Scenario(
        "other obstacles",
        "the busiest corridor cell is walled up; the planner sees no obstacles, so only states "
        "from which the robot plans again can change",
        wall=(4, 6),
    ),
    Scenario(
        "other dynamics",
        "a ball four times as heavy; the planner's input changes only through the states from "
        "which the robot plans again",
        mass=4.0,
    ),
    Scenario("other dtype", "the network under bfloat16 autocast", half=True),
)


class OtherWorld(MazeWorld):
    """The maze with a cell walled up or a heavier ball."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        import gymnasium
        import mujoco

        if scenario.wall is not None:
            cells = maze.WALLS.astype(int)
            cells[scenario.wall] = 1
            with redirect_stderr(io.StringIO()):
                self._environment = gymnasium.make("PointMaze_Large-v3", maze_map=cells.tolist())
        self.model.body_mass[:] *= scenario.mass
        self.model.body_inertia[:] *= scenario.mass
        mujoco.mj_setConst(self.model, mujoco.MjData(self.model))  # the mass is kept twice

    def drive(self, problem: maze.MazeProblem, frames: FloatArray) -> FloatArray:
        """State ``(x, y, vx, vy)`` after following frames ``(count, >= 4)`` in world units."""
        steps = np.arange((len(frames) - 1) * FRAME_STRIDE + 1) / FRAME_STRIDE
        known = np.arange(len(frames))
        target = np.stack([np.interp(steps, known, frames[:, c]) for c in range(4)], axis=1)
        still = np.zeros((len(target), 2))
        states, _ = self.track(problem, target[:, :2], target[:, 2:], still)
        last: FloatArray = states[-1]
        return last


def draw_episode(scenario: Scenario, generator: np.random.Generator) -> maze.MazeProblem:
    """A problem whose start and goal are not inside the scenario's new wall."""
    while True:
        problem = maze.draw_problem(generator, scenario.jitter)
        if scenario.wall not in (maze.cell_of(problem.start[:2]), maze.cell_of(problem.goal)):
            return problem


def audited_contexts(
    scenario: Scenario, teacher: Teacher, runtime: Runtime, stream: int, first: int, count: int
) -> Tensor:
    """Contexts (count, 2, 4) of one uniformly drawn call of each two-call episode.

    Episode ``first + i`` depends on the stream and its number alone. Its first call starts at
    rest; its second where the robot, driven by the cached planner's own plan, has come to.
    """
    draws = [np.random.default_rng([stream, first + i]) for i in range(count)]
    problems = [draw_episode(scenario, draw) for draw in draws]
    second = [i for i, draw in enumerate(draws) if draw.random() < 0.5]
    if second:
        noise = runtime.planner.draw_noise(seeds=[call_seed(stream, first + i, 0) for i in second])
        plans, _ = runtime(maze_contexts(teacher, [problems[i] for i in second]), noise=noise)
        frames = teacher.unnormalise(plans[:, :_DRIVEN_FRAMES]).double().numpy()
        world = OtherWorld(scenario)
        for i, own in zip(second, frames, strict=True):
            problems[i] = maze.MazeProblem(world.drive(problems[i], own), problems[i].goal)
    spread = np.repeat([scenario.position_noise, scenario.velocity_noise], 2)
    told = [
        maze.MazeProblem(problem.start + spread * draw.standard_normal(4), problem.goal)
        for problem, draw in zip(problems, draws, strict=True)
    ]
    return torch.as_tensor(maze_contexts(teacher, told))


@dataclass(frozen=True)
class Options:
    """How much is run, and what is promised."""

    calibration: int = 200  # calls to certify on
    stationary: int = 120  # further calls
    shifted: int = 100  # calls of each shift
    streams: int = 2000  # resampled
    audits: int = 1000  # in each stream
    good: int = 200  # audits before the change in the second kind of stream; the first has none
    level: float = 0.05  # of alarm and warning
    tolerance: float = 0.002
    risk: float = 0.05
    confidence: float = 0.95
    seed: int = 11


SMOKE = Options(calibration=80, stationary=40, shifted=40, streams=200, audits=300, good=100)


@dataclass(frozen=True)
class Deployment:
    """What was measured, the stationary calls that were certified on first."""

    member: int  # certified one, at least 1: full compute needs no monitor
    excess: FloatArray  # of the stationary calls, (calls, members after Full)
    estimates: FloatArray  # of the same calls under the certified member
    shifts: dict[str, tuple[FloatArray, FloatArray]]  # excess and estimates under that member

    @property
    def own(self) -> FloatArray:
        """Excess of the stationary calls under the certified member."""
        return self.excess[:, self.member - 1]


@lru_cache(maxsize=1)
def _deployed(seed: int) -> tuple[Teacher, Planner, Family, Runtime]:
    """The bundled planner, its family and what drives it; loaded once by every worker."""
    teacher, family = bundled_teacher(), load_family("maze2d/family.json", seed)
    planner = maze_planner(teacher)
    return teacher, planner, family, runtime_for(planner, family.member(_DRIVER))


def _audits(
    scenario: Scenario, members: Sequence[int], seed: int, calls: tuple[int, int]
) -> list[list[list[float]]]:
    """Deviations and error estimates of each member on so many calls from a first one on."""
    teacher, planner, family, driver = _deployed(seed)
    first, count = calls
    stream = call_seed(seed, int(scenario == STATIONARY)) % 2**31
    with torch.autocast("cpu", torch.bfloat16) if scenario.half else nullcontext():
        contexts = audited_contexts(scenario, teacher, driver, stream, first, count)
        paired = PairedCalls(planner, contexts, count, rms_step, call_seed(stream, first))
        found = [paired.measure(family.member(k), list(range(count))) for k in members]
    return [[own.deviation.tolist(), own.estimate.tolist()] for own in found]


def measure(
    path: Path, options: Options, progress: bool = True, workers: Workers = 1
) -> Deployment:
    """Everything that needs the network; what the journal at ``path`` holds is not run again."""
    teacher, _, family, _ = _deployed(options.seed)
    identity = {
        "weights": fingerprint(teacher.network),
        "family": family.to_json(),
        "seed": options.seed,
        "scenarios": [asdict(scenario) for scenario in (STATIONARY, *SHIFTS)],
        "versions": library_versions(),
    }
    journal = Journal(path, identity)

    def pool(scenario: Scenario, members: Sequence[int], calls: int) -> tuple[FloatArray, ...]:
        """Excess and error estimates of a scenario, each (calls, members)."""
        advance = task(scenario.name, calls)
        chunks = [(first, min(_CHUNK, calls - first)) for first in range(0, calls, _CHUNK)]
        keys = [f"{scenario.name}/{first}-{count}/{members}" for first, count in chunks]
        missing = [at for at, key in enumerate(keys) if journal.get(key) is None]
        advance(calls - sum(chunks[at][1] for at in missing))
        work = partial(_audits, scenario, members, options.seed)
        found = crew.map(work, [chunks[at] for at in missing])
        for at, result in zip(missing, found, strict=True):
            journal.put(keys[at], result)
            advance(chunks[at][1])
        parts = [np.array(journal.get(key)) for key in keys]
        deviation, estimate = np.concatenate(parts, axis=2).transpose(1, 2, 0)
        return deviation / options.tolerance, estimate

    with bars(progress) as task, workers_of(workers) as crew:
        members = range(1, len(family))
        excess, estimates = pool(STATIONARY, members, options.calibration + options.stationary)
        table = np.pad(excess[: options.calibration], ((0, 0), (1, 0)))  # Full deviates by nothing
        member = max(1, choose_member(table, options.risk, options.confidence))
        shifts = {}
        for scenario in SHIFTS:
            own, estimate = pool(scenario, [member], options.shifted)
            shifts[scenario.name] = (own[:, 0], estimate[:, 0])
    return Deployment(member, excess, estimates[:, member - 1], shifts)
