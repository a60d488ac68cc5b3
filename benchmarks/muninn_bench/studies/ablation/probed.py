"""The study's programs that use the probe: the published method, its variants, and thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.context import Context
from muninn.model.planner import Noise
from muninn.paper.envelope import Envelope, fit_envelope
from muninn.paper.epsilon import eligible_steps
from muninn.paper.gates import Accumulated, Gate, Threshold, paper_budget
from muninn.paper.ghost import GhostPairs, full_chain, ghost_chain
from muninn.paper.policy import ProbedPlanner
from muninn.paper.probe_gate import ProbeGatedRuntime
from muninn.paper.split import Probe, split_of
from muninn.programs.forecast import AnyForecast
from muninn.record import Record
from muninn_bench.studies.ablation import settings as grid
from muninn_bench.studies.ablation.workbench import GHOST, Member, Run, Workbench
from muninn_bench.tasks.maze2d.planner import maze_contexts

PROBE = grid.PROBES[0]
GATE_MEMBERS = 6


def _called(call: Any) -> Run:
    def run(context: Context, noise: Noise) -> tuple[Tensor, Record]:
        trajectory, record = call(context, noise=noise)
        return trajectory, record

    return run


class ProbedPrograms:
    """Probes, ghost pairs and envelopes of one teacher, and the programs made from them."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._steps = len(workbench.planner.sampler)
        denoiser = workbench.planner.denoiser
        splits = {depth: split_of(denoiser, depth) for depth, _ in grid.PROBES}
        self.probes = {(depth, score): Probe(splits[depth], score) for depth, score in grid.PROBES}
        self._pairs = self._collect()
        self._envelopes: dict[tuple[Any, ...], Envelope] = {}

    # -- Algorithm 2 -------------------------------------------------------------------------

    def _wanted(self) -> list[tuple[int, int, str, str]]:
        default = grid.FORBIDDEN[0]
        return [(*default, *probe) for probe in grid.PROBES] + [
            (prefix, suffix, *PROBE) for prefix, suffix in grid.FORBIDDEN[1:]
        ]

    def _path(self, wanted: tuple[int, int, str, str]) -> Path:
        prefix, suffix, depth, score = wanted
        name = f"ghost-p{prefix}-s{suffix}-{depth}-{score}.safetensors"
        return self._workbench.folder / "ghost" / name

    def _collect(self) -> dict[tuple[int, int, str, str], GhostPairs]:
        """Pairs of every probe and band, on one set of full chains."""
        wanted = self._wanted()
        if all(self._path(one).is_file() for one in wanted):
            return {one: GhostPairs.load(self._path(one)) for one in wanted}
        bench, planner = self._workbench, self._workbench.planner
        context = maze_contexts(bench.teacher, bench.problems(GHOST))
        seed = bench.noise_seed(GHOST)
        scores: dict[tuple[int, int, str, str], list[Any]] = {one: [] for one in wanted}
        errors: dict[tuple[int, int, str, str], list[Any]] = {one: [] for one in wanted}
        advance = bench.task("ghost chains (Algorithm 2)", len(context))
        for at in range(0, len(context), bench.sizes.batch):
            own = context[at : at + bench.sizes.batch]
            rows = range(at, at + len(own))
            noise = planner.draw_noise(seeds=[call_seed(seed, row) for row in rows])
            full, _ = full_chain(planner, own, noise)
            for band in grid.FORBIDDEN:
                here = [one for one in wanted if one[:2] == band]
                probes = [self.probes[one[2:]] for one in here]
                eligible = eligible_steps(self._steps, *band)
                score, error = ghost_chain(planner, full, probes, own, noise, eligible)
                for place, one in enumerate(here):
                    scores[one].append(score[place])
                    errors[one].append(error)
            advance(len(own))
        pairs = {}
        for one in wanted:
            eligible = eligible_steps(self._steps, *one[:2])
            pairs[one] = GhostPairs(
                np.concatenate(scores[one]).astype(np.float32),
                np.concatenate(errors[one]).astype(np.float32),
                eligible,
            )
            self._path(one).parent.mkdir(parents=True, exist_ok=True)
            pairs[one].save(self._path(one))
        return pairs

    def _default_pairs(self) -> GhostPairs:
        prefix, suffix = grid.FORBIDDEN[0]
        return self._pairs[prefix, suffix, PROBE[0], PROBE[1]]

    def _envelope(self, described: dict[str, Any]) -> Envelope:
        """The calibrated bounds of a paper program; void ones too, as published."""
        name = tuple(described[key] for key in ("prefix", "suffix", "depth", "score"))
        at = (*name, described["calls"], described["risk"])
        if at not in self._envelopes:
            pairs = self._pairs[name].take(described["calls"])
            self._envelopes[at] = fit_envelope(pairs, described["risk"], strict=False)
        return self._envelopes[at]

    # -- programs ----------------------------------------------------------------------------

    def paper_member(self, described: dict[str, Any], order: int) -> Member:
        """One setting of the published method."""
        planner = self._workbench.planner
        envelope = self._envelope(described)
        gate = paper_budget(
            planner,
            envelope,
            described["tolerance"],
            units=described["units"],
            sensitivity=described["sensitivity"],
        )
        program = ProbedPlanner(
            planner,
            self.probes[described["depth"], described["score"]],
            gate,
            eligible=envelope.eligible,
            longest_age=described["longest_age"],
        )
        settings = {**described, "void": envelope.void}
        return Member("paper", order, settings, _called(program))

    def paper_members(self) -> list[Member]:
        """Every setting of tables (i) to (vi)."""
        sizes = self._workbench.sizes
        described = paper_settings(sizes.ghost, few=sizes.every > 1)
        return [self.paper_member(one, order) for order, one in enumerate(described)]

    def thresholds(self) -> list[list[Member]]:
        """ProbeThresh and the TeaCache-style gate, from cautious to bold.

        Thresholds are quantiles of the probe's changes seen in calibration, and multiples of
        their median; reuse is allowed at all steps but the first and the last.
        """
        bench = self._workbench
        pairs = self._default_pairs()
        seen = pairs.scores[:, list(pairs.eligible)]
        alone = np.quantile(seen, np.linspace(0.1, 0.995, GATE_MEMBERS))
        added = np.median(seen) * np.geomspace(1.5, 40.0, GATE_MEMBERS)
        eligible = range(1, self._steps - 1)

        def members(method: str, gates: list[Gate], values: Any) -> list[Member]:
            found = []
            for order, (gate, value) in enumerate(zip(gates, values, strict=True)):
                program = ProbedPlanner(
                    bench.planner, self.probes[PROBE], gate, eligible=tuple(eligible)
                )
                settings = {"threshold": float(value)}
                found.append(Member(method, order, settings, _called(program)))
            return found[:: bench.sizes.every]

        return [
            members("probethresh", [Threshold(float(value)) for value in alone], alone),
            members("teacache", [Accumulated(float(value)) for value in added], added),
        ]

    def probe_gates(self, tolerance: float, forecast: AnyForecast) -> list[Member]:
        """The probe as a gate over our forecast, accumulated since the last evaluation."""
        bench = self._workbench
        pairs = self._default_pairs()
        typical = float(np.median(pairs.scores[:, list(pairs.eligible)]))
        members = []
        for order, factor in enumerate(np.geomspace(1.5, 40.0, GATE_MEMBERS)):
            threshold = typical * float(factor)
            program = ProbeGatedRuntime(
                bench.planner, forecast, self.probes[PROBE], Accumulated(threshold)
            )
            settings = {"threshold": threshold, "forecast": forecast.to_json()}
            members.append(Member(f"probegate-{tolerance:g}", order, settings, _called(program)))
        return members[:: bench.sizes.every]


