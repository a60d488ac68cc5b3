"""What a user would do instead of caching: fewer sampler steps, or reuse at a fixed stride."""

from __future__ import annotations

from dataclasses import replace

from muninn.anchors import spread_steps
from muninn.errors import InputError
from muninn.forecast import Forecast
from muninn.plan import Program, Static
from muninn.planner import Planner
from muninn.sampler import Kind, Sampler, Step


def few_steps(planner: Planner, count: int) -> Planner:
    """The same model sampled with ``count`` deterministic DDIM (or Euler) steps.

    Each step goes exactly to the state at which the next one starts, from the noisiest state to
    the clean trajectory.
    """
    sampler = planner.sampler
    if sampler.stochastic:
        raise InputError("few_steps takes a deterministic sampler (DDIM with eta = 0, or Euler)")
    visited = spread_steps(len(sampler), count)
    last = sampler.steps[-1]
    states = [(sampler.steps[i].signal, sampler.steps[i].noise) for i in visited]
    states.append((last.next_signal, last.next_noise))
    table = [
        Step(
            sampler.steps[step].timestep,
            *states[place],
            *states[place + 1],
            from_state=0.0,
            from_sample=states[place + 1][0],
            from_epsilon=states[place + 1][1],
        )
        for place, step in enumerate(visited)
    ]
    fewer = Sampler(
        f"{sampler.name}-{count}",
        sampler.kind,
        table,
        flow=sampler.flow,
        clip=sampler.clip,
        keep_epsilon=sampler.keep_epsilon,
        velocity_sign=sampler.velocity_sign,
        details={"of": sampler.describe()},
    )
    return replace(planner, sampler=fewer)


def fixed_skip(planner: Planner, count: int) -> Program:
    """Evaluations at a fixed stride; in between the noise estimate is reused, as in the paper.

    With deterministic DDIM this is :func:`few_steps` up to clipping: a step with its prediction
    held, epsilon or x0, composes exactly with the next.
    """
    sampler = planner.sampler
    held: Kind = "velocity" if sampler.flow else "epsilon"
    return Program(Forecast(held, 0, look_back=False), Static(spread_steps(len(sampler), count)))
