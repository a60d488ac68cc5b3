"""Pictures of the arm along plans, rendered by MuJoCo, and a GIF of plans side by side.

Without a screen, start Python with ``MUJOCO_GL=egl`` (a GPU or Mesa) or ``MUJOCO_GL=osmesa``.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from muninn.errors import InputError
from muninn.model.schedule import FloatArray
from muninn_bench.tasks.panda_clutter.problem import Problem
from muninn_bench.tasks.panda_clutter.robot import HAND, load_model
from muninn_bench.tasks.paths import resample

WIDTH, HEIGHT = 640, 560
"""Of a panel, pixels."""

COLOURS = ((0.16, 0.44, 0.66), (0.84, 0.37, 0.0), (0.2, 0.55, 0.3), (0.55, 0.3, 0.6))
"""Of the traces of plans, in their order."""

_GHOSTS, _SHOWN = 6, 0.28  # arms between start and goal, and how opaque they are
_FRAMES_SECOND, _PAUSE = 20, 12  # of a GIF; and frames it rests at the goal
_CAMERA = {"lookat": (0.25, 0.0, 0.45), "distance": 2.2, "azimuth": 145.0, "elevation": -22.0}

Pixels = NDArray[np.uint8]


def draw_plans(problem: Problem, plans: Mapping[str, FloatArray], path: Path) -> None:
    """Write a picture with a panel for each named plan (waypoints, 7): ghosts, and the hand's way.

    Raises:
        InputError: OpenGL is not available, or gym-hil is not installed.
    """
    studio = _studio()
    studio.furnish(problem)
    panels = [
        _labelled(studio.panel(plan, resample(plan, 1e9, _GHOSTS), colour), name, colour)
        for (name, plan), colour in zip(plans.items(), COLOURS, strict=False)
    ]
    Image.fromarray(np.concatenate(panels, axis=1)).save(path)


def animate(problem: Problem, plans: Mapping[str, FloatArray], path: Path) -> None:
    """Write a GIF of the arm along each named plan (waypoints, 7), side by side.

    Raises:
        InputError: OpenGL is not available, or gym-hil is not installed.
    """
    studio = _studio()
    studio.furnish(problem)
    length = max(map(len, plans.values()))
    frames = []
    for number in range(length):
        panels = [
            _labelled(studio.panel(plan, plan[[min(number, len(plan) - 1)]], colour), name, colour)
            for (name, plan), colour in zip(plans.items(), COLOURS, strict=False)
        ]
        whole = Image.fromarray(np.concatenate(panels, axis=1))
        frames.append(whole.resize((whole.width * 3 // 5, whole.height * 3 // 5)))
    palette = frames[-1].quantize(128)
    frames = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    frames += [frames[-1]] * _PAUSE
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=1000 // _FRAMES_SECOND, loop=0
    )


class _Studio:
    """A visible model and what renders it."""

    def __init__(self) -> None:
        import mujoco

        self._mujoco, self._model = mujoco, load_model(visible=True)
        self._data = mujoco.MjData(self._model)
        try:
            self._renderer = mujoco.Renderer(self._model, HEIGHT, WIDTH, max_geom=4000)
        except Exception as error:
            raise InputError(
                f"MuJoCo cannot render here ({error}); without a screen, start again with the "
                "environment variable MUJOCO_GL=egl, or MUJOCO_GL=osmesa"
            ) from error
        atexit.register(self._renderer.close)  # before the interpreter takes OpenGL down
        self._camera = mujoco.MjvCamera()
        for name, value in _CAMERA.items():
            setattr(self._camera, name, value)
        self._option = mujoco.MjvOption()

    def furnish(self, problem: Problem) -> None:
        """Put the boxes in place."""
        self._data.mocap_pos[:] = (0.0, 0.0, -10.0)
        self._data.mocap_pos[: len(problem.boxes)] = problem.boxes[:, :3]
        for number, box in enumerate(problem.boxes):
            self._model.geom(f"box{number}").size[:] = box[3:]

    def panel(self, plan: FloatArray, arms: FloatArray, colour: tuple[float, ...]) -> Pixels:
        """The scene with the hand's way along a plan and the arm in some poses, the last solid."""
        trace = [self._hand(joints) for joints in plan]
        self._hand(arms[-1])
        self._renderer.update_scene(self._data, self._camera, self._option)
        scene = self._renderer.scene
        # Without a GPU shadows take most of the time, which a GIF would pay at every frame.
        scene.flags[self._mujoco.mjtRndFlag.mjRND_SHADOW] = len(arms) > 1
        for first, second in pairwise(trace):
            self._between(scene, first, second, colour)
        for joints in arms[:-1]:
            self._hand(joints)
            before = scene.ngeom
            self._mujoco.mjv_addGeoms(
                self._model, self._data, self._option, self._mujoco.MjvPerturb(),
                self._mujoco.mjtCatBit.mjCAT_DYNAMIC, scene,
            )  # fmt: skip
            for number in range(before, scene.ngeom):
                geom = scene.geoms[number]
                boxed = self._model.geom(geom.objid).name.startswith("box")
                geom.rgba[3] = 0.0 if boxed else _SHOWN
        pixels: Pixels = self._renderer.render().copy()
        return pixels

    def _hand(self, joints: FloatArray) -> FloatArray:
        """Move the arm; where its hand is then, metres."""
        self._data.qpos[:] = joints
        self._mujoco.mj_forward(self._model, self._data)
        link = self._data.body("link7")
        place: FloatArray = link.xpos + link.xmat.reshape(3, 3) @ HAND
        return place

    def _between(
        self, scene: Any, first: FloatArray, second: FloatArray, colour: tuple[float, ...]
    ) -> None:
        """A piece of the hand's way."""
        geom = scene.geoms[scene.ngeom]
        capsule = self._mujoco.mjtGeom.mjGEOM_CAPSULE
        rgba = np.array([*colour, 1.0], dtype=np.float32)
        self._mujoco.mjv_initGeom(geom, capsule, np.zeros(3), np.zeros(3), np.eye(3).ravel(), rgba)
        self._mujoco.mjv_connector(geom, capsule, 0.006, first, second)
        scene.ngeom += 1


@cache
def _studio() -> _Studio:
    return _Studio()


def _labelled(pixels: Pixels, name: str, colour: tuple[float, ...]) -> Pixels:
    """The panel with a plan's name."""
    image = Image.fromarray(pixels)
    fill = tuple(round(255 * part) for part in colour)
    ImageDraw.Draw(image).text((18, 12), name, fill=fill, font=ImageFont.load_default(30))
    return np.asarray(image)
