"""The robot: gym-hil's Franka Panda with its Robotiq 2F-85 gripper, as a MuJoCo model.

Only what can collide is kept: the arm's seven joints, with the gripper held open, so that it is a
part of the last link. Ten boxes stand beside it as mocap bodies, to be moved and resized.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray

INSTALL = "pip install --no-deps gym-hil==0.1.14"
"""Without its dependencies, which are for driving a robot by gamepad; only its meshes are used."""

JOINTS = 7
MOST_BOXES = 10

LIMITS = np.array(
    [
        [-2.8973, 2.8973],
        [-1.7628, 1.7628],
        [-2.8973, 2.8973],
        [-3.0, -0.0698],
        [-2.8973, 2.8973],
        [0.0, 3.7525],
        [-2.8973, 2.8973],
    ]
)
"""Lowest and highest angle of each joint, radians: the robot's own, within the paper's."""

HAND = np.array([0.0, 0.0, 0.2558])
"""Between the finger tips, in the frame of the last link, metres."""

ROBOT, SCENERY = 1, 2
"""Collision bits: boxes and the floor meet the robot, not each other."""


def assets() -> Path:
    """The folder of gym-hil's models, found without importing the package, which needs pygame.

    Raises:
        InputError: gym-hil is not installed.
    """
    found = find_spec("gym_hil")
    if found is None or found.origin is None:
        raise InputError(f"panda-clutter needs the meshes of gym-hil: {INSTALL}")
    return Path(found.origin).parent / "assets"


def build_xml(visible: bool = False) -> str:
    """The MJCF of the arm, the floor and ten boxes.

    Args:
        visible: keep the meshes that are only looked at, and add lights.

    Raises:
        InputError: gym-hil is not installed.
    """
    root = ElementTree.parse(assets() / "panda.xml").getroot()
    for part in ("contact", "tendon", "equality", "actuator", "sensor"):
        for element in root.findall(part):
            root.remove(element)
    used = set()
    for body in list(root.iter("body")):
        for child in list(body):
            look = child.get("class", "").endswith("/visual")
            if child.tag in ("site", "camera") or (child.tag == "geom" and look and not visible):
                body.remove(child)
            elif child.tag == "joint" and not child.get("name", "").startswith("joint"):
                body.remove(child)  # of the gripper, which stays open
            elif child.tag == "geom":
                used.add(child.get("mesh"))
                if not look:
                    child.set("contype", str(ROBOT))
                    child.set("conaffinity", str(ROBOT | SCENERY))
    for asset in root.findall("asset"):
        for mesh in asset.findall("mesh"):
            if mesh.get("name", Path(mesh.get("file", "")).stem) not in used:
                asset.remove(mesh)
    _furnish(root, visible)
    return ElementTree.tostring(root, encoding="unicode")


def load_model(visible: bool = False) -> Any:
    """The compiled ``mujoco.MjModel``; a third of a second, or two where it is visible.

    Raises:
        InputError: gym-hil is not installed.
    """
    import mujoco

    return mujoco.MjModel.from_xml_string(build_xml(visible))


def link_hulls(model: Any) -> list[list[FloatArray]]:
    """Corners (corners, 3) of every convex part that collides, in its link's frame, metres.

    For the base and the seven links, in this order; the gripper belongs to the last.
    """
    import mujoco

    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    found: list[list[FloatArray]] = [[] for _ in range(JOINTS + 1)]
    for geom in np.flatnonzero(model.geom_contype == ROBOT):
        body = model.geom_bodyid[geom]
        while not (name := model.body(body).name).startswith("link"):
            body = model.body_parentid[body]
        if (mesh := model.geom_dataid[geom]) >= 0:
            first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
            corners = model.mesh_vert[first : first + count].astype(np.float64)
        else:
            corners = _CORNERS * model.geom_size[geom]
        world = corners @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
        local = (world - data.xpos[body]) @ data.xmat[body].reshape(3, 3)
        found[int(name[len("link") :])].append(local)
    return found


def reaches(model: Any) -> FloatArray:
    """Metres that any point of the arm moves at most for a radian of each joint, (7,).

    A point moves by its distance from the joint's axis. On the joint's own link that is known; of
    everything beyond, the distance from the joint's origin is bounded by adding up, link by link
    from the hand, the way to the next joint and the bound there.
    """
    hulls = link_hulls(model)
    beyond, found = 0.0, np.zeros(JOINTS)
    for link in range(JOINTS, 0, -1):
        own = np.concatenate(hulls[link])
        found[link - 1] = max(np.hypot(own[:, 0], own[:, 1]).max(), beyond)
        farthest = max(np.linalg.norm(own, axis=1).max(), beyond)
        beyond = float(farthest + np.linalg.norm(model.body(f"link{link}").pos))
    return found


_LOOK = (
    """<visual><global offwidth="1600" offheight="1200"/><quality shadowsize="4096"/>
    <headlight ambient=".45 .45 .45" diffuse=".35 .35 .35" specular="0 0 0"/></visual>""",
    """<statistic extent="2.5" center=".3 0 .4"/>""",
    """<asset><texture type="skybox" builtin="flat" rgb1=".86 .90 .93" rgb2=".86 .90 .93" width="32"
    height="192"/></asset>""",
    """<worldbody><light pos="1.2 -1 2.2" dir="-.5 .5 -1" directional="true" diffuse=".5 .5 .5"
    specular=".1 .1 .1"/></worldbody>""",
)
"""A pale room with one light; the extent keeps its shadows whole."""

_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))


def _furnish(root: ElementTree.Element, visible: bool) -> None:
    """Add the floor, boxes far below it, and what makes them visible."""
    world = root.find("worldbody")
    compiler = root.find("compiler")
    assert world is not None and compiler is not None, "gym-hil 0.1.14 has both"
    compiler.set("meshdir", str(assets()))
    met = {"contype": str(SCENERY), "conaffinity": "0"}
    floor = {"name": "floor", "type": "plane", "size": "2 2 0.1", **met, "rgba": ".78 .82 .86 1"}
    ElementTree.SubElement(world, "geom", floor)
    for number in range(MOST_BOXES):
        body = ElementTree.SubElement(
            world, "body", {"name": f"box{number}", "mocap": "true", "pos": "0 0 -10"}
        )
        box = {"name": f"box{number}", "type": "box", "size": "0.05 0.05 0.05", **met}
        ElementTree.SubElement(body, "geom", {**box, "rgba": ".80 .62 .42 1"})
    if visible:
        for part in _LOOK:
            root.append(ElementTree.fromstring(part))
