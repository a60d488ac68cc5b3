"""The state of one call: where each row stands, and what the host has not read yet."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from muninn.context import Context
from muninn.model.planner import Noise

RowIndex = Tensor | slice
"""An index for rows; a slice where it is all of them, which copies nothing."""

Sums = tuple[int, Sequence[int], Tensor]
"""Step, rows and the sum of each row's prediction."""

Scales = tuple[int, Sequence[int], Tensor, float]
"""Step, rows, size of each row's divided difference, and the error of the gap per unit of it."""

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
    sums: list[Sums] = field(default_factory=list)  # of predictions, not yet read by the host
    scales: list[Scales] = field(default_factory=list)  # of differences, not yet read
    packed: Tensor | None = None  # all of both in one tensor, where every row shares its steps
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

    # -- rows --------------------------------------------------------------------------------

    def numbers(self, members: RowIndex) -> Sequence[int]:
        """The row numbers behind an index."""
        return range(len(self.after)) if isinstance(members, slice) else members.tolist()

    def groups(self, rows: list[int]) -> list[tuple[tuple[int, ...], RowIndex]]:
        """Rows with equal evaluation history share their weights, so they move together."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row in rows:
            groups[self.nodes[row]].append(row)
        if len(groups) == 1 and len(rows) == len(self.after):
            return [(self.nodes[rows[0]], slice(None))]
        device = self.after.device
        return [(nodes, torch.tensor(own, device=device)) for nodes, own in groups.items()]

    # -- what stays on the device until it is read ---------------------------------------------

    def check_later(self, step: int, rows: Sequence[int], values: Tensor) -> None:
        """Have :meth:`read` check that the values of every row, (rows, *shape), are finite.

        Their sum is kept: it is finite if and only if its terms are.
        """
        self.sums.append((step, rows, values.flatten(1).sum(1, dtype=_SUM)))

    def pack(self) -> None:
        """Put all that is to be read into one tensor; every row must share its steps."""
        self.packed = torch.stack(self._unread())

    def use_waiting_time(self) -> None:
        """Do, once, what the host can do before it waits for the device."""
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            work()

    def read(self) -> None:
        """Bring to the host what the loop left on the device: failures and error estimates."""
        self.use_waiting_time()
        if self.packed is not None:  # one transfer instead of one per evaluation
            values = iter(self.packed.tolist())
        else:
            values = (tensor.tolist() for tensor in self._unread())
        for step, rows, _ in self.sums:
            for row, total in zip(rows, next(values), strict=True):
                if not math.isfinite(total):
                    self.failed.setdefault(row, self._failure(step))
        for step, rows, _, growth in self.scales:
            self.charged[list(rows), step] = np.array(next(values)) * growth
        self.sums.clear()
        self.scales.clear()

    def _unread(self) -> list[Tensor]:
        return [*(entry[2] for entry in self.sums), *(entry[2].to(_SUM) for entry in self.scales)]

    def _failure(self, step: int) -> str:
        if step == self.evaluated.shape[1]:
            return "the trajectory is not finite"
        return f"the denoiser returned NaN or Inf at step {step}"
