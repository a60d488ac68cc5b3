"""Runs tables: evaluate, add what the evaluation weighs in every later state, go on.

All states that are still to come are kept as sums under way, so an evaluation adds its weights to
all of them in one operation and the next state is simply there. The error estimates are sums of
the same kind and ride along.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from muninn.engines.run_state import SUM, RunState
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.denoiser import at_timestep, check_prediction
from muninn.programs.own_noise import OwnNoise, sum_dtype
from muninn.programs.table import Table, embedded_differences, nearest_steps


class TableRuntime(Runtime):
    """Runs one table on one planner; decides nothing, so a graph can hold a whole call."""

    program: Table

    def _set_up(self) -> None:
        planner, table, sampler = self.planner, self.program, self.planner.sampler
        count, weights = len(table.states), table.array
        if abs(table.states[0].noise - sampler.steps[0].noise) > 1e-6:
            raise InputError("the table starts at another noise level than the sampler; tune anew")
        if weights.shape[0] not in (1, planner.shape[-1]):
            raise InputError(
                f"the table has weights for {weights.shape[0]} channels, a plan has "
                f"{planner.shape[-1]}; use a table that was fitted for this planner"
            )
        self._sums = exact = sum_dtype(planner.dtype)
        self._raw = weights.shape[2] > 1 + count
        differences = np.zeros((weights.shape[0], count - 1, weights.shape[2]))
        differences[:, :, 1 : 1 + count] = embedded_differences(table.states)
        columns = np.concatenate([weights, differences], axis=1).transpose(2, 1, 0)
        shape = (*columns.shape[:2], *[1] * len(planner.shape), columns.shape[2])
        if weights.shape[0] == 1:
            shape = (*columns.shape[:2], *[1] * (len(planner.shape) + 1))
        self._columns = torch.tensor(columns, dtype=exact, device=planner.device).view(shape)
        self._steps = nearest_steps(sampler, table.states)
        self._own_noise = OwnNoise(planner, table) if sampler.stochastic else None
        self._conversions = [sampler.estimates(state) for state in table.states]
        times = [[state.timestep] for state in table.states]
        kind = torch.float32 if sampler.flow else torch.long
        self._timesteps = torch.tensor(times, dtype=kind, device=planner.device)

    def _run(self, run: RunState) -> None:
        """Carry every row to the end; nothing is read by the host."""
        planner, clip = self.planner, self.planner.sampler.clip
        x = planner.start(run.noise, run.context)
        rows, count = range(len(x)), len(self.program.states)
        # Copied, once a call: the network may write into what it is told.
        timesteps = self._timesteps.repeat(1, len(x)).unbind(0)
        sums = self._columns[0] * run.noise.initial.to(self._sums)
        if self._own_noise is not None:
            self._own_noise.add(sums, run.noise)
        for at, step in enumerate(self._steps):
            with at_timestep(self.program.states[at].timestep):
                prediction = self._denoiser(x, timesteps[at], run.context)
            run.evaluations += 1
            run.evaluated[:, step] = True
            prediction = check_prediction(prediction, x, run.dtype)
            run.dtype = prediction.dtype
            run.check_later(step, rows, prediction)
            clean, noise = self._values(x.to(self._sums), prediction.to(self._sums), at)
            if clip is not None:
                clean = clean.clamp(-clip, clip)
            sums[at:].addcmul_(clean, self._columns[1 + at, at:])
            if noise is not None:
                sums[at:].addcmul_(noise, self._columns[1 + count + at, at:])
            x = sums[at].to(planner.dtype)
            if planner.condition is not None:
                x = planner.condition(x, run.context)  # in place, too: no sum is read again
        run.after = x.clone()  # a view would keep all the sums alive
        run.check_later(len(planner.sampler), rows, x)
        sizes = torch.linalg.vector_norm(sums[count:].flatten(2), dim=2)
        for gap, size in enumerate(sizes.to(SUM).unbind(0)):
            run.unread.append((self._steps[gap], rows, size, 1.0 / math.sqrt(planner.shape[0])))
        run.pack()

    def _values(self, x: Tensor, prediction: Tensor, at: int) -> tuple[Tensor, Tensor | None]:
        """Clean sample, and the raw noise where the table uses it."""
        (sample_x, sample_p), (noise_x, noise_p) = self._conversions[at]
        noise = None
        if self._raw:
            noise = prediction if noise_x == 0.0 else (x * noise_x).add_(prediction, alpha=noise_p)
        if sample_x == 0.0:
            return prediction, noise
        return (x * sample_x).add_(prediction, alpha=sample_p), noise
