"""What the paper reuses between evaluations at a fixed stride."""

from __future__ import annotations

from muninn.model.planner import Planner
from muninn.model.sampler import Kind
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from muninn.programs.spacing import spread_steps


def fixed_skip(planner: Planner, count: int) -> Program:
    """Evaluations at a fixed stride; in between the noise estimate is reused, as in the paper.

    With deterministic DDIM this is fewer steps, up to clipping: a step with its prediction
    held, epsilon or x0, composes exactly with the next.
    """
    sampler = planner.sampler
    held: Kind = "velocity" if sampler.flow else "epsilon"
    return Program(Forecast(held, 0, look_back=False), Static(spread_steps(len(sampler), count)))
