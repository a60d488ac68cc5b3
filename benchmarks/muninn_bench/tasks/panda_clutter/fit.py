"""Fit the spheres of the arm: ``python -m muninn_bench.tasks.panda_clutter.fit`` prints the table.

The spheres of a link cover its convex parts and stick out of them little: how far they stick out is
lowered by gradients, together with the distance of points left out, from several beginnings. Then
each sphere is made the smallest around the points that are its own. Two minutes.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import ConvexHull
from torch import Tensor

from muninn.model.schedule import FloatArray
from muninn_bench.tasks.panda_clutter.robot import link_hulls, load_model

COUNTS = (5, 6, 6, 6, 6, 8, 6, 15)
"""Spheres of the base and of each link; the last carries the gripper."""

COVER = 0.001
"""Added to every radius, metres: parts reach a little beyond the points that stand for them."""

_POINTS = 0.006  # spacing of the points to cover, metres
_BEGINNINGS, _STEPS = 8, 300
_SOME = 3000  # points of a descent; the last step takes all
_LEFT_OUT = 100.0  # weight of points left out


def surface(corners: FloatArray, spacing: float = _POINTS) -> FloatArray:
    """Points on the surface of a convex part, its corners among them, (points, 3)."""
    found = []
    for triangle in corners[ConvexHull(corners).simplices]:
        sides = np.linalg.norm(triangle - np.roll(triangle, 1, axis=0), axis=1)
        parts = max(1, int(np.ceil(sides.max() / spacing)))
        first, second = np.indices((parts + 1, parts + 1)).reshape(2, -1) / parts
        weights = np.stack([1.0 - first - second, first, second], axis=1)
        found.append(weights[weights[:, 0] >= -1e-9] @ triangle)
    return np.concatenate(found)


def fit(parts: list[FloatArray], count: int, generator: torch.Generator) -> FloatArray:
    """Spheres (count, 4), centre and radius, that cover convex parts and stick out little."""
    points = np.concatenate([surface(part) for part in parts])
    _, even = np.unique((points / _POINTS).round(), axis=0, return_index=True)
    planes = [_planes(part) for part in parts]
    some = torch.from_numpy(points[even[:: max(1, len(even) // _SOME)]])
    best, least = np.zeros((0, 4)), np.inf
    for _ in range(_BEGINNINGS):
        spheres = _descend(some, planes, count, generator)
        apart = np.linalg.norm(points[:, None] - spheres[:, :3], axis=2) - spheres[:, 3]
        owner = apart.argmin(axis=1)
        balls = [smallest_ball(points[owner == at]) for at in np.unique(owner)]
        spheres = np.array([[*centre, radius + COVER] for centre, radius in balls])
        excess = float(_excess(torch.from_numpy(spheres), planes).square().mean())
        if excess < least:
            best, least = spheres, excess
    return best


def _descend(
    points: Tensor, planes: list[Tensor], count: int, generator: torch.Generator
) -> FloatArray:
    """Spheres after gradient steps; they begin small, around the means of drawn clusters."""
    centres = points[torch.randperm(len(points), generator=generator)[:count]]
    for _ in range(10):
        owner = torch.cdist(points, centres).argmin(dim=1)
        groups = [points[owner == at] for at in range(count)]
        centres = torch.stack([group.mean(dim=0) for group in groups if len(group)])
    radii = torch.full((len(centres), 1), 0.03, dtype=torch.float64)
    spheres = torch.cat([centres, radii], dim=1).requires_grad_()
    descent = torch.optim.Adam([spheres], lr=3e-3)
    for step in range(_STEPS):
        descent.param_groups[0]["lr"] = 4e-3 * (1.0 - step / _STEPS)
        apart = torch.cdist(points, spheres[:, :3]) - spheres[:, 3]
        missed = apart.amin(dim=1).clamp(min=0.0)
        excess = _excess(spheres, planes).clamp(min=0.0)
        loss = excess.square().mean() + _LEFT_OUT * missed.square().mean()
        descent.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        descent.step()
    return np.asarray(spheres.detach().numpy())


def _planes(corners: FloatArray) -> Tensor:
    """Normals and offsets of a part's faces, (faces, 4), nearly equal ones left out."""
    faces = ConvexHull(np.unique((corners / 0.002).round(), axis=0) * 0.002).equations
    _, kept = np.unique(faces.round(2), axis=0, return_index=True)
    return torch.from_numpy(faces[kept])


def _excess(spheres: Tensor, planes: list[Tensor]) -> Tensor:
    """How far each sphere sticks out of the part it is deepest in, at most, (spheres,)."""
    centres = spheres[:, :3]
    depths = [-(centres @ faces[:, :3].T + faces[:, 3]).amax(dim=1) for faces in planes]
    return spheres[:, 3] - torch.stack(depths).amax(dim=0)


def smallest_ball(points: FloatArray) -> tuple[FloatArray, float]:
    """Centre and radius of nearly the smallest ball around points (Badoiu and Clarkson 2003)."""
    centre = points.mean(axis=0)
    for step in range(1, 300):
        farthest = points[np.argmax(((points - centre) ** 2).sum(axis=1))]
        centre = centre + (farthest - centre) / (step + 1)
    return centre, float(np.linalg.norm(points - centre, axis=1).max())


def main() -> None:
    """Print the table, row by row: link, centre, radius, in metres."""
    generator = torch.Generator().manual_seed(0)
    for link, (parts, count) in enumerate(zip(link_hulls(load_model()), COUNTS, strict=True)):
        for x, y, z, radius in fit(parts, count, generator):
            print(f"    ({link}, {x:.4f}, {y:.4f}, {z:.4f}, {np.ceil(1e4 * radius) / 1e4:.4f}),")


if __name__ == "__main__":
    main()
