""":func:`muninn.engines.gap.vector_gap` as one Triton kernel."""

# mypy: disable-error-code="import-not-found, no-untyped-call, no-untyped-def, untyped-decorator"
# mypy: disable-error-code="unused-ignore"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _gap(
    x,
    values,
    out,
    nodes,
    known,
    first,
    until,
    variable,
    coefficients,
    noise,
    draws,
    size,
    rows,
    clip,
    WIDTH: tl.constexpr,
    CLIPPED: tl.constexpr,
    NOISY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row and one block of its numbers through all steps of the row's gap."""
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    state = tl.load(x + row * size + place, mask=inside, other=0.0)
    begin = tl.load(first + row)
    end = tl.load(until + row)
    for step in range(begin, end):
        here = tl.load(variable + step)
        forecast = tl.zeros([BLOCK], dtype=tl.float32)
        for j in tl.static_range(WIDTH):
            weight = tl.load(known + row * WIDTH + j).to(tl.float64)
            at = tl.load(variable + tl.load(nodes + row * WIDTH + j))
            for i in tl.static_range(WIDTH):
                if i != j:
                    counts = tl.load(known + row * WIDTH + i)
                    other = tl.load(variable + tl.load(nodes + row * WIDTH + i))
                    apart = at - other
                    ratio = (here - other) / tl.where(apart == 0.0, 1.0, apart)
                    weight *= tl.where(counts != 0, ratio, 1.0)
            value = tl.load(values + (row * WIDTH + j) * size + place, mask=inside, other=0.0)
            share = weight.to(tl.float32)
            forecast += tl.where(share != 0.0, share * value, 0.0)
        base = coefficients + step * 6
        after = state * tl.load(base + 3) + forecast * tl.load(base + 4)
        if CLIPPED:
            sample = state * tl.load(base) + forecast * tl.load(base + 1)
            sample = tl.minimum(tl.maximum(sample, -clip), clip)
            after += sample * tl.load(base + 2)
        if NOISY:
            slot = tl.load(draws + step)
            at_draw = (tl.maximum(slot, 0) * rows + row) * size
            drawn = tl.load(noise + at_draw + place, mask=inside, other=0.0)
            after += drawn * tl.load(base + 5)
        state = after
    tl.store(out + row * size + place, state, mask=inside)


def run_gaps(table: Any, past: Any, until: Tensor, noise: Tensor | None) -> Tensor:
    """:func:`muninn.engines.gap.vector_gap` in one launch; reads nothing on the host."""
    size = past.after[0].numel()
    state = past.after.float().contiguous()
    out = torch.empty_like(state)
    with torch.cuda.device_of(state):
        _gap[(len(state), triton.cdiv(size, BLOCK))](
            state,
            past.values.contiguous(),
            out,
            past.nodes.contiguous(),
            past.known.to(torch.int32),
            past.first,
            until,
            table.variable,
            table.coefficients,
            state if noise is None else noise.float().contiguous(),
            table.draws,
            size,
            len(state),
            0.0 if table.clip is None else table.clip,
            WIDTH=past.nodes.shape[1],
            CLIPPED=table.clip is not None,
            NOISY=noise is not None,
            BLOCK=BLOCK,
        )
    return out.to(past.after.dtype)
