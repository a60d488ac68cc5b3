"""The study's programs that use the probe: the published method, its variants, and thresholds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muninn.model.schedule import FloatArray
from muninn.paper.envelope import Envelope, fit_envelope
from muninn.paper.epsilon import eligible_steps
from muninn.paper.gates import Accumulated, Gate, Threshold, paper_budget
from muninn.paper.ghost import GhostPairs, collect_pairs
from muninn.paper.policy import ProbedPlanner
from muninn.paper.probe_gate import ProbeGatedRuntime
from muninn.paper.split import Probe, split_of
from muninn.programs.forecast import AnyForecast
from muninn_bench.studies.ablation import settings as grid
from muninn_bench.studies.ablation.raw import ghost_path
from muninn_bench.studies.ablation.workbench import GHOST, Member, Workbench, called

PROBE = grid.PROBES[0]
GATE_MEMBERS = 6


class ProbedPrograms:
    """Probes, ghost pairs and envelopes of one teacher, and the programs made from them."""

    def __init__(self, workbench: Workbench) -> None:
        self._bench, self._planner = workbench, workbench.planner
        splits = {depth: split_of(self._planner.denoiser, depth) for depth, _ in grid.PROBES}
        self.probes = {(depth, score): Probe(splits[depth], score) for depth, score in grid.PROBES}
        self._pairs: dict[Path, GhostPairs] = {}
        self._envelopes: dict[tuple[Any, ...], Envelope] = {}
        for band in grid.FORBIDDEN:
            # Only the default band is swept over probes.
            self._collect(band, grid.PROBES if band == grid.FORBIDDEN[0] else [PROBE])
        usual = self._pairs[ghost_path(workbench.folder, *grid.FORBIDDEN[0], *PROBE)]
        self._changes = usual.scores[:, usual.eligible]
        typical = float(np.median(self._changes))
        self._multiples = typical * np.geomspace(1.5, 40.0, GATE_MEMBERS)

    def _collect(self, band: tuple[int, int], probes: Sequence[tuple[str, str]]) -> None:
        """Algorithm 2: the pairs of some probes, read where they are kept, else collected."""
        paths = [ghost_path(self._bench.folder, *band, *probe) for probe in probes]
        if not all(path.is_file() for path in paths):
            calls = self._bench.calls(GHOST)
            found = collect_pairs(
                self._planner,
                [self.probes[probe] for probe in probes],
                calls.context,
                eligible=eligible_steps(len(self._planner.sampler), *band),
                seed=calls.seed,
                batch_size=self._bench.sizes.batch,
                task=self._bench.task,
            )
            for path, own in zip(paths, found, strict=True):
                single: list[Any] = [part.astype(np.float32) for part in (own.scores, own.errors)]
                GhostPairs(single[0], single[1], own.eligible).save(path)
        self._pairs |= {path: GhostPairs.load(path) for path in paths}

    def paper(self) -> list[Member]:
        """The published method in every setting of tables (i) to (vi)."""
        sizes = self._bench.sizes
        described = paper_settings(sizes.ghost, few=sizes.every > 1)
        return [self._paper(one, order) for order, one in enumerate(described)]

    def _paper(self, asked: dict[str, Any], order: int) -> Member:
        """One setting; where the envelope's quantile is void it goes on, as published."""
        place = [asked[key] for key in ("prefix", "suffix", "depth", "score")]
        name = (ghost_path(self._bench.folder, *place), asked["calls"], asked["risk"])
        if name not in self._envelopes:
            pairs = self._pairs[name[0]].take(asked["calls"])
            self._envelopes[name] = fit_envelope(pairs, asked["risk"], strict=False)
        envelope = self._envelopes[name]
        options = {key: asked[key] for key in ("units", "sensitivity")}
        program = ProbedPlanner(
            self._planner,
            self.probes[asked["depth"], asked["score"]],
            paper_budget(self._planner, envelope, asked["tolerance"], **options),
            eligible=envelope.eligible,
            longest_age=asked["longest_age"],
        )
        return Member("paper", order, {**asked, "void": envelope.void}, called(program))

    def thresholds(self) -> list[Member]:
        """ProbeThresh and the TeaCache-style gate, from cautious to bold.

        Thresholds are quantiles of the probe's changes seen in calibration, and multiples of
        their median; reuse is allowed at all steps but the first and the last.
        """
        eligible = range(1, len(self._planner.sampler) - 1)
        alone = np.quantile(self._changes, np.linspace(0.1, 0.995, GATE_MEMBERS))

        def gated(gate: Gate) -> ProbedPlanner:
            return ProbedPlanner(self._planner, self.probes[PROBE], gate, eligible=eligible)

        return [
            *self._gated("probethresh", alone, lambda value: gated(Threshold(value))),
            *self._gated("teacache", self._multiples, lambda value: gated(Accumulated(value))),
        ]

    def probe_gates(self, tolerance: float, forecast: AnyForecast) -> list[Member]:
        """The probe as a gate over our forecast, accumulated since the last evaluation."""

        def gated(value: float) -> ProbeGatedRuntime:
            probe, gate = self.probes[PROBE], Accumulated(value)
            return ProbeGatedRuntime(self._planner, forecast, probe, gate)

        more = {"forecast": forecast.to_json()}
        return self._gated(f"probegate-{tolerance:g}", self._multiples, gated, **more)

    def _gated(
        self, method: str, values: FloatArray, make: Callable[[float], Any], **more: object
    ) -> list[Member]:
        members = [
            Member(method, order, {"threshold": value, **more}, called(make(value)))
            for order, value in enumerate(map(float, values))
        ]
        return members[:: self._bench.sizes.every]


def paper_settings(calls: int, few: bool = False) -> list[dict[str, Any]]:
    """Settings of the published method in tables (i) to (vi), each once; calls of Algorithm 2.

    ``few`` leaves out repetitions of a sweep in other units or at another tolerance.
    """
    tolerances = grid.RISK_TOLERANCES[:1] if few else grid.RISK_TOLERANCES
    base = {
        "tolerance": grid.SWEEP_TOLERANCE,
        "risk": grid.RISK,
        "units": "algorithm",
        "sensitivity": True,
        "longest_age": None,
        "prefix": grid.FORBIDDEN[0][0],
        "suffix": grid.FORBIDDEN[0][1],
        "calls": calls,
        "depth": PROBE[0],
        "score": PROBE[1],
    }
    asked = [{"tolerance": value, "risk": risk} for value in tolerances for risk in grid.RISKS]
    first = [*({"tolerance": value} for value in grid.TOLERANCES), *asked]
    swept: list[dict[str, Any]] = [{**one, "longest_age": grid.LONGEST_AGE} for one in asked]
    swept += [{"sensitivity": False}]
    swept += [{"depth": depth, "score": score} for depth, score in grid.PROBES]
    swept += [{"prefix": before, "suffix": after} for before, after in grid.FORBIDDEN]
    swept += [{"calls": count} for count in grid.CALIBRATION_CALLS if count <= calls]
    accounts = ("mended",) if few else ("algorithm", "mended")
    found = [{**base, "units": units, **one} for units in grid.UNITS for one in first]
    found += [{**base, "units": units, **one} for units in accounts for one in swept]
    return [one for place, one in enumerate(found) if one not in found[:place]]
