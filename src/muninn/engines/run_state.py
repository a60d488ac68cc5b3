"""The state of one call: where each row stands, and what the host has not read yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from muninn.context import Context
from muninn.model.planner import Noise

RowIndex = Tensor | slice
"""An index for rows; a slice where it is all of them, which copies nothing."""

Group = tuple[tuple[int, ...], RowIndex]
"""Evaluated steps, and the rows that share them: these share their weights, and move together."""

Unread = tuple[int, Sequence[int], Tensor, float | None]
"""Step, rows, and for each row either the sum of its prediction and None, or the size of its
divided difference and the error of the gap per unit of it."""

_SUM = torch.float64  # finite terms of any dtype cannot overflow it


@dataclass
class RunState:
    """Inputs and mutable state of one call of a runtime; lives and dies inside it."""

    noise: Noise
    context: Context
    after: Tensor  # state right after each row's last evaluation; at first x_T
    history: Tensor  # (batch, memory, *shape) fp32, newest last
    nodes: list[tuple[int, ...]]
    due: list[int]
    evaluations: npt.NDArray[np.int64]
    evaluated: npt.NDArray[np.bool_]
    charged: npt.NDArray[np.float64]  # estimated error of the gap after each evaluated step
    failed: dict[int, str] = field(default_factory=dict)
    unread: list[Unread] = field(default_factory=list)  # still on the device
    packed: Tensor | None = None  # all of it in one tensor, where every row shares its steps
    dtype: torch.dtype | None = None
    meanwhile: Callable[[], None] | None = None  # what the host does while the device is busy

    @classmethod
    def blank(cls, noise: Noise, context: Context, steps: int) -> RunState:
        """Before the first of ``steps`` steps, where every row is due."""
        rows = len(noise.initial)
        return cls(
            noise,
            context,
            after=noise.initial,
            history=torch.empty(0),
            nodes=[()] * rows,
            due=[0] * rows,
            evaluations=np.zeros(rows, np.int64),
            evaluated=np.zeros((rows, steps), np.bool_),
            charged=np.zeros((rows, steps), np.float64),
        )

    def numbers(self, members: RowIndex) -> Sequence[int]:
        """The row numbers behind an index."""
        return range(len(self.after)) if isinstance(members, slice) else members.tolist()

    def groups(self, rows: list[int]) -> list[Group]:
        """Rows by their evaluation history."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row in rows:
            groups[self.nodes[row]].append(row)
        if len(groups) == 1 and len(rows) == len(self.after):
            return [(self.nodes[rows[0]], slice(None))]
        device = self.after.device
        return [(nodes, torch.tensor(own, device=device)) for nodes, own in groups.items()]

    def check_later(self, step: int, rows: Sequence[int], values: Tensor) -> None:
        """Have :meth:`read` check that values (rows, *shape) are finite: their sums then are."""
        self.unread.append((step, rows, values.flatten(1).sum(1, dtype=_SUM), None))

    def pack(self) -> None:
        """Put all that is to be read into one tensor; every row must share its steps."""
        self.packed = torch.stack([values.to(_SUM) for _, _, values, _ in self.unread])

    def use_waiting_time(self) -> None:
        """Do, once, what the host can do before it waits for the device."""
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            work()

    def read(self) -> None:
        """Bring to the host what the loop left on the device: failures and error estimates."""
        self.use_waiting_time()
        if self.packed is not None:  # one transfer instead of one per evaluation
            read = self.packed.tolist()
        else:
            read = [values.tolist() for _, _, values, _ in self.unread]
        for (step, rows, _, growth), found in zip(self.unread, read, strict=True):
            if growth is not None:
                self.charged[list(rows), step] = np.array(found) * growth
                continue
            for row in (row for row, total in zip(rows, found, strict=True) if not isfinite(total)):
                reason = f"the denoiser returned NaN or Inf at step {step}"
                if step == self.evaluated.shape[1]:
                    reason = "the trajectory is not finite"
                self.failed.setdefault(row, reason)
        self.unread.clear()
