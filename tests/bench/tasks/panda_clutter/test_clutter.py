"""The Panda's world: contacts, distances, density of checks, problems, judgements, refusals."""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn_bench.tasks.panda_clutter import problem as problems
from muninn_bench.tasks.panda_clutter import robot
from muninn_bench.tasks.panda_clutter.arm import Arm
from muninn_bench.tasks.panda_clutter.problem import Problem, draw_problem, judge, require_fit
from muninn_bench.tasks.panda_clutter.world import ROOM, SIGHT, STEP, Clutter, reach, subdivided

REST = np.array([0.0, -0.785, 0.0, -2.356, 0.0, 1.571, 0.785])
BESIDE = np.array([0.5, 0.3, 0.3, 0.04, 0.05, 0.06])
EMPTY = np.zeros((0, 6))


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    try:
        robot.assets()
    except InputError as error:
        pytest.skip(str(error))


def drawn_boxes(generator: np.random.Generator, count: int) -> np.ndarray:
    centres = generator.uniform(*problems.CENTRES, (count, 3))
    return np.hstack([centres, generator.uniform(0.02, 0.06, (count, 3))])


def poses(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.uniform(*robot.LIMITS.T, (count, 7))


def compiled_with(boxes: np.ndarray, margin: float) -> Callable[[np.ndarray], int]:
    """How many contacts there are in a model compiled with these boxes standing still."""
    xml = robot.build_xml().replace('name="floor"', f'name="floor" margin="{margin}"')
    for number, box in enumerate(boxes):
        place, size = (" ".join(map(str, part)) for part in (box[:3], box[3:]))
        before = (
            f'name="box{number}" mocap="true" pos="0 0 -10"><geom name="box{number}" type="box"'
        )
        assert f'{before} size="0.05 0.05 0.05"' in xml
        after = f'pos="{place}"><geom name="box{number}" margin="{margin}" type="box" size="{size}"'
        xml = xml.replace(f'{before} size="0.05 0.05 0.05"', after)
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)

    def contacts(joints: np.ndarray) -> int:
        data.qpos[:] = joints
        mujoco.mj_forward(model, data)
        return int(data.ncon)

    return contacts


@pytest.mark.parametrize("margin", [0.0, 0.03])
def test_moved_boxes_collide_like_compiled_ones(margin: float) -> None:
    generator = np.random.default_rng(0)
    touching = 0
    for _ in range(3):
        boxes = drawn_boxes(generator, robot.MOST_BOXES)
        clutter, contacts = Clutter(boxes), compiled_with(boxes, margin)
        for joints in poses(generator, 200):
            found = clutter.touches(joints, margin)
            assert found == (contacts(joints) > 0)
            touching += found
    assert 100 < touching < 400


def test_scenes_do_not_disturb_each_other() -> None:
    hand = np.array([0.3, 0.0, 0.5, 0.05, 0.05, 0.05])
    hit, missed = Clutter(np.array([BESIDE, hand])), Clutter(BESIDE)
    assert [hit.touches(REST), missed.touches(REST), hit.touches(REST)] == [True, False, True]
    assert Clutter(EMPTY).touched(REST) == [] and all("box1" in name for name in hit.touched(REST))


def test_distances_lie_between_a_plane_that_separates_and_two_points() -> None:
    """Of MuJoCo's distance: a pair of points bounds it from above, a plane from below."""
    generator = np.random.default_rng(1)
    model = robot.load_model()
    data, hulls = mujoco.MjData(model), robot.link_hulls(model)
    checked = 0
    for joints in poses(generator, 150):
        box = drawn_boxes(generator, 1)[0]
        found = Clutter(box).distance(joints)
        if not 0.001 < found < SIGHT:
            continue
        data.qpos[:] = joints
        mujoco.mj_kinematics(model, data)
        bounds = []
        for link in range(1, 8):
            body = model.body(f"link{link}").id
            for part in hulls[link]:
                corners = part @ data.xmat[body].reshape(3, 3).T + data.xpos[body]
                bounds.append(separation(corners, box))
        below, above = np.min(bounds, axis=0)
        assert below - 1e-5 <= found <= above + 1e-5 and above - below < 2e-3
        checked += 1
    assert checked > 20