def paper_settings(calls: int, few: bool = False) -> list[dict[str, Any]]:
    """Settings of the published method in tables (i) to (vi), each once.

    Args:
        calls: of Algorithm 2.
        few: leave out repetitions of a sweep in other units or at another tolerance.
    """
    tolerances = grid.RISK_TOLERANCES[:1] if few else grid.RISK_TOLERANCES
    prefix, suffix = grid.FORBIDDEN[0]
    base = {
        "tolerance": grid.SWEEP_TOLERANCE,
        "risk": grid.RISK,
        "units": "algorithm",
        "sensitivity": True,
        "longest_age": None,
        "prefix": prefix,
        "suffix": suffix,
        "calls": calls,
        "depth": PROBE[0],
        "score": PROBE[1],
    }

    def every() -> Iterator[dict[str, Any]]:
        for units in ("algorithm", "appendix", "mended"):
            for tolerance in grid.TOLERANCES:
                yield {**base, "tolerance": tolerance, "units": units}
            for tolerance in tolerances:
                for risk in grid.RISKS:
                    yield {**base, "tolerance": tolerance, "risk": risk, "units": units}
        for units in ("mended",) if few else ("algorithm", "mended"):
            capped = {**base, "units": units, "longest_age": grid.LONGEST_AGE}
            for tolerance in tolerances:
                for risk in grid.RISKS:
                    yield {**capped, "tolerance": tolerance, "risk": risk}
            yield {**base, "units": units, "sensitivity": False}
            for depth, score in grid.PROBES:
                yield {**base, "units": units, "depth": depth, "score": score}
            for before, after in grid.FORBIDDEN:
                yield {**base, "units": units, "prefix": before, "suffix": after}
            for count in grid.CALIBRATION_CALLS:
                if count <= calls:
                    yield {**base, "units": units, "calls": count}

    unique: list[dict[str, Any]] = []
    for one in every():
        if one not in unique:
            unique.append(one)
    return unique
