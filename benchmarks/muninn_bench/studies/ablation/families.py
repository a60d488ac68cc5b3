"""The study's programs that need no probe: certified families, their variants, and baselines."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from muninn.certify.search import FIRST, Candidate, Search

from muninn.engines.rounds import RoundRuntime
from muninn.engines.runtime import Runtime
from muninn.files import write_whole
from muninn.programs.forecast import ORDERS, AnyForecast, Forecast
from muninn.programs.plan import Family, Plan, Program, Static
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
        self._searches: dict[float, Search] = {}
        self._rivals: AlternativeSearch | None = None

    def family(self, kind: str, tolerance: float) -> Family:
        """The ``static`` or ``adaptive`` family for a tolerance."""

        def tune() -> dict[str, Any]:
            search = self._search(tolerance)
            if kind == "static":
                return search.static_family(*search.rank()).family.to_json()
            static = self.family("static", tolerance)
            found = search.adaptive_family([static.forecast])
            return (static if found is None else found.family).to_json()

        return Family.from_json(self._kept("families.json", f"{kind}-{tolerance:g}", tune, 1))

    def certified(self, kind: str, tolerance: float) -> list[Member]:
        """The members of a certified family but full compute."""
        family = self.family(kind, tolerance)
        members = []
        for order, plan in enumerate(family.plans[1:]):
            described, forecast = plan.to_json(), family.forecast
            settings = {"tolerance": tolerance, "forecast": forecast.to_json(), "plan": described}
            if "anchors" in described:
                settings["evaluations"] = len(described["anchors"])
            else:
                settings["threshold"] = described["threshold"]
            members.append(self._member(f"{kind}-{tolerance:g}", order, settings, forecast, plan))
        return members[:: self._bench.sizes.every]

    def variants(self) -> list[Member]:
        """Every forecast of table (vii), each as static plans at many numbers of evaluations."""

        def tune(forecast: Forecast) -> list[list[int]]:
            plans: dict[int, list[int]] = {}
            for count in self._bench.sizes.variant_counts:
                program = self._search(TOLERANCE).program(Candidate(forecast, FIRST), count)
                anchors = program.plan.to_json()["anchors"]
                plans.setdefault(len(anchors), anchors)
            return list(plans.values())

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
            for order, anchors in enumerate(kept):
                plan = Static(tuple(anchors))
                settings = {**own, "evaluations": len(anchors), "plan": plan.to_json()}
                members.append(self._member(name, order, settings, forecast, plan, driven=False))
        return members

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
            members.append(self._member("fixedskip", order, settings, skip.forecast, skip.plan))
            kept = self._kept("alternatives.json", str(count), partial(tune, count))
            for found in map(Alternative.from_json, kept):
                timesteps = [state.timestep for state in found.states]
                more = {**settings, "solver_order": found.order, "timesteps": timesteps}
                members.append(Member(found.name, order, more, found.run(planner)))
        return members

    def _member(
        self, method: str, at: int, settings: Any, forecast: AnyForecast, plan: Plan, **more: bool
    ) -> Member:
        # On a GPU, rows at different steps in one round; on a CPU the reference runtime is as fast.
        engine = RoundRuntime if self._bench.device.type == "cuda" else Runtime
        runtime = engine(self._bench.planner, Program(forecast, plan), strict=True)
        return Member(method, at, settings, called(runtime), **more)

    def _search(self, tolerance: float) -> Search:
        if tolerance not in self._searches:
            advance = self._bench.task(f"tune for {tolerance:g}", 150)
            calls = self._bench.calls(TUNE)
            self._searches[tolerance] = Search(calls, tolerance, SHARE, advance=advance)
        return self._searches[tolerance]

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