def separation(corners: np.ndarray, box: np.ndarray) -> tuple[float, float]:
    """Bounds on a hull's distance from a box, by Gilbert's algorithm on their difference."""
    point = corners[0] - np.clip(corners[0], box[:3] - box[3:], box[:3] + box[3:])
    below = -np.inf
    for _ in range(300):
        length = float(np.linalg.norm(point))
        support = corners[np.argmin(corners @ point)] - box[:3] - box[3:] * np.sign(point)
        below = max(below, float(support @ point) / length)
        if length - below < 1e-4:
            break
        way = support - point
        point = point + np.clip(-(point @ way) / (way @ way), 0.0, 1.0) * way
    return below, float(np.linalg.norm(point))


def test_no_point_moves_more_than_a_step_between_two_checks() -> None:
    generator = np.random.default_rng(2)
    model = robot.load_model()
    data, hulls = mujoco.MjData(model), robot.link_hulls(model)

    def corners(joints: np.ndarray) -> np.ndarray:
        data.qpos[:] = joints
        mujoco.mj_kinematics(model, data)
        bodies = [model.body(f"link{link}").id for link in range(8)]
        return np.concatenate(
            [
                part @ data.xmat[body].reshape(3, 3).T + data.xpos[body]
                for body, parts in zip(bodies, hulls, strict=True)
                for part in parts
            ]
        )

    path = poses(generator, 2)
    dense = subdivided(path)
    np.testing.assert_allclose(dense[[0, -1]], path)
    at = generator.integers(0, len(dense) - 1, 40)
    moved = [np.linalg.norm(corners(dense[k + 1]) - corners(dense[k]), axis=1).max() for k in at]
    assert max(moved) <= STEP
    # Each joint alone: the bound is above what it does, and not far.
    for joint in range(robot.JOINTS):
        most = 0.0
        for pose in poses(generator, 60):
            other = pose.copy()
            other[joint] += 1e-4
            moved_by = np.linalg.norm(corners(other) - corners(pose), axis=1).max() / 1e-4
            most = max(most, moved_by)
        assert 0.6 * reach()[joint] < most <= reach()[joint] + 1e-6
    # The arithmetic of STEP's docstring, about a fixed step in joint space.
    extent = np.linalg.norm(np.diff(robot.LIMITS, axis=1))
    assert 0.0016 * extent == pytest.approx(0.0208, abs=1e-4)
    assert 0.0016 * extent * np.linalg.norm(reach()) == pytest.approx(0.042, abs=5e-4)


def test_a_path_through_the_thinnest_box_is_seen() -> None:
    x, y, _ = Arm().hand(torch.tensor(REST).float()).tolist()
    post = np.array([x, y, 0.3, 0.02, 0.02, 0.3])
    sweep = np.array([REST, REST])
    sweep[:, 0] = -0.8, 0.8
    clutter = Clutter(post)
    assert not any(clutter.touches(joints) for joints in sweep)
    assert not clutter.free(sweep) and clutter.clearance(sweep) < -0.01
    assert Clutter(EMPTY).free(sweep) and Clutter(EMPTY).clearance(sweep) == SIGHT


def test_the_clearance_of_a_path_is_the_least_distance_on_it() -> None:
    generator = np.random.default_rng(3)
    for _ in range(4):
        clutter, path = Clutter(drawn_boxes(generator, 6)), poses(generator, 2)
        least = min(clutter.distance(joints) for joints in subdivided(path))
        assert clutter.clearance(path) == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("boxes", [3, 6, 10])
