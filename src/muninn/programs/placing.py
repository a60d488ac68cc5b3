"""Where to evaluate when weights are fitted: anchors whose states follow best from those before.

Full compute is run on a few tuning calls and everything it computed is kept. For any anchors the
least-squares error of each state, given the evaluations before it, is then a projection in a
space with one axis per step, so thousands of choices are priced without a further evaluation. The
price leaves out that a program evaluates at states of its own: it proposes anchors, and tuning
calls decide.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.model.planner import Noise, Planner
from muninn.model.schedule import FloatArray
from muninn.programs.anchors import Chain
from muninn.programs.own_noise import propagated
from muninn.programs.spacing import sampler_states, spacings
from muninn.programs.table import Table, steps_of
from muninn.programs.unit_vectors import keeps_raw_noise

IntArray = npt.NDArray[np.int64]

MOVES = (-8, -4, -2, -1, 1, 2, 4, 8)
TRIMMED = 0.1
"""Share of calls that are left out: those at a fork would own the mean."""

SHARPNESS = 4.0
"""Of the norm that adds up the errors of all states: nearly their maximum."""

TYPICAL, POWERS = 0.6, (0.0, 0.3, 0.6, 1.0)
"""Of ``1 / noise``, by which the error of a state counts: how much later steps still mend."""

STARTS = ("t^1", "t^1.75")
LEAST_NOISE = 0.05
RIDGE = 1e-10
"""Share of the mean square, so that nearly equal evaluations are no new knowledge."""

SETTLED = 1e-3
"""Share by which a round must lower a price for another one to be tried."""

FEWEST = 8
"""Finite calls below which nothing is placed."""


class Placing:
    """Prices anchors of one planner by the chain of full compute on some calls.

    Args:
        planner: whose sampler is shortened.
        chain: full compute with the predictions of the first calls.
        noise: of the same calls.
        free: entries (*shape) that the planner's condition leaves alone.
    """

    def __init__(self, planner: Planner, chain: Chain, noise: Noise, free: Tensor) -> None:
        sampler, calls = planner.sampler, chain.predictions.shape[1]
        self._sampler, self.steps = sampler, len(sampler)
        self._found: dict[int, dict[str, tuple[int, ...]]] = {}
        self._states = sampler_states(sampler)
        cleans, noises = [], []
        for step, prediction in enumerate(chain.predictions):
            state = chain.states[step, :calls]
            clean = sampler.convert(state, prediction, step, "sample")
            limit = math.inf if sampler.clip is None else sampler.clip
            cleans.append(clean.clamp(-limit, limit))
            if keeps_raw_noise(sampler):
                noises.append(sampler.convert(state, prediction, step, "epsilon"))
        added = propagated(sampler, noise.select(slice(calls)))
        targets = [state - own for state, own in zip(chain.states[1:, :calls], added, strict=True)]
        vectors = [noise.initial[:calls], *cleans, *targets, *noises]
        stacked = torch.stack(vectors, dim=1) * free
        rows = stacked.flatten(2).double()
        gram = (rows @ rows.transpose(1, 2)).cpu().numpy()
        usable = gram[np.isfinite(gram).all(axis=(1, 2))]
        if len(usable) < FEWEST:
            raise InputError(f"{len(usable)} finite calls are too few to place anchors")
        left = self._outlying(spacings(self._states, min(8, self.steps))["t^1"], usable)
        kept = left <= np.quantile(left, 1.0 - TRIMMED)
        self._gram = usable[kept].mean(axis=0)
        level = [max(state.noise, LEAST_NOISE) for state in self._states]
        self._level = np.array([*level, LEAST_NOISE])  # of the states before every step, and after

    def _ends(self, anchors: IntArray) -> tuple[IntArray, FloatArray]:
        """Places of the states that follow from anchors, (sets, K), and how much errors weigh."""
        last = np.full((len(anchors), 1), self.steps)
        ends = np.concatenate([anchors[:, 1:], last], axis=1)
        return self.steps + ends, self._level[ends]

    def prices(self, anchors: IntArray, power: float) -> FloatArray:
        """Prices (sets,) of some sets of anchors (sets, K), each increasing from 0."""
        ends, level = self._ends(anchors)
        known = np.concatenate([np.zeros((len(anchors), 1), int), 1 + anchors], axis=1)
        inner = self._gram[known[:, :, None], known[:, None, :]]
        size = inner.shape[1]
        ridge = RIDGE * np.trace(inner, axis1=1, axis2=2)[:, None, None] / size
        across = self._gram[known[:, :, None], ends[:, None, :]]
        shares = np.linalg.solve(np.linalg.cholesky(inner + ridge * np.eye(size)), across)
        order = np.arange(anchors.shape[1])
        explained = np.cumsum(shares**2, axis=1)[:, 1 + order, order]
        left = np.maximum(self._gram[ends, ends] - explained, 0.0)
        return _norm(np.sqrt(left) / level**power)

    def price(self, table: Table) -> float | None:
        """Price of a table with its own weights; None where it evaluates between two steps."""
        steps = steps_of(self._sampler, table.states)
        at = np.array([step for step in steps if step is not None])
        if len(at) < len(steps):
            return None
        # Clean samples are those of full compute; so is a raw noise, but for the own state.
        weights, count, unit = table.array[0], len(at), np.eye(len(self._gram))
        ends, levels = self._ends(at[None])
        known = unit[np.append(0, 1 + at)]
        states, noises = [unit[0]], list[FloatArray]()
        for place, (row, step) in enumerate(zip(weights, at, strict=True)):
            state = row[: 1 + count] @ known
            if len(row) > 1 + count:
                true = unit[self.steps + step] if step else unit[0]
                apart = (states[-1] - true) / table.states[place].noise
                noises.append(unit[2 * self.steps + 1 + step] + apart)
                state = state + row[1 + count : 2 + count + place] @ np.array(noises)
            states.append(state)
        errors = np.array(states[1:]) - unit[ends[0]]
        squares = np.einsum("kf,kf->k", errors @ self._gram, errors)
        return float(_norm(np.sqrt(np.maximum(squares, 0.0))[None] / levels**TYPICAL)[0])

    def _outlying(self, anchors: tuple[int, ...], gram: FloatArray) -> FloatArray:
        """Squared error of the result of each call, when weights are fitted to all of them."""
        places = np.append(0, 1 + np.array(anchors))
        chosen = np.append(places, 2 * self.steps)
        mean = gram.mean(axis=0)
        inner = mean[np.ix_(places, places)]
        inner = inner + 1e-9 * np.trace(inner) / len(inner) * np.eye(len(inner))
        weights = np.append(np.linalg.solve(inner, mean[places, chosen[-1]]), -1.0)
        return np.asarray(gram[:, chosen][:, :, chosen] @ weights @ weights)

    def best(self, count: int) -> dict[str, tuple[int, ...]]:
        """Names and anchors of good places for so many evaluations, a few ways to weigh errors."""
        if count not in self._found:
            offered = spacings(self._states, count)
            starts = [np.array(offered[name]) for name in STARTS]
            self._found[count] = {}
            for power in POWERS:
                _, at = min(
                    (self._descend(start, power) for start in starts), key=lambda end: end[0]
                )
                starts = [*starts[: len(STARTS)], at]  # the next power changes little
                self._found[count][f"placed^{power:g}"] = tuple(int(anchor) for anchor in at)
        return self._found[count]

    def _descend(self, anchors: IntArray, power: float) -> tuple[float, IntArray]:
        """Move one anchor after the other to where the price is lowest, until none moves."""
        price, before = float(self.prices(anchors[None], power)[0]), math.inf
        while price < before * (1.0 - SETTLED):
            before = price
            for place in range(1, len(anchors)):
                moves = np.repeat(anchors[None], len(MOVES), axis=0)
                moves[:, place] += MOVES
                fits = (np.diff(moves, axis=1) > 0).all(axis=1) & (moves[:, -1] < self.steps)
                if not fits.any():
                    continue
                prices = self.prices(moves[fits], power)
                least = int(prices.argmin())
                if prices[least] < price:
                    price, anchors = float(prices[least]), moves[fits][least]
        return price, anchors


def _norm(errors: FloatArray) -> FloatArray:
    price: FloatArray = (errors**SHARPNESS).sum(axis=-1) ** (1.0 / SHARPNESS)
    return price
