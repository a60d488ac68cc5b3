"""Every program of the study: certified families, variants, baselines, and those with a probe.

What is tuned is tuned once and kept: rounding on another device would give other plans. Families
are in ``families.json``, the plans of table (vii) in ``variants.json``, the samplers that Muninn is
compared with in ``alternatives.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from muninn.certify.frontier import Frontier
from muninn.certify.gates import gate_forecast, gate_members
from muninn.certify.tune import frontier_family
from muninn.engines.choose import runtime_for
from muninn.engines.rounds import RoundRuntime
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.paper.envelope import Envelope, fit_envelope
from muninn.paper.epsilon import eligible_steps
from muninn.paper.gates import Accumulated, Gate, Threshold, paper_budget
from muninn.paper.ghost import GhostPairs, collect_pairs
from muninn.paper.policy import ProbedPlanner
from muninn.paper.probe_gate import ProbeGatedRuntime
from muninn.paper.split import Probe, split_of
from muninn.programs import anchors
from muninn.programs.forecast import ORDERS, AnyForecast, Forecast
from muninn.programs.plan import Adaptive, AnyProgram, Family, Program, Static
from muninn.programs.table import Table
from muninn_bench.measure.alternatives import (
    FEWSTEPS,
    Alternative,
    AlternativeSearch,
    available,
)
from muninn_bench.measure.baselines import fixed_skip
from muninn_bench.studies.ablation import settings as grid
from muninn_bench.studies.ablation.raw import ghost_path
from muninn_bench.studies.ablation.workbench import GHOST, TUNE, Member, Workbench

SHARE = 0.6 * grid.RISK
"""Of tuning calls that may exceed the tolerance: somewhat below the risk to be certified."""

PROBE = grid.PROBES[0]
GATE_MEMBERS = 6


class Programs:
    """The programs of one teacher; searches, plans and ghost pairs are made when asked for."""

    def __init__(self, workbench: Workbench) -> None:
        self._bench, self._planner = workbench, workbench.planner
        self._searches: dict[tuple[Any, ...], Frontier] = {}
        splits = {depth: split_of(self._planner.denoiser, depth) for depth, _ in grid.PROBES}
        self._probes = {(depth, name): Probe(splits[depth], name) for depth, name in grid.PROBES}

    # -- without a probe ---------------------------------------------------------------------

    def certified(self, kind: str, tolerance: float) -> Iterator[Member]:
        """The members of a certified family but full compute."""
        members = enumerate(self._family(kind, tolerance).programs[1:])
        for order, program in list(members)[:: self._bench.sizes.every]:
            settings: dict[str, Any] = {"tolerance": tolerance}
            if isinstance(program, Table):
                settings["timesteps"] = [state.timestep for state in program.states]
                settings |= {"method": program.method, "evaluations": len(program.states)}
            elif isinstance(program, Program):
                described = program.plan.to_json()
                settings |= {"forecast": program.forecast.to_json(), "plan": described}
                if "anchors" in described:
                    settings["evaluations"] = len(described["anchors"])
                else:
                    settings["threshold"] = described["threshold"]
            else:
                settings["program"] = str(program)
            yield self._member(f"{kind}-{tolerance:g}", order, settings, program)

    def variants(self) -> Iterator[Member]:
        """Every forecast of table (vii), each as static plans at many numbers of evaluations."""

        def tune(forecast: Forecast) -> list[list[int]]:
            at = anchors.anchor_positions(len(self._planner.sampler))
            gram, model = self._grams[forecast.quantity], anchors.SegmentModel(0.5, -2.0)
            costs = anchors.segment_costs(self._planner, forecast, gram, at, model)
            paths = anchors.cheapest_anchors(costs, at, len(at))
            return [paths[count] for count in self._bench.sizes.variant_counts if count in paths]

        forecasts = [
            Forecast(quantity, order, look_back)
            for quantity in self._planner.sampler.kinds
            for order in ORDERS
            for look_back in (False, True)
        ]
        for forecast in forecasts[:: self._bench.sizes.every]:
            look_back = "lookback" if forecast.look_back else "plain"
            name = f"variant-{forecast.quantity}-{forecast.order}-{look_back}"
            kept = self._kept("variants.json", name, partial(tune, forecast))
            for order, chosen in enumerate(kept):
                program = Program(forecast, Static(tuple(chosen)))
                plan = {"evaluations": len(chosen), "plan": program.plan.to_json()}
                yield self._member(name, order, {**vars(forecast), **plan}, program)

    def baselines(self) -> Iterator[Member]:
        """FixedSkip as the paper has it, and the tuned alternatives, each at many evaluations."""

        def tune(count: int) -> list[dict[str, Any]]:
            if self._miniature:
                names = available(self._planner)
                found = [Alternative.untuned(name, self._planner, count) for name in names]
            else:
                found = list(self._rivals.best(count).values())
            return [each.to_json() for each in found]

        planner, steps = self._planner, len(self._planner.sampler)
        for order, count in enumerate(one for one in self._bench.sizes.counts if one < steps):
            settings = {"evaluations": count}
            yield self._member("fixedskip", order, settings, fixed_skip(planner, count))
            kept = self._kept("alternatives.json", str(count), partial(tune, count))
            for found in map(Alternative.from_json, kept):
                more = {**settings, "table": found.table.method, "timesteps": found.timesteps}
                yield Member(found.name, order, more, found.run(planner))

    def _family(self, kind: str, tolerance: float) -> Family:
        """The ``frontier``, ``static`` or ``adaptive`` family for a tolerance."""

        def tune() -> dict[str, Any]:
            if self._miniature:
                return self._untuned(kind).to_json()
            if kind == "frontier":
                return frontier_family(self._frontier(tolerance), adaptive=True).to_json()
            frontier = self._frontier(tolerance, "forecast")  # without fitting
            if kind == "static":
                return frontier_family(frontier, adaptive=False).to_json()
            static = self._family("static", tolerance)
            fewest = static.programs[-1].most_evaluations(frontier.steps)
            found = gate_members(frontier, gate_forecast(frontier, fewest), frontier.steps)
            gates = tuple(entry.program for entry in found)
            return (Family((static.member(0), *gates), kind) if gates else static).to_json()

        return Family.from_json(self._kept("families.json", f"{kind}-{tolerance:g}", tune, 1))

    def _untuned(self, kind: str) -> Family:
        """A family that stands in for a tuned one in a miniature."""
        own = self._planner.sampler.kind
        few = (Alternative.untuned(FEWSTEPS, self._planner, k) for k in self._bench.sizes.counts)
        gates = (Program(Forecast(own), Adaptive(threshold)) for threshold in (0.01, 0.1))
        programs = gates if kind == "adaptive" else (each.table for each in few)
        return Family((Program.full(own), *programs), kind)

    @property
    def _miniature(self) -> bool:
        """Whether nothing is tuned, which takes minutes."""
        return self._bench.sizes.every > 1

    def _frontier(self, tolerance: float, *groups: str) -> Frontier:
        """The search for a tolerance, of some groups of methods or of all."""
        name = (tolerance, groups)
        if name not in self._searches:
            if groups:
                found = self._frontier(tolerance).restricted(groups)
            else:
                advance = self._bench.task(f"tune for {tolerance:g}", None)
                found = Frontier(self._bench.calls(TUNE), tolerance, SHARE, advance=advance)
            self._searches[name] = found
        return self._searches[name]

    @cached_property
    def _rivals(self) -> AlternativeSearch:
        # Which are best does not depend on the tolerance, a number here.
        return AlternativeSearch(self._bench.calls(TUNE), grid.TOLERANCE, SHARE)

    @cached_property
    def _grams(self) -> dict[Any, Any]:
        return anchors.prediction_grams(self._planner, self._frontier(grid.TOLERANCE).chain)

    def _kept(
        self, file: str, name: str, tune: Callable[[], Any], indent: int | None = None
    ) -> Any:
        """The entry of a file, tuned and written if it is not there."""
        path = self._bench.folder / file
        stored = json.loads(path.read_text()) if path.is_file() else {}
        if name not in stored:
            stored[name] = tune()
            write_whole(path, json.dumps(stored, indent=indent) + "\n")
        return stored[name]

    def _member(
        self, method: str, order: int, settings: dict[str, Any], program: AnyProgram
    ) -> Member:
        runtime = runtime_for(self._planner, program, strict=True)
        if isinstance(program, Program) and self._bench.device.type == "cuda":
            # Rows at different steps together.
            runtime = RoundRuntime(self._planner, program, strict=True)
        return Member(method, order, settings, runtime)

    # -- with a probe ------------------------------------------------------------------------

    def paper(self) -> Iterator[Member]:
        """The published method in every setting of tables (i) to (vi).

        Where the envelope's quantile is void it goes on, as published.
        """

        @cache
        def fitted(calls: int, risk: float, *place: Any) -> Envelope:
            return fit_envelope(self._pairs(*place).take(calls), risk, strict=False)

        sizes = self._bench.sizes
        for order, asked in enumerate(grid.paper_settings(sizes.ghost, few=sizes.every > 1)):
            band, probe = (asked["prefix"], asked["suffix"]), (asked["depth"], asked["score"])
            envelope = fitted(asked["calls"], asked["risk"], band, probe)
            options = {key: asked[key] for key in ("units", "sensitivity")}
            program = ProbedPlanner(
                self._planner,
                self._probes[probe],
                paper_budget(self._planner, envelope, asked["tolerance"], **options),
                eligible=envelope.eligible,
                longest_age=asked["longest_age"],
            )
            yield Member("paper", order, {**asked, "void": envelope.void}, program)

    def thresholds(self) -> Iterator[Member]:
        """ProbeThresh and the TeaCache-style gate, from cautious to bold.

        Thresholds are quantiles of the probe's changes seen in calibration, and multiples of
        their median; reuse is allowed at all steps but the first and the last.
        """
        eligible = range(1, len(self._planner.sampler) - 1)
        alone = np.quantile(self._changes, np.linspace(0.1, 0.995, GATE_MEMBERS))

        def gated(gate: Gate) -> ProbedPlanner:
            return ProbedPlanner(self._planner, self._probes[PROBE], gate, eligible=eligible)

        yield from self._gated("probethresh", alone, lambda value: gated(Threshold(value)))
        yield from self._gated("teacache", self._multiples, lambda value: gated(Accumulated(value)))

    def probe_gates(self, tolerance: float) -> Iterator[Member]:
        """The probe as a gate over our gates' forecast, accumulated since the last evaluation."""
        programs = self._family("adaptive", tolerance).programs[1:]
        loops = [program.forecast for program in programs if isinstance(program, Program)]
        forecast: AnyForecast = loops[0] if loops else Forecast("sample", 2, True)

        def gated(value: float) -> ProbeGatedRuntime:
            gate = Accumulated(value)
            return ProbeGatedRuntime(self._planner, forecast, self._probes[PROBE], gate)

        more = {"forecast": forecast.to_json()}
        return self._gated(f"probegate-{tolerance:g}", self._multiples, gated, **more)

    def _gated(
        self, method: str, values: FloatArray, make: Callable[[float], Any], **more: object
    ) -> Iterator[Member]:
        for order, value in list(enumerate(map(float, values)))[:: self._bench.sizes.every]:
            yield Member(method, order, {"threshold": value, **more}, make(value))

    @cached_property
    def _changes(self) -> FloatArray:
        """Of the probe from step to step, (calls, steps at which reuse is usually allowed)."""
        usual = self._pairs(grid.FORBIDDEN[0], PROBE)
        return usual.scores[:, usual.eligible]

    @property
    def _multiples(self) -> FloatArray:
        return float(np.median(self._changes)) * np.geomspace(1.5, 40.0, GATE_MEMBERS)

    def _pairs(self, band: tuple[int, int], probe: tuple[str, str]) -> GhostPairs:
        """Algorithm 2: the pairs of a probe, read where they are kept, else collected."""
        path = ghost_path(self._bench.folder, *band, *probe)
        if not path.is_file():
            calls = self._bench.calls(GHOST)
            # Only the default band is swept over probes.
            probes: Sequence[Any] = grid.PROBES if band == grid.FORBIDDEN[0] else [probe]
            found = collect_pairs(
                self._planner,
                [self._probes[one] for one in probes],
                calls.context,
                eligible=eligible_steps(len(self._planner.sampler), *band),
                seed=calls.seed,
                batch_size=self._bench.sizes.batch,
                task=self._bench.task,
            )
            for one, own in zip(probes, found, strict=True):
                single: list[Any] = [part.astype(np.float32) for part in (own.scores, own.errors)]
                pairs = GhostPairs(single[0], single[1], own.eligible)
                pairs.save(ghost_path(self._bench.folder, *band, *one))
        return GhostPairs.load(path)