def test_problems_are_blocked_by_boxes_and_repeat(boxes: int) -> None:
    drawn = [draw_problem(np.random.default_rng([boxes, k]), boxes) for k in range(6)]
    for problem in drawn:
        require_fit(problem)
        line = np.stack([problem.start, problem.goal])
        assert problem.boxes.shape == (boxes, 6)
        assert not judge(problem, line).success and judge(problem, line).collision
        assert Clutter(EMPTY).free(line, step=0.04)
        clutter = Clutter(problem.boxes)
        assert min(clutter.distance(joints) for joints in line) >= ROOM - 1e-6
        assert clutter.near_base() == []
        centres, sides = problem.boxes[:, :3], 2.0 * problem.boxes[:, 3:]
        assert (centres >= problems.CENTRES[0]).all() and (centres <= problems.CENTRES[1]).all()
        assert (sides >= 0.04).all() and (sides <= 0.12).all()
    again = draw_problem(np.random.default_rng([boxes, 0]), boxes)
    for one, other in zip(again, drawn[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_judgement_by_hand() -> None:
    goal = REST + np.array([0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4])
    problem = Problem(REST, goal, BESIDE[None] + np.array([5.0, 0, 0, 0, 0, 0]))
    path = np.linspace(REST, goal, 11)
    good = judge(problem, path)
    assert good.success and not good.collision and good.clearance == SIGHT
    assert good.length == pytest.approx(0.5) and good.smoothness == pytest.approx(0.0, abs=1e-20)
    short = judge(problem, path[:9])  # 0.08 rad from the goal
    assert not short.success and not short.collision
    assert judge(problem, path[:11] + 0.04).success  # the robot goes to the first waypoint first
    bent = path.copy()
    bent[5, 6] += 0.1  # second differences 0.1, -0.2 and 0.1 among nine
    assert judge(problem, bent).smoothness == pytest.approx(0.06 / 9.0)
    beyond = path.copy()
    beyond[5, 1] = robot.LIMITS[1, 1] + 0.01
    assert not judge(problem, beyond).success


def test_refusals_say_what_is_wrong() -> None:
    inside = np.array([[0.0, 0.0, 0.08, 0.03, 0.03, 0.03]])
    hand = np.array([[0.3, 0.0, 0.5, 0.05, 0.05, 0.05]])
    away = REST + np.array([1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    with pytest.raises(InputError, match=r"box 0, \[0.0, .* touches the robot's base"):
        require_fit(Problem(REST, away, inside))
    with pytest.raises(InputError, match=r"the start is in collision: .*box0"):
        require_fit(Problem(REST, away, hand))
    with pytest.raises(InputError, match=r"the goal is in collision: .*box0"):
        require_fit(Problem(away, REST, hand))
    with pytest.raises(InputError, match=r"the goal is .* rad; the joints go from"):
        require_fit(Problem(REST, REST + 3.0, EMPTY))
    with pytest.raises(InputError, match=r"the start is .*nan.* rad; the joints go from"):
        require_fit(Problem(REST * np.nan, REST, EMPTY))
    with pytest.raises(InputError, match="10 boxes at most, got 11"):
        Clutter(np.tile(BESIDE, (11, 1)))
    for bad in (np.nan, 0.0, -0.1):
        with pytest.raises(InputError, match=r"box 1 is .* half sizes are above 0"):
            Clutter(np.array([BESIDE, [0.5, 0.0, 0.3, 0.05, bad, 0.05]]))
    path = np.tile(REST, (4, 1))
    with pytest.raises(InputError, match=r"a path is \(waypoints, 7\).*got \(4, 6\)"):
        judge(Problem(REST, REST, EMPTY), path[:, :6])
    path[2, 3] = np.nan
    with pytest.raises(InputError, match="waypoint 2 of the path is not finite"):
        judge(Problem(REST, REST, EMPTY), path)


def test_a_missing_package_names_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robot, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=robot.INSTALL):
        robot.build_xml()
