"""Marks of a context's rows, by which calls that were used before are known again."""

from __future__ import annotations

import hashlib
import math

from muninn.context import Context, batch_size, tensors

DIGITS = 16
"""Of a mark. Marks are written one after the other, in one string."""

BY_CHANCE = 4.0
"""Times what the repeats among earlier rows suggest, so many rows may be met again by chance."""


def row_marks(context: Context) -> str:
    """A mark for every row, equal where all tensors of two rows are; empty without tensors.

    >>> import torch
    >>> marks = row_marks({"goal": torch.tensor([[0.5], [0.7], [0.5]])})
    >>> marks[:DIGITS] == marks[2 * DIGITS :], len(marks)
    (True, 48)
    """
    rows = [hashlib.sha256() for _ in range(batch_size(context) or 0)]
    for path, values in tensors(context):
        values = values.detach().cpu()
        # One number has one mark, in single and in double precision.
        exact = values.double() if values.is_floating_point() else values
        for row, content in zip(rows, exact.flatten(1).numpy(), strict=True):
            row.update(path.encode() + content.tobytes())
    return "".join(row.hexdigest()[:DIGITS] for row in rows)


def met_again(before: str, now: str) -> int:
    """How many rows were met before; 0 if chance explains it.

    Contexts of few kinds are met again by chance, and then they repeat among the earlier rows, too.
    Contexts that never repeat there are new each time: a single one that recurs is no chance.

    >>> met_again("a" * 16 + "b" * 16, "b" * 16 + "c" * 16)
    1
    >>> met_again("a" * 64, "a" * 32)
    0
    """
    earlier, given = _split(before), _split(now)
    if not earlier:
        return 0
    known = set(earlier)
    met = sum(mark in known for mark in given)
    repeats = len(earlier) - len(known)
    likely = (1.0 + math.sqrt(repeats)) ** 2 if repeats else 0.0  # a count is known to its root
    return met if met > BY_CHANCE * likely * len(given) / len(earlier) else 0


def _split(marks: str) -> list[str]:
    return [marks[at : at + DIGITS] for at in range(0, len(marks), DIGITS)]
