"""Marks of a context's rows, by which calls that were used before are known again."""

from __future__ import annotations

import hashlib
import math
from collections import Counter

import torch
from torch import Tensor

from muninn.context import Context, batch_size, tensors

DIGITS = 16
"""Of a mark. Marks are written one after the other, in one string."""

BLOCK = 64
"""Rows that are copied at a time: contexts may be images."""

OFTEN = 8
"""Rows that occur more often than this say nothing about where they were seen first."""

CHANCE = 1e-6
"""Probability below which it is no chance that rows are met again."""

LOOKED_AT = 16
"""Numbers of a row, spread over it, that are looked at to see whether rows are ever alike."""


def row_marks(context: Context) -> str:
    """A mark for every row, equal where all tensors of two rows are; empty without tensors.

    >>> marks = row_marks({"goal": torch.tensor([[0.5], [0.7], [0.5]])})
    >>> marks[:DIGITS] == marks[2 * DIGITS :], len(marks)
    (True, 48)
    """
    rows = [hashlib.sha256() for _ in range(batch_size(context) or 0)]
    for path, values in sorted(tensors(context), key=lambda part: part[0]):
        for first in range(0, len(rows), BLOCK):
            block = _exact(values.detach()[first : first + BLOCK].cpu())
            for row, content in zip(rows[first : first + BLOCK], block, strict=True):
                row.update(path.encode() + content.numpy().tobytes())
    return "".join(row.hexdigest()[:DIGITS] for row in rows)


def _exact(values: Tensor) -> Tensor:
    """A number has one mark, whatever its precision and, if it is zero, its sign."""
    return values.double() + 0.0 if values.is_floating_point() else values.long()


def met_again(before: str, context: Context) -> int:
    """How many rows of a context have earlier marks; 0 if chance explains it.

    Where numbers of a row are new in most rows, a single one that recurs is no chance, unless it
    does so several times now: then it is a pose that is common. Contexts of few kinds do recur.
    Earlier rows that were seen once are then met again about twice as often as others were seen
    twice (Good and Turing); rows that were seen more often, such as one pose in which a robot
    always starts, say nothing. And rows that occur a few times, earlier and now taken together, are
    by chance as often on one side only as any few rows are.

    >>> rows = torch.linspace(0.0, 1.0, 400)[:, None] ** 2
    >>> met_again(row_marks(rows[:300]), rows[299:]), met_again(row_marks(rows[:300]), rows[300:])
    (1, 0)
    """
    seen = Counter(_split(before))
    if not seen:
        return 0
    now = Counter(_split(row_marks(context)))
    again = [count for mark, count in now.items() if seen[mark] == 1]
    met, ratio = sum(again), now.total() / seen.total()
    twice = sum(count == 2 for count in seen.values())
    if 1 in again and twice == 0 and _new_each_time(context):
        return met
    at_most = twice + 3.0 * (1.0 + math.sqrt(twice))  # so few are known to about their root
    likely = 2.0 * at_most * ratio
    if met > likely + 4.0 * math.sqrt(likely):
        return met
    if _chance(seen, now) < CHANCE:
        return sum(count for mark, count in now.items() if mark in seen)
    return 0


def new_at_the_end(before: str, context: Context) -> int:
    """How many of a context's last rows have no earlier mark.

    >>> rows = torch.arange(6.0)[:, None]
    >>> new_at_the_end(row_marks(rows[:4]), rows), new_at_the_end(row_marks(rows), rows)
    (2, 0)
    """
    seen, marks = {*_split(before)}, _split(row_marks(context))
    known = [place for place, mark in enumerate(marks, 1) if mark in seen]
    return len(marks) - max(known, default=0)


def _chance(seen: Counter[str], now: Counter[str]) -> float:
    """At most the probability that so many kinds of row occur on both sides, if which rows came
    earlier is chance. Hoeffding's bound: whether one kind does hardly depends on another."""
    earlier, later, both = seen.total(), now.total(), seen + now
    rows = earlier + later
    likely = {
        count: 1.0 - (math.comb(earlier, count) + math.comb(later, count)) / math.comb(rows, count)
        for count in range(2, min(OFTEN, rows) + 1)
    }
    few = [mark for mark, count in both.items() if count in likely]
    if not few:
        return 1.0
    expected = sum(likely[both[mark]] for mark in few) / len(few)
    found = sum(mark in seen and mark in now for mark in few) / len(few)
    if found <= expected:
        return 1.0
    apart = found * math.log(found / expected)
    if found < 1.0:
        apart += (1.0 - found) * math.log((1.0 - found) / (1.0 - expected))
    return math.exp(-len(few) * apart)


def _new_each_time(context: Context) -> bool:
    """Whether some number with a fraction differs in most rows."""
    for _, values in tensors(context):
        if values.is_floating_point() and len(values) > 1:
            numbers = values.detach().reshape(len(values), -1)
            step = max(1, numbers.shape[1] // LOOKED_AT)
            for column in numbers[:1000, ::step].cpu().double().T:
                kinds = torch.unique(column)
                if 2 * len(kinds) > len(column) and bool((kinds != kinds.round()).any()):
                    return True
    return False


def count_marks(marks: str) -> int:
    """How many rows were marked."""
    return len(marks) // DIGITS


def _split(marks: str) -> list[str]:
    return [marks[at : at + DIGITS] for at in range(0, len(marks), DIGITS)]
