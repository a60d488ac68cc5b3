"""Runs a second look: the first table for all rows, the second program for those in doubt."""

from __future__ import annotations

from typing import ClassVar

import torch

from muninn.context import select
from muninn.engines.run_state import RunState
from muninn.engines.runtime import Runtime
from muninn.engines.tables import TableRuntime
from muninn.errors import InputError
from muninn.programs.second_look import SecondLook, judged_steps
from muninn.programs.table import Table


class SecondLookRuntime(Runtime):
    """Runs a table, then a table or full compute; the host decides in between who goes on."""

    program: SecondLook
    _table: ClassVar[type[TableRuntime]] = TableRuntime
    _loop: ClassVar[type[Runtime]] = Runtime

    def _set_up(self) -> None:
        first, second = self.program.first, self.program.second
        self._judged = judged_steps(self.planner.sampler, first)
        if len(self._judged) != len(self.program.weights):
            raise InputError(
                f"the second look weighs {len(self.program.weights)} gaps of its first table, "
                f"which has {len(self._judged)} with this sampler; tune anew"
            )
        engines = (self._table, self._table if isinstance(second, Table) else self._loop)
        self._first, self._second = (
            engine(self.planner, program, on_failure=self.on_failure, strict=self._strict)
            for engine, program in zip(engines, (first, second), strict=True)
        )

    def forget(self) -> None:
        self._first.forget()
        self._second.forget()

    def _attempt(self, run: RunState) -> None:
        self._first._attempt(run)
        doubtful = self.program.doubtful(run.charged[:, self._judged])
        rows = [row for row in doubtful.nonzero()[0].tolist() if row not in run.failed]
        if not rows:
            return
        served = torch.tensor(self._served(rows, len(run.after)), device=run.after.device)
        again = RunState(
            run.noise.select(served), select(run.context, served), len(self.planner.sampler)
        )
        self._second._attempt(again)
        index = served[: len(rows)]
        run.after[index] = again.after[: len(rows)]
        for place, row in enumerate(rows):
            run.evaluations[row] += again.evaluations[place]
            run.evaluated[row] |= again.evaluated[place]
            run.charged[row] = again.charged[place]
            if place in again.failed:
                run.failed[row] = again.failed[place]

    def _served(self, rows: list[int], count: int) -> list[int]:
        """The rows that are run again, in a number that this engine likes; the first are asked."""
        return rows
