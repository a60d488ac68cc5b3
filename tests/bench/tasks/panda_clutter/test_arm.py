"""The arm in torch: MuJoCo's frames, its distances from the careful side, derivatives."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from muninn.errors import InputError
from muninn_bench.tasks.panda_clutter import robot
from muninn_bench.tasks.panda_clutter.arm import Arm, filled_up
from muninn_bench.tasks.panda_clutter.problem import CENTRES
from muninn_bench.tasks.panda_clutter.spheres import SPHERES
from muninn_bench.tasks.panda_clutter.world import SIGHT, Clutter

MOVING = torch.tensor([row[0] > 0 for row in SPHERES])
MARGIN = 0.0005
"""Metres by which spheres may see less than MuJoCo: the card says none, this is for rounding."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    try:
        robot.assets()
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def arm() -> Arm:
    return Arm().double()


def poses(count: int, seed: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).uniform(*robot.LIMITS.T, (count, 7)))


def boxes(count: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    centres = generator.uniform(*CENTRES, (count, 3))
    return torch.tensor(np.hstack([centres, generator.uniform(0.02, 0.06, (count, 3))]))


def test_frames_are_those_of_mujoco(arm: Arm) -> None:
    model = robot.load_model()
    data = mujoco.MjData(model)
    joints = poses(50, 0)
    frames, hand = arm.frames(joints), arm.hand(joints)
    bodies = [model.body(f"link{link}").id for link in range(8)]
    pads = [model.geom(f"{side}_pad{n}").id for side in ("left", "right") for n in (1, 2)]
    for row, pose in enumerate(joints.numpy()):
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(frames.origins[row], data.xpos[bodies], atol=1e-9)
        rotations = data.xmat[bodies].reshape(8, 3, 3)
        np.testing.assert_allclose(frames.rotations[row], rotations, atol=1e-9)
        # The hand is between the pads of the fingers.
        assert np.linalg.norm(hand[row].numpy() - data.geom_xpos[pads].mean(axis=0)) < 0.02
    single = Arm()
    np.testing.assert_allclose(single.frames(joints.float()).origins, frames.origins, atol=1e-5)


def box_distance(point: np.ndarray, box: np.ndarray) -> float:
    """Signed, by the definition: to the closest point, or to the closest face from inside."""
    low, high = box[:3] - box[3:], box[:3] + box[3:]
    closest = np.clip(point, low, high)
    if (closest != point).any():
        return float(np.linalg.norm(point - closest))
    return -float(min((point - low).min(), (high - point).min()))


def test_clearance_is_the_distance_to_the_nearest_box(arm: Arm) -> None:
    joints, around = poses(20, 1), boxes(5, 2)
    found = arm.clearance(joints, around)
    assert found.shape == (20, len(SPHERES))
    centres = arm.centres(joints)
    for row in range(20):
        for sphere in range(0, len(SPHERES), 7):
            least = min(box_distance(centres[row, sphere].numpy(), box.numpy()) for box in around)
            expected = least - SPHERES[sphere][4]
            assert float(found[row, sphere]) == pytest.approx(expected, abs=1e-6)
    # Leading dimensions broadcast; far boxes change nothing.
    several = torch.stack([boxes(5, seed) for seed in range(4)])
    both = arm.clearance(joints.reshape(4, 5, 7), filled_up(several)[:, None])
    for at in range(4):
        alone = arm.clearance(joints[5 * at : 5 * at + 5], several[at])
        torch.testing.assert_close(both[at], alone)


def careful(arm: Arm, count: int) -> tuple[np.ndarray, np.ndarray]:
    """MuJoCo's distances and the spheres', over random poses, ten boxes to each hundred."""
    joints, truth, spheres = poses(count, 3), [], []
    for first in range(0, count, 100):
        around = boxes(10, 100 + first)
        clutter, some = Clutter(around.numpy()), joints[first : first + 100]
        truth += [clutter.distance(pose) for pose in some.numpy()]
        spheres += arm.clearance(some, around)[:, MOVING].amin(dim=-1).tolist()
    return np.array(truth), np.array(spheres)


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=pytest.mark.slow)])
def test_spheres_never_see_more_room_than_there_is(arm: Arm, count: int) -> None:
    truth, spheres = careful(arm, count)
    hit, seen = truth <= 0.0, (truth > 0.0) & (truth < SIGHT)
    assert hit.sum() > count // 30 and seen.sum() > count // 5
    assert (spheres[hit] < MARGIN).all()
    assert (spheres[seen] <= truth[seen] + MARGIN).all()
    errors = truth[seen] - spheres[seen]
    assert errors.mean() < 0.013 and np.quantile(errors, 0.95) < 0.026 and errors.max() < 0.045


