"""The state of one call: where each row stands, and what the host has not read yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

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


def sent(values: Tensor) -> Callable[[], npt.NDArray[Any]]:
    """Send values to the host; the function that is returned waits until they have arrived.

    Into pinned memory, and with an event: a copy into pageable memory wakes the host up late.
    """
    if not values.is_cuda:
        here: npt.NDArray[Any] = values.numpy().copy()  # now: the caller may write into them
        return lambda: here
    on_host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
    on_host.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(values.device))

    def read() -> npt.NDArray[Any]:
        arrived.synchronize()
        found: npt.NDArray[Any] = on_host.numpy()
        return found

    return read


SUM = torch.float64
"""What is read is summed up in: finite terms of any other dtype cannot overflow it."""


class RunState:
    """Inputs and mutable state of one call of a runtime; lives and dies inside it.

    At first every row is due at the first of ``steps`` steps.
    """

    def __init__(self, noise: Noise, context: Context, steps: int) -> None:
        rows = len(noise.initial)
        self.noise, self.context = noise, context
        self.after = noise.initial  # state right after each row's last evaluation; at first x_T
        self.history = torch.empty(0)  # (batch, memory, *shape) fp32, newest last
        self.nodes: list[tuple[int, ...]] = [()] * rows
        self.due = [0] * rows
        self.evaluations = np.zeros(rows, np.int64)
        self.evaluated = np.zeros((rows, steps), np.bool_)
        self.charged = np.zeros((rows, steps))  # estimated error of the gap after each evaluation
        self.failed: dict[int, str] = {}
        self.unread: list[Unread] = []  # still on the device
        self.packed: Tensor | None = None  # all of it, where every row shares its steps
        self.judged: tuple[npt.NDArray[Any], ...] = ()  # of it: places, steps and growth of sizes
        self.dtype: torch.dtype | None = None
        self.meanwhile: Callable[[], None] | None = None  # for the host while the device is busy

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
        self.unread.append((step, rows, values.flatten(1).sum(1, dtype=SUM), None))

    def pack(self) -> None:
        """Put all that is to be read into one tensor; every row must share its steps."""
        self.packed = torch.stack([values.to(SUM) for _, _, values, _ in self.unread])
        judged = [(at, *each[::3]) for at, each in enumerate(self.unread) if each[3] is not None]
        places, steps, growths = np.array(judged, np.float64).reshape(-1, 3).T
        self.judged = places.astype(np.int64), steps.astype(np.int64), growths[:, None]

    def use_waiting_time(self) -> None:
        """Do, once, what the host can do before it waits for the device."""
        work, self.meanwhile = self.meanwhile, None
        if work is not None:
            work()

    def read(self) -> None:
        """Bring to the host what the loop left on the device: failures and error estimates."""
        if self.packed is None:
            self.use_waiting_time()
            for step, rows, values, growth in self.unread:
                if growth is None:
                    self._require_finite(step, rows, values.tolist())
                else:
                    self.charged[list(rows), step] += values.cpu().numpy() * growth
        else:
            arrived = sent(self.packed)  # one transfer for all
            self.use_waiting_time()
            found = arrived()
            places, steps, growths = self.judged
            np.add.at(self.charged.T, steps, found[places] * growths)
            if not np.isfinite(found).all():
                for (step, rows, _, growth), sums in zip(self.unread, found, strict=True):
                    if growth is None:
                        self._require_finite(step, rows, sums.tolist())
        self.unread = []

    def _require_finite(self, step: int, rows: Sequence[int], sums: list[float]) -> None:
        for row in (row for row, total in zip(rows, sums, strict=True) if not isfinite(total)):
            reason = f"the denoiser returned NaN or Inf at step {step}"
            if step == self.evaluated.shape[1]:
                reason = "the trajectory is not finite"
            self.failed.setdefault(row, reason)
