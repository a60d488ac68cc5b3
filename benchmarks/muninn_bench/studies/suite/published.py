"""What the paper's first table says of the pairs that are built here (its table of offline RL)."""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A row of the paper; latencies are of an A10, in milliseconds."""

    score_full: float
    score: float
    latency_full: float
    latency: float
    steps: int
    evaluations: float
    deviation: float
    violations: float


PUBLISHED: dict[tuple[str, str], Published] = {
    ("halfcheetah", "diffuser"): Published(59.3, 58.8, 580, 145, 100, 17.0, 0.056, 0.045),
    ("halfcheetah", "decision-diffuser"): Published(62.9, 61.9, 116, 40, 20, 5.4, 0.042, 0.038),
    ("halfcheetah", "diffusion-ql"): Published(63.7, 63.6, 20, 10, 10, 4.4, 0.030, 0.028),
    ("halfcheetah", "adaptdiffuser"): Published(59.6, 59.5, 353, 101, 60, 12.4, 0.050, 0.041),
    ("hopper", "diffuser"): Published(65.1, 64.7, 523, 138, 100, 18.0, 0.058, 0.046),
    ("hopper", "decision-diffuser"): Published(70.6, 69.8, 105, 39, 20, 6.0, 0.045, 0.040),
    ("hopper", "diffusion-ql"): Published(75.7, 75.6, 20, 11, 10, 4.7, 0.032, 0.030),
    ("hopper", "adaptdiffuser"): Published(63.8, 63.6, 310, 97, 60, 14.2, 0.052, 0.043),
    ("walker2d", "diffuser"): Published(77.8, 77.2, 783, 224, 100, 20.6, 0.062, 0.048),
    ("walker2d", "decision-diffuser"): Published(84.0, 83.7, 157, 63, 20, 6.7, 0.048, 0.042),
    ("walker2d", "diffusion-ql"): Published(80.8, 80.7, 25, 14, 25, 12.7, 0.034, 0.032),
    ("walker2d", "adaptdiffuser"): Published(83.3, 83.0, 403, 119, 60, 12.9, 0.057, 0.045),
    ("kitchen", "diffuser"): Published(53.4, 53.0, 800, 235, 100, 21.6, 0.058, 0.045),
    ("kitchen", "decision-diffuser"): Published(55.0, 54.9, 160, 62, 20, 6.3, 0.045, 0.040),
    ("kitchen", "adaptdiffuser"): Published(58.1, 57.7, 450, 167, 60, 18.0, 0.050, 0.042),
}
"""By task and planner; of the paper's kitchen it is not said which demonstrations it learned."""


def published(task: str, variant: str) -> Published | None:
    """The paper's row of a pair; a planner of complete demonstrations alone has the same one."""
    return PUBLISHED.get((task, variant.removesuffix("-complete")))