def test_floor_and_self_collisions_are_seen(arm: Arm) -> None:
    joints, empty = poses(2000, 4), Clutter(np.zeros((0, 6)))
    pairs = [empty.touched(pose) for pose in joints.numpy()]
    floor = np.array([any("world" in pair for pair in found) for found in pairs])
    itself = np.array([any("world" not in pair for pair in found) for found in pairs])
    below = (arm.floor_clearance(joints).amin(dim=-1) < 0.0).numpy()
    crossed = (arm.self_clearance(joints).amin(dim=-1) < 0.0).numpy()
    assert floor.sum() > 100 and below[floor].all() and below[~floor].mean() < 0.03
    assert itself.sum() > 50 and crossed[itself].mean() > 0.97 and crossed[~itself].mean() < 0.08


def test_gradients_are_those_of_differences(arm: Arm) -> None:
    joints, around = poses(3, 5).requires_grad_(), boxes(3, 6).requires_grad_()
    assert torch.autograd.gradcheck(arm.clearance, (joints, around), atol=1e-6)
    assert torch.autograd.gradcheck(arm.self_clearance, (joints,), atol=1e-6)
    assert torch.autograd.gradcheck(arm.floor_clearance, (joints,), atol=1e-6)
    assert torch.autograd.gradcheck(arm.hand, (joints,), atol=1e-6)
    arm.clearance(joints, around).sum().backward()
    assert joints.grad is not None
    step = 1e-6
    for joint in range(7):
        ahead, behind = joints.detach().clone(), joints.detach().clone()
        ahead[:, joint] += step
        behind[:, joint] -= step
        rise = (arm.clearance(ahead, around) - arm.clearance(behind, around)).sum(dim=-1)
        torch.testing.assert_close(joints.grad[:, joint], rise / (2.0 * step), atol=1e-5, rtol=1e-5)


def test_gradients_are_finite_where_distances_have_corners(arm: Arm) -> None:
    joints = poses(1, 7).requires_grad_()
    centres = arm.centres(joints.detach())[0]
    half = torch.full((len(centres), 3), 0.05).double()
    concentric = torch.cat([centres, half], dim=1)  # a sphere's centre in the middle of a box
    touching = concentric + torch.tensor([0.05, 0.05, 0.05, 0.0, 0.0, 0.0])  # and on its corner
    empty = filled_up(torch.zeros(0, 6, dtype=torch.float64))
    for around in (concentric, touching, torch.cat([concentric, concentric]), empty):
        (gradient,) = torch.autograd.grad(arm.clearance(joints, around).sum(), joints)
        assert torch.isfinite(gradient).all()


@pytest.mark.gpu
def test_a_cuda_graph_computes_the_same_with_gradients() -> None:
    arm = Arm().cuda()
    joints = poses(8, 8).float().cuda().requires_grad_()
    around = boxes(10, 9).float().cuda()

    def cost() -> tuple[torch.Tensor, torch.Tensor]:
        total = arm.clearance(joints, around).clamp(max=0.05).sum()
        total = total + arm.self_clearance(joints).sum() + arm.floor_clearance(joints).sum()
        return total, torch.autograd.grad(total, joints)[0]

    expected = cost()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        cost()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = cost()
    graph.replay()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
