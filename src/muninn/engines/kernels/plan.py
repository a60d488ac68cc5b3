"""Which step each row evaluates next, in :mod:`muninn.engines.rounds`, as one Triton kernel.

As separate operations it is some sixty kernels of a few numbers each, which at batch 1 cost more
than all forecasts of a call.
"""

# mypy: disable-error-code="import-not-found, no-untyped-call, no-untyped-def, untyped-decorator"
# mypy: disable-error-code="unused-ignore"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _plan(
    history,
    nodes,
    count,
    used,
    due,
    charged,
    active,
    step,
    variable,
    weights,
    named_steps,
    size,
    steps,
    limits,
    dense,
    longest,
    cap,
    MEMORY: tl.constexpr,
    FIXED: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row: size of its highest divided difference, growth of the error, the next step."""
    entry = tl.program_id(0)
    row = tl.load(active + entry)
    now = tl.load(step + entry)
    known = tl.load(count + row)
    newest = nodes + row * MEMORY
    places = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, size, BLOCK):
        place = start + places
        inside = place < size
        difference = tl.zeros([BLOCK], dtype=tl.float32)
        for j in tl.static_range(MEMORY):
            at = tl.load(variable + tl.load(newest + j))
            weight = tl.where(MEMORY - 1 - j < known, 1.0, 0.0).to(tl.float64)
            for i in tl.static_range(MEMORY):
                if i != j:
                    apart = at - tl.load(variable + tl.load(newest + i))
                    both = (MEMORY - 1 - i < known) & (MEMORY - 1 - j < known)
                    weight = weight / tl.where(both, apart, 1.0)
            value = tl.load(history + (row * MEMORY + j) * size + place, mask=inside, other=0.0)
            difference += weight.to(tl.float32) * value
        squares += difference * difference
    scale = tl.sqrt(tl.sum(squares)).to(tl.float64) * tl.load(limits)

    at_step = tl.arange(0, STEPS)
    real = at_step < steps
    here = tl.load(variable + at_step, mask=real, other=0.0)
    terms = tl.load(weights + at_step, mask=real, other=0.0)
    for j in tl.static_range(MEMORY):
        node = tl.load(variable + tl.load(newest + j))
        terms *= tl.where(MEMORY - 1 - j < known - 1, tl.abs(here - node), 1.0)
    terms = tl.where(real & (at_step > now), terms, 0.0)
    last = steps - 1
    if FIXED:
        named = tl.load(named_steps + now)
    else:
        growth = tl.cumsum(terms, axis=0)
        threshold = tl.load(limits + 1)
        allowed = tl.where(scale > 0.0, threshold / tl.where(scale > 0.0, scale, 1.0), float("inf"))
        passing = tl.sum((real & (growth <= allowed)).to(tl.int64))
        named = tl.minimum(tl.maximum(passing, now + 1), now + longest)
        finite = (scale == scale) & (scale < float("inf"))
        waiting = (now + 1 < dense) | (known < MEMORY) | (finite == 0)
        named = tl.where(waiting, now + 1, named)
        named = tl.where(tl.load(used + row) >= cap - 1, last, named)
    named = tl.minimum(tl.maximum(named, now + 1), last)
    cost = scale * tl.sum(tl.where(at_step < named, terms, 0.0))
    cost = tl.where((named > now + 1) & (known > 1), cost, 0.0)
    tl.store(charged + row * steps + now, cost)
    tl.store(due + row, tl.where(now == last, steps, named))


def plan_rows(runtime: Any, rows: Any, active: Tensor, step: Tensor) -> bool:
    """:meth:`muninn.engines.rounds.RoundRuntime._plan` in one launch; reads nothing on the host."""
    plan, fixed, steps = runtime.program.plan, runtime._next is not None, len(runtime._places)
    with torch.cuda.device_of(active):
        _plan[(len(active),)](
            rows.history,
            rows.nodes,
            rows.count,
            rows.used,
            rows.due,
            rows.charged,
            active,
            step,
            runtime._places,
            runtime._weights,
            runtime._next if fixed else step,
            rows.history[0, 0].numel(),
            steps,
            runtime._limits,
            0 if fixed else plan.dense,
            0 if fixed else plan.longest,
            0 if fixed else plan.cap,
            MEMORY=rows.nodes.shape[1],
            FIXED=fixed,
            STEPS=triton.next_power_of_2(steps),
            BLOCK=BLOCK,
        )
    return True
