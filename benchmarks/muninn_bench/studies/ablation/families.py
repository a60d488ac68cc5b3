"""The study's programs that need no probe: certified families, their variants, and baselines."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from muninn.certify.frontier import Frontier
from muninn.certify.gates import gate_forecast, gate_members
from muninn.certify.tune import frontier_family
from muninn.engines.choose import runtime_for
from muninn.engines.rounds import RoundRuntime
from muninn.files import write_whole
from muninn.programs import anchors
from muninn.programs.forecast import ORDERS, AnyForecast, Forecast
from muninn.programs.plan import AnyProgram, Family, Program, Static
from muninn.programs.table import Table
from muninn_bench.measure.alternatives import Alternative, AlternativeSearch
from muninn_bench.measure.baselines import fixed_skip
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE
from muninn_bench.studies.ablation.workbench import TUNE, Member, Workbench, called

SHARE = 0.6 * RISK
"""Of tuning calls that may exceed the tolerance: somewhat below the risk to be certified."""


class Families:
    """Programs tuned on the tuning stream, each once: rounding on another device would give others.

    Families are kept in ``families.json``, the plans of table (vii) in ``variants.json``, the
    samplers that Muninn is compared with in ``alternatives.json``.
    """

    def __init__(self, workbench: Workbench) -> None:
        self._bench = workbench
        self._searches: dict[tuple[bool, float], Frontier] = {}
        self._rivals: AlternativeSearch | None = None

    def family(self, kind: str, tolerance: float) -> Family:
        """The ``frontier``, ``static`` or ``adaptive`` family for a tolerance."""

        def tune() -> dict[str, Any]:
            frontier = self._frontier(kind, tolerance)
            if kind != "adaptive":
                return frontier_family(frontier, gates=kind == "frontier").to_json()
            static = self.family("static", tolerance)
            fewest = static.programs[-1].most_evaluations(frontier.steps)
            found = gate_members(frontier, gate_forecast(frontier, fewest), frontier.steps)
            gates = tuple(entry.program for entry in found)
            return (Family((static.member(0), *gates), kind) if gates else static).to_json()

        return Family.from_json(self._kept("families.json", f"{kind}-{tolerance:g}", tune, 1))

    def forecast(self, tolerance: float) -> AnyForecast:
        """The forecast of the gates for a tolerance."""
        programs = self.family("adaptive", tolerance).programs[1:]
        loops = [program.forecast for program in programs if isinstance(program, Program)]
        return loops[0] if loops else Forecast("sample", 2, True)

    def certified(self, kind: str, tolerance: float) -> list[Member]:
        """The members of a certified family but full compute."""
        members = []
        for order, program in enumerate(self.family(kind, tolerance).programs[1:]):
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
            members.append(self._member(f"{kind}-{tolerance:g}", order, settings, program))
        return members[:: self._bench.sizes.every]

    def variants(self) -> list[Member]:
        """Every forecast of table (vii), each as static plans at many numbers of evaluations."""

        def tune(forecast: Forecast) -> list[list[int]]:
            planner, gram = self._bench.planner, self._grams[forecast.quantity]
            at = anchors.anchor_positions(len(planner.sampler))
            model = anchors.SegmentModel(0.5, -2.0)
            costs = anchors.segment_costs(planner, forecast, gram, at, model)
            paths = anchors.cheapest_anchors(costs, at, len(at))
            return [paths[count] for count in self._bench.sizes.variant_counts if count in paths]

        forecasts = [
            Forecast(quantity, order, look_back)
            for quantity in self._bench.planner.sampler.kinds
            for order in ORDERS
            for look_back in (False, True)
        ]
        members = []
        for forecast in forecasts[:: self._bench.sizes.every]:
            own = {name: getattr(forecast, name) for name in ("quantity", "order", "look_back")}
            look_back = "lookback" if forecast.look_back else "plain"
            name = f"variant-{forecast.quantity}-{forecast.order}-{look_back}"
            kept = self._kept("variants.json", name, partial(tune, forecast))
            for order, chosen in enumerate(kept):
                program = Program(forecast, Static(tuple(chosen)))
                settings = {**own, "evaluations": len(chosen), "plan": program.plan.to_json()}
                members.append(self._member(name, order, settings, program, driven=False))
        return members

    @cached_property
    def _grams(self) -> dict[Any, Any]:
        chain = self._frontier("static", TOLERANCE).chain
        return anchors.prediction_grams(self._bench.planner, chain)

    def baselines(self) -> list[Member]:
        """FixedSkip as the paper has it, and the tuned alternatives, each at many evaluations."""

        def tune(count: int) -> list[dict[str, Any]]:
            # Which are best does not depend on the tolerance, a number here.
            if self._rivals is None:
                self._rivals = AlternativeSearch(self._bench.calls(TUNE), TOLERANCE, SHARE)
            return [found.to_json() for found in self._rivals.best(count).values()]

        planner = self._bench.planner
        counts = [count for count in self._bench.sizes.counts if count < len(planner.sampler)]
        members = []
        for order, count in enumerate(counts):
            skip, settings = fixed_skip(planner, count), {"evaluations": count}
            members.append(self._member("fixedskip", order, settings, skip))
            kept = self._kept("alternatives.json", str(count), partial(tune, count))
            for found in map(Alternative.from_json, kept):
                more = {**settings, "table": found.table.method, "timesteps": found.timesteps}
                members.append(Member(found.name, order, more, found.run(planner)))
        return members

    def _member(
        self, method: str, at: int, settings: Any, program: AnyProgram, **more: bool
    ) -> Member:
        planner = self._bench.planner
        runtime = runtime_for(planner, program, strict=True)
        if isinstance(program, Program) and self._bench.device.type == "cuda":
            runtime = RoundRuntime(
                planner, program, strict=True
            )  # rows at different steps together
        return Member(method, at, settings, called(runtime), **more)

    def _frontier(self, kind: str, tolerance: float) -> Frontier:
        """The search of a kind: of all methods, or of our forecasts without fitting."""
        name = (kind == "frontier", tolerance)
        if name not in self._searches:
            if kind == "frontier":
                advance = self._bench.task(f"tune for {tolerance:g}", None)
                found = Frontier(self._bench.calls(TUNE), tolerance, SHARE, advance=advance)
            else:
                found = self._frontier("frontier", tolerance).restricted({"forecast"})
            self._searches[name] = found
        return self._searches[name]

    def _kept(
        self, file: str, name: str, tune: Callable[[], Any], indent: int | None = None
    ) -> Any:
        """The entry of a file, tuned and written if it is not there."""
        path = self._bench.folder / file
        stored = json.loads(path.read_text()) if path.is_file() else {}
        if name not in stored:
            stored[name] = tune()
            write_whole(path, json.dumps(stored, indent=indent or None) + "\n")
        return stored[name]
