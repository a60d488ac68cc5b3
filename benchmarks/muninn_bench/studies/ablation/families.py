"""The study's programs that need no probe: certified families, their variants, and baselines."""

from __future__ import annotations

import json

from torch import Tensor

from muninn.certify.search import FIRST, Candidate, Search
from muninn.context import Context
from muninn.engines.rounds import RoundRuntime
from muninn.engines.runtime import Runtime
from muninn.files import write_whole
from muninn.model.planner import Noise
from muninn.programs.forecast import ORDERS, Forecast
from muninn.programs.plan import Family, Program, Static
from muninn.record import Record
from muninn_bench.measure.alternatives import Alternative, AlternativeSearch
from muninn_bench.measure.baselines import fixed_skip
from muninn_bench.measure.protocol import plain
from muninn_bench.studies.ablation.settings import RISK, TOLERANCE
from muninn_bench.studies.ablation.workbench import TUNE, Member, Run, Workbench

SHARE = 0.6 * RISK
"""Of tuning calls that may exceed the tolerance: somewhat below the risk to be certified."""


def program_run(workbench: Workbench, program: Program) -> Run:
    """A program of ours as the study runs it."""
    # On a GPU, rows at different steps in one round; on a CPU the reference runtime is as fast.
    engine = RoundRuntime if workbench.device.type == "cuda" else Runtime
    runtime = engine(workbench.planner, program, strict=True)

    def run(context: Context, noise: Noise) -> tuple[Tensor, Record]:
        return runtime(context, noise=noise)

    return run


def full_member(workbench: Workbench) -> Member:
    """Full compute."""
    return Member("full", 0, {}, plain(workbench.planner))


class Tuner:
    """Plans tuned on the tuning stream, each once: rounding on another device would give others.

    Families are kept in ``families.json``, the plans of table (vii) in ``variants.json``, the
    samplers that Muninn is compared with in ``alternatives.json``.
    """

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self._path = workbench.folder / "families.json"
        self._variants = workbench.folder / "variants.json"
        self._rivals = workbench.folder / "alternatives.json"
        self._searches: dict[float, Search] = {}
        self._rival_search: AlternativeSearch | None = None

    def family(self, kind: str, tolerance: float) -> Family:
        """The ``static`` or ``adaptive`` family for a tolerance."""
        stored = json.loads(self._path.read_text()) if self._path.is_file() else {}
        name = f"{kind}-{tolerance:g}"
        if name not in stored:
            family = self._static(tolerance) if kind == "static" else self._adaptive(tolerance)
            stored[name] = family.to_json()
            write_whole(self._path, json.dumps(stored, indent=1) + "\n")
        return Family.from_json(stored[name])

    def variant(self, forecast: Forecast, tolerance: float) -> list[Static]:
        """Static plans of one forecast at many numbers of evaluations."""
        stored = json.loads(self._variants.read_text()) if self._variants.is_file() else {}
        name = variant_name(forecast)
        if name not in stored:
            candidate = Candidate(forecast, FIRST)
            plans: dict[int, list[int]] = {}
            for count in self._workbench.sizes.variant_counts:
                plan = self.search(tolerance).program(candidate, count).plan.to_json()
                plans.setdefault(len(plan["anchors"]), plan["anchors"])
            stored[name] = list(plans.values())
            write_whole(self._variants, json.dumps(stored) + "\n")
        return [Static(tuple(anchors)) for anchors in stored[name]]

    def alternatives(self, count: int) -> dict[str, Alternative]:
        """Tuned alternatives; which are best does not depend on the tolerance, a number here."""
        stored = json.loads(self._rivals.read_text()) if self._rivals.is_file() else {}
        if str(count) not in stored:
            if self._rival_search is None:
                calls = self._workbench.calls(TUNE)
                self._rival_search = AlternativeSearch(calls, TOLERANCE, SHARE)
            found = self._rival_search.best(count)
            stored[str(count)] = [alternative.to_json() for alternative in found.values()]
            self._rivals.write_text(json.dumps(stored) + "\n")
        made = (Alternative.from_json(entry) for entry in stored[str(count)])
        return {alternative.name: alternative for alternative in made}

    def search(self, tolerance: float) -> Search:
        """Static plans for a tolerance."""
        if tolerance not in self._searches:
            paired = self._workbench.calls(TUNE)
            advance = self._workbench.task(f"tune for {tolerance:g}", 150)
            self._searches[tolerance] = Search(paired, tolerance, SHARE, advance=advance)
        return self._searches[tolerance]

    def _static(self, tolerance: float) -> Family:
        search = self.search(tolerance)
        return search.static_family(*search.rank()).family

    def _adaptive(self, tolerance: float) -> Family:
        static = self.family("static", tolerance)
        found = self.search(tolerance).adaptive_family([static.forecast])
        return static if found is None else found.family


