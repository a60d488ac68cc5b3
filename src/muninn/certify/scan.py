"""Scan a family on calibration units: the member that keeps the promise, and its per-call bound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.cuda import get_device_name

from muninn.certify.certificate import Bound, library_versions
from muninn.certify.journal import Journal, code_digest
from muninn.certify.questions import Questions
from muninn.certify.risk import FULL_EXCEEDS, order_statistic, scan_members
from muninn.certify.units import Outcome
from muninn.errors import CalibrationError, InputError
from muninn.identity.arithmetic import arithmetic
from muninn.identity.digest import digest
from muninn.model.planner import Planner
from muninn.model.schedule import FloatArray
from muninn.parallel import Map
from muninn.programs.plan import Family
from muninn.progress import Task


def other_answers(planner: Planner, asked: Questions | None) -> str | None:
    """How a network answers otherwise than it did, in the arithmetic in force, or None."""
    return None if asked is None else asked.difference(planner, arithmetic(planner.device))


@dataclass
class Measuring:
    """Measures chunks of units, here or in another process that computes the same."""

    units: Any  # of calls or episodes, which measure what they are told
    networks: Sequence[tuple[Planner, Questions | None]] = ()  # and what each is known by
    functions: Sequence[object] = ()  # what else computes: the metric and the tolerance

    def __call__(self, item: tuple[Any, ...]) -> tuple[list[Any], dict[int, Tensor]]:
        """Outcomes of a program on a chunk, and the full trajectories that were computed for it."""
        before = set(self.units.known)
        outcomes = self.units.measure(*item)
        return outcomes, {c: full for c, full in self.units.known.items() if c not in before}

    def _marks(self) -> dict[str, Any]:
        """What must be the same in another process, where modules are imported afresh."""
        unasked = [[p.denoiser, p.condition] for p, asked in self.networks if asked is None]
        devices = [planner.device for planner, _ in self.networks]
        return {
            # GPUs of another kind round otherwise by design; CPUs do so in the last digits.
            "device": [get_device_name(d) if d.type == "cuda" else d.type for d in devices],
            "arithmetic": [arithmetic(device) for device in devices],
            "versions": {**library_versions(), "code": code_digest()},
            "calls": self.units.identity(),
            "metric, tolerance or network": digest([*self.functions, *unasked], "the planner"),
        }

    def __getstate__(self) -> dict[str, Any]:
        for planner, _ in self.networks:
            if planner.device.type not in ("cpu", "cuda"):
                raise InputError(f"the planner is on {planner.device}, which workers cannot share")
        return {**vars(self), "marks": self._marks()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        marks = state.pop("marks")
        vars(self).update(state)
        other = [name for name, value in self._marks().items() if value != marks[name]]
        for planner, asked in self.networks:
            if not other and (found := other_answers(planner, asked)) is not None:
                other.append(f"network: {found}")
        if other:
            raise InputError(
                f"a worker process computes otherwise than this one ({'; '.join(other)}): settings "
                "that a script makes after its imports do not reach it. Make them where modules "
                "are imported, or use the inline map: muninn.parallel.Map(). Machines of a cluster "
                "need the same versions, and the same GPU where one is used"
            )


@dataclass
class Informed:
    """Measures chunks that bring full trajectories, so that no worker computes them again."""

    measuring: Measuring

    def __call__(self, item: tuple[Any, ...]) -> tuple[list[Any], dict[int, Tensor]]:
        """Of known full trajectories and what is measured."""
        full, *asked = item
        self.measuring.units.known.update(full)
        return self.measuring(tuple(asked))


@dataclass
class Scan:
    """A family that is measured on units chunk by chunk; finished chunks are in the journal."""

    measuring: Measuring
    family: Family
    journal: Journal
    workers: Map
    task: Task

    def __post_init__(self) -> None:
        self._informed = Informed(self.measuring)  # one object, so that it travels once

    def _outcomes(
        self, member: int, split: list[int], part: str, description: str
    ) -> Iterator[list[Outcome]]:
        """Outcomes of every chunk, in order, from the journal where they are there."""
        units, advance = self.measuring.units, self.task(description, len(split))
        chunks = [split[at : at + units.chunk] for at in range(0, len(split), units.chunk)]
        keys = [f"{part}/{member}/{chunk[0]}-{chunk[-1]}" for chunk in chunks]
        program = self.family.member(member)
        stored = [self.journal.get(key) for key in keys]
        missing = [
            (units.full_of(chunk), program, chunk)
            for chunk, s in zip(chunks, stored, strict=True)
            if s is None
        ]
        fresh = self.workers.map(self._informed, missing) if missing else iter(())
        for chunk, key, entries in zip(chunks, keys, stored, strict=True):
            if entries is None:
                outcomes, full = next(fresh)
                units.known.update(full)  # the next member is measured against them
                self.journal.put(key, [asdict(outcome) for outcome in outcomes])
            else:
                outcomes = [Outcome(**entry) for entry in entries]
            advance(len(chunk))
            yield outcomes

    def choose(
        self, split: list[int], allowed: int, check_full: bool, running: bool, free: int = -1
    ) -> tuple[int, int, list[Outcome], list[dict[str, Any]]]:
        """The last member that is accepted, the last that a call may choose, and all figures.

        A call may choose up to where the running maximum has at most ``free`` violations.
        ``running`` is as in :func:`muninn.certify.risk.scan_members`.

        Raises:
            CalibrationError: full compute is checked, and exceeds the tolerance too often itself.
        """
        first = 0 if check_full else 1
        measured: list[list[Outcome]] = []

        def scan(member: int) -> Iterator[FloatArray]:
            measured.append([])
            title = f"certify member {member} of {len(self.family) - 1}"
            for outcomes in self._outcomes(member, split, "certify", title):
                measured[-1] += outcomes
                yield np.array([outcome.excess for outcome in outcomes])

        members = map(scan, range(first, len(self.family)))
        found = scan_members(members, len(split), allowed, running=running)
        accepted = found.accepted
        if accepted == 0 and check_full:
            raise CalibrationError(FULL_EXCEEDS)
        violations = found.running if running else found.own
        realised = [
            _summary(first + place, measured[place], count, place < accepted)
            for place, count in enumerate(violations)
        ]
        outcomes = measured[accepted - 1] if accepted else []
        choosable = max(first + found.choosable(free) - 1, 0)
        return first + accepted - 1, choosable, outcomes, realised

    def bound(self, member: int, outcomes: list[Outcome], split: list[int], risk: float) -> Bound:
        """Isotonic fit on the certify split, conformal residual on units that chose nothing."""
        bound = Bound(np.zeros(1), np.zeros(1), 0.0)
        if not outcomes:
            return bound
        estimate = np.concatenate([outcome.estimate for outcome in outcomes])
        deviation = np.concatenate([outcome.deviation for outcome in outcomes])
        known = ~np.isnan(estimate)
        if known.any():
            fit = IsotonicRegression(out_of_bounds="clip").fit(estimate[known], deviation[known])
            bound = Bound(fit.X_thresholds_.astype(float), fit.y_thresholds_.astype(float), 0.0)
        residuals = [
            float(np.max(np.array(outcome.deviation) - bound.fitted(np.array(outcome.estimate))))
            for chunk in self._outcomes(member, split, "bound", "per-call bound")
            for outcome in chunk
        ]
        place = len(residuals) + 1 - order_statistic(len(residuals), risk, None)
        return Bound(bound.estimate, bound.deviation, float(np.sort(residuals)[place - 1]))


def _summary(
    member: int, outcomes: list[Outcome], violations: int, accepted: bool
) -> dict[str, Any]:
    """Figures of one member on the certify split (on the part seen before it was rejected)."""
    deviation = np.concatenate([outcome.deviation for outcome in outcomes])
    evaluations = np.concatenate([outcome.evaluations for outcome in outcomes])
    return {
        "member": member,
        "accepted": accepted,
        "units": len(outcomes),
        "violations": violations,
        "evaluations_mean": float(evaluations.mean()),
        "evaluations_max": int(evaluations.max()),
        "fallbacks": sum(math.isnan(value) for each in outcomes for value in each.estimate),
        "deviation_mean": float(deviation.mean()),
        "deviation_p95": float(np.quantile(deviation, 0.95)),
        "deviation_max": float(deviation.max()),
    }
