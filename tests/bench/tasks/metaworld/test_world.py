from __future__ import annotations

import numpy as np
import pytest

from muninn.model.schedule import FloatArray
from muninn_bench.networks.runs import load_runs
from muninn_bench.tasks.metaworld.data import RECORDING, demonstrate
from muninn_bench.tasks.metaworld.world import (
    DATA,
    STEP_LIMIT,
    PickPlace,
    draw_problem,
    expert_action,
)

TEST = 2


def test_problems_are_disjoint_between_streams_and_far_enough_apart() -> None:
    problems = [draw_problem(s, n) for s in (DATA, 1, TEST) for n in range(200)]
    assert len({problem.tobytes() for problem in problems}) == 600
    assert min(np.linalg.norm(p[:2] - p[3:5]) for p in problems) >= 0.15


@pytest.fixture(scope="module")
def world() -> PickPlace:
    pytest.importorskip("metaworld.envs")
    return PickPlace()


def drive(world: PickPlace, problem: FloatArray) -> tuple[list[FloatArray], bool]:
    observations = [world.reset(problem)]
    for _ in range(STEP_LIMIT):
        observation, success = world.step(expert_action(observations[-1]))
        observations.append(observation)
        if success:
            return observations, True
    return observations, False


def test_a_problem_fixes_the_episode_whatever_ran_before(world: PickPlace) -> None:
    first, success = drive(world, draw_problem(TEST, 0))
    assert success
    drive(world, draw_problem(TEST, 1))
    again, _ = drive(world, draw_problem(TEST, 0))
    assert np.array_equal(first, again)


def test_the_goal_is_seen_at_every_step_and_success_is_nearness(world: PickPlace) -> None:
    problem = draw_problem(TEST, 2)
    observations, success = drive(world, problem)
    assert success and all(np.allclose(seen[36:], problem[3:]) for seen in observations)
    assert np.allclose(observations[0][4:6], problem[:2], atol=1e-3)
    apart = [float(np.linalg.norm(seen[4:7] - seen[36:])) for seen in observations]
    assert apart[-1] <= 0.07 < min(apart[:-1])


def test_problems_are_drawn_from_the_environments_own_space(world: PickPlace) -> None:
    space = world._environment._random_reset_space
    problems = np.array([draw_problem(TEST, n) for n in range(500)])
    assert np.all((problems >= space.low) & (problems <= space.high))
    assert np.allclose(problems.min(axis=0), space.low, atol=0.01)
    assert np.allclose(problems.max(axis=0), space.high, atol=0.01)


def test_demonstrations_hold_the_experts_own_actions_at_disturbed_states(world: PickPlace) -> None:
    observations, actions = demonstrate(world, 1)
    assert np.array_equal(actions, [expert_action(seen) for seen in observations])
    calm, _ = drive(world, draw_problem(DATA, 1))
    assert not np.allclose(observations[10], calm[10], atol=1e-4)


def test_data_is_recorded_whole_and_taken_up_where_it_stopped(  # type: ignore[no-untyped-def]
    world: PickPlace, tmp_path
) -> None:
    out = tmp_path / "few.npz"
    first = RECORDING.generate(out, 2, workers=1)
    shard = tmp_path / "few" / "seed0" / "runs000000-000001.npz"
    made = shard.stat().st_mtime_ns
    out.unlink()
    again = RECORDING.generate(out, 2, workers=1)
    assert shard.stat().st_mtime_ns == made and len(first.offsets) == len(again.offsets) == 3
    assert np.array_equal(first.frames, again.frames)
    observations, actions = demonstrate(world, 1)
    own = again.frames[again.offsets[1] :]
    assert np.array_equal(own[:, :39], observations.astype(np.float32))
    assert np.array_equal(own[:, 39:], actions.astype(np.float32))
    stored = load_runs(out)
    assert np.array_equal(stored.offsets, first.offsets)
    assert np.abs(stored.frames - first.frames).max() <= np.abs(first.frames).max() / 32767.0