def certified_members(
    workbench: Workbench, tuner: Tuner, kind: str, tolerance: float
) -> list[Member]:
    """The members of a certified family but full compute."""
    family = tuner.family(kind, tolerance)
    members = []
    for order, plan in enumerate(family.plans[1:]):
        described = plan.to_json()
        settings = {
            "tolerance": tolerance,
            "forecast": family.forecast.to_json(),
            "plan": described,
        }
        if "anchors" in described:
            settings["evaluations"] = len(described["anchors"])
        else:
            settings["threshold"] = described["threshold"]
        run = program_run(workbench, Program(family.forecast, plan))
        members.append(Member(f"{kind}-{tolerance:g}", order, settings, run))
    return members[:: workbench.sizes.every]


def variant_name(forecast: Forecast) -> str:
    """The method that a forecast is in table (vii)."""
    look_back = "lookback" if forecast.look_back else "plain"
    return f"variant-{forecast.quantity}-{forecast.order}-{look_back}"


def variant_members(
    workbench: Workbench, tuner: Tuner, forecast: Forecast, tolerance: float
) -> list[Member]:
    """Static plans of one forecast at many numbers of evaluations, for table (vii)."""
    members = []
    for order, plan in enumerate(tuner.variant(forecast, tolerance)):
        settings = {
            "quantity": forecast.quantity,
            "order": forecast.order,
            "look_back": forecast.look_back,
            "evaluations": len(plan.anchors),
            "plan": plan.to_json(),
        }
        run = program_run(workbench, Program(forecast, plan))
        members.append(Member(variant_name(forecast), order, settings, run, driven=False))
    return members


def variants(workbench: Workbench, tuner: Tuner, tolerance: float) -> list[list[Member]]:
    """Every forecast of table (vii)."""
    forecasts = [
        Forecast(quantity, order, look_back)
        for quantity in workbench.planner.sampler.kinds
        for order in ORDERS
        for look_back in (False, True)
    ]
    return [
        variant_members(workbench, tuner, forecast, tolerance)
        for forecast in forecasts[:: workbench.sizes.every]
    ]


def baseline_members(workbench: Workbench, tuner: Tuner) -> list[list[Member]]:
    """FixedSkip as the paper has it, and the tuned alternatives, each at many evaluations."""
    planner = workbench.planner
    counts = [count for count in workbench.sizes.counts if count < len(planner.sampler)]
    families: dict[str, list[Member]] = {"fixedskip": []}
    for order, count in enumerate(counts):
        skip = program_run(workbench, fixed_skip(planner, count))
        families["fixedskip"].append(Member("fixedskip", order, {"evaluations": count}, skip))
        for name, found in tuner.alternatives(count).items():
            settings = {
                "evaluations": count,
                "solver_order": found.order,
                "timesteps": [state.timestep for state in found.states],
            }
            member = Member(name, order, settings, found.run(planner))
            families.setdefault(name, []).append(member)
    return list(families.values())
