"""A planner with fewer steps as a sampler of its own, written out: what a table must equal."""

from __future__ import annotations

from dataclasses import replace

from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler, Step
from muninn.programs.spacing import sampler_states, spread_steps


def few_steps(planner: Planner, count: int) -> Planner:
    """The same model sampled with ``count`` deterministic DDIM (or Euler) steps, evenly spread.

    Each step goes exactly to the state at which the next one starts, the last to where the
    planner's own sampler ends.

    Raises:
        InputError: the planner's sampler is stochastic: its noise would have to be added up.
    """
    sampler = planner.sampler
    if sampler.stochastic:
        raise InputError(
            "fewer steps are taken of a deterministic sampler (DDIM with eta = 0, or Euler); for "
            f"{sampler.name!r} build the planner with the same model and a deterministic sampler"
        )
    states, last = sampler_states(sampler), sampler.steps[-1]
    states = [states[step] for step in spread_steps(len(states), count)]
    ends = [(state.signal, state.noise) for state in states[1:]]
    ends.append((last.next_signal, last.next_noise))
    table = [
        Step(*state, *end, from_state=0.0, from_sample=end[0], from_epsilon=end[1])
        for state, end in zip(states, ends, strict=True)
    ]
    fewer = Sampler(
        f"{sampler.name}-{len(table)}",
        sampler.kind,
        table,
        flow=sampler.flow,
        clip=sampler.clip,
        keep_epsilon=sampler.keep_epsilon,
        velocity_sign=sampler.velocity_sign,
        details={"of": sampler.describe()},
    )
    return replace(planner, sampler=fewer)
