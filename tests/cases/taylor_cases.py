"""TaylorSeer-style caching, step by step, as an independent check of its table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from muninn.model.planner import Noise, Planner


def taylor_sample(planner: Planner, anchors: Sequence[int], order: int, noise: Noise) -> Tensor:
    """Trajectories of a loop that continues the network's own output between anchors.

    Derivatives are finite differences of the last evaluations, each divided by the steps between
    them; the series is Taylor's, ``sum_k D_k n^k / k!`` after ``n`` steps, not the interpolating
    polynomial.
    """
    x, series, last = planner.start(noise, None), list[Tensor](), 0
    for step in range(len(planner.sampler)):
        if step in anchors:
            derivatives = [planner.denoiser(x, planner.timestep(step, len(x)), None).clone()]
            for old in series[:order]:
                derivatives.append((derivatives[-1] - old) / (step - last))
            series, last = derivatives, step
        prediction = series[0].clone()
        for k, derivative in enumerate(series[1:], start=1):
            prediction += derivative * ((step - last) ** k / math.factorial(k))
        x = planner.advance(x, prediction, step, noise.at(step, slice(None)), None)
    return x
