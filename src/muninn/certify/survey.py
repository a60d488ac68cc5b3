"""Survey: how few evaluations at which deviation, before anybody chooses a tolerance.

It touches only the calls that :func:`muninn.calibrate` would tune on under the same seed: a
tolerance that was chosen by looking at certify calls would void the promise.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from muninn.certify.calibrate import split_units, whole
from muninn.certify.frontier import Frontier, ladder
from muninn.certify.metrics import Judge, Metric, in_words, measure, one_each, resolve
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.units import units_of
from muninn.context import Context
from muninn.engines.choose import runtime_for
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.parallel import Workers, workers_of
from muninn.programs.plan import AnyProgram
from muninn.programs.spacing import sampler_states
from muninn.progress import bars

CALLS = 64
"""Most tuning calls that are looked at."""

COUNTS = (2, 3, 4, 5, 6, 8, 10, 13, 18, 25)
TITLES = {"muninn": "Muninn", "fewsteps": "fewer steps", "dpmsolver": "DPM-Solver++"}
RIVALS = ("fewsteps", "dpmsolver")
"""What a user would pick instead, each on its own."""

SHARE = 0.05
"""Of calls that a deviation leaves out: deviations are those that 95% of the calls stay below."""

FEW = 8
"""Calls that show rounding."""


@dataclass(frozen=True)
class Row:
    """What one method does with so many evaluations, on calls that it was not fitted on."""

    method: str  # "muninn" for the best of all, else the name of an alternative
    evaluations: int
    deviation: float  # that 95% of the calls stay below
    program: str
    passed: float | None = None  # share of the plans that pass the user's check


@dataclass(frozen=True)
class Survey:
    """Deviation against evaluations, and three marks to read it by, all in the metric's unit."""

    metric: str
    steps: int
    calls: int
    rows: list[Row]
    rounding: float  # full compute of a call alone, against the same in a batch
    step_size: float | None  # full compute against a solver of higher order on the same steps
    noise: float  # full compute with one noise, against another
    unit: str = ""  # of the metric, where it has one
    passed: float | None = None  # share of full compute's plans that pass the user's check

    def fewest(self, tolerance: float, method: str = "muninn") -> int | None:
        """The fewest evaluations with which a method stayed below a tolerance, or None."""
        kept = [r.evaluations for r in self.rows if r.method == method and r.deviation <= tolerance]
        return min(kept, default=None)

    def advice(self) -> str:
        """What to make of it, in plain sentences."""
        floor = max(self.step_size or 0.0, self.rounding)
        said = []
        for tolerance in (_round_up(4.0 * floor), _round_up(0.05 * self.noise)):
            ours, theirs = self.fewest(tolerance), self.fewest(tolerance, RIVALS[0])
            if ours is not None:
                rival = f"fewer sampler steps {theirs}" if theirs else "fewer sampler steps do not"
                within = self._size(tolerance)
                said.append(f"A tolerance of {within} needs about {ours} evaluations ({rival}")
                said[-1] += ")." if theirs else f" with up to {max(COUNTS)})."
        said = list(dict.fromkeys(said))
        if self.step_size is not None:
            least = self._size(self.step_size, 2)
            said.append(f"Below {least} you would certify your sampler's step size.")
        apart = self._size(self.noise, 2)
        said.append(f"Two noises differ by {apart}: near that a promise means nothing.")
        said.append(
            "A certificate takes more where it is made from few calls: then hardly any may violate."
        )
        return " ".join(said)

    def _size(self, value: float, digits: int = 6) -> str:
        """A deviation with its unit."""
        return f"{value:.{digits}g} {self.unit}".strip()

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "advice": self.advice()}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows of text: a row for every number of evaluations."""
        names = list(dict.fromkeys(row.method for row in self.rows))
        counts = sorted({row.evaluations for row in self.rows})
        at = {
            (row.method, row.evaluations): f"{row.deviation:.2g}"
            + ("" if row.passed is None else f" ({row.passed:.0%})")
            for row in self.rows
        }
        rows = [[str(count), *(at.get((name, count), "") for name in names)] for count in counts]
        return ["evaluations", *(TITLES[name] for name in names)], rows

    def heading(self) -> str:
        """What the table shows, in a sentence."""
        unit = self.unit or in_words(self.metric)
        checked = "" if self.passed is None else " (and the share of plans that pass your check)"
        return (
            f"Deviation, {unit}, that 95% of {self.calls} calls stay below{checked}; full compute "
            f"takes {self.steps} evaluations"
            f"{'' if self.passed is None else f' and passes {self.passed:.0%}'}."
        )

    def markdown(self) -> str:
        """The table and the advice."""
        head, rows = self.table()
        lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
        lines.insert(1, "|" + "---|" * len(head))
        return f"{self.heading()}\n\n" + "\n".join(lines) + f"\n\n{self.advice()}\n"

    def picture(self, path: str | Path) -> Path:
        """Draw it; InputError without matplotlib."""
        require_drawing()
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axis = figure.subplots()
        colours = {"muninn": "#1f6f8b", "fewsteps": "#8a8f94", "dpmsolver": "#c77d3a"}
        for name in dict.fromkeys(row.method for row in self.rows):
            own = [row for row in self.rows if row.method == name]
            axis.plot(
                [row.evaluations for row in own],
                [row.deviation for row in own],
                "o-",
                label=TITLES[name],
                color=colours.get(name),
                linewidth=2.2 if name == "muninn" else 1.2,
            )
        marks = {"rounding": self.rounding, "your sampler's step size": self.step_size}
        for words, level in {**marks, "another noise": self.noise}.items():
            if level:
                axis.axhline(level, color="#b5b9bd", linewidth=0.9, linestyle="--")
                axis.annotate(
                    words, (1.0, level), xycoords=("axes fraction", "data"), xytext=(-4, 2),
                    textcoords="offset points", ha="right", fontsize=8, color="#6b7075",
                )  # fmt: skip
        axis.set(
            xscale="log",
            yscale="log",
            xlabel=f"network evaluations a call (full compute: {self.steps})",
        )
        axis.set_ylabel(f"95% of calls within, {self.unit or in_words(self.metric)}")
        counts = sorted({row.evaluations for row in self.rows})
        axis.set_xticks(counts, [str(count) for count in counts], minor=False)
        axis.minorticks_off()
        axis.legend(frameon=False)
        figure.savefig(path, dpi=130)
        return Path(path)


def require_drawing() -> None:
    """Raise InputError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise InputError("a picture needs matplotlib: pip install matplotlib")


def survey(
    planner: Planner,
    contexts: Context | int,
    *,
    metric: str | Metric = "rms_step",
    check: Judge | None = None,
    risk: float = 0.05,
    seed: int = 0,
    batch_size: int = 32,
    workers: Workers = None,
    progress: bool = True,
) -> Survey:
    """How few evaluations a planner needs, at which deviation from full compute.

    Args:
        planner: what will be deployed.
        contexts: those that will be given to :func:`muninn.calibrate`, or how many calls.
        metric, risk, seed, batch_size: as in :func:`muninn.calibrate`; contexts, risk and seed fix
            the calls that tuning may see, and only those are looked at. The metric may name its
            unit in an attribute ``unit``.
        check: ``check(plan, context) -> (batch,)``, whether plans are good, as in
            :func:`muninn.certify.metrics.harm`: how many are, at which number of evaluations.
        workers: who tries programs, as in :func:`muninn.calibrate`; tables are fitted here.
        progress: show a progress bar.

    Raises:
        InputError: an argument does not fit.
        CalibrationError: too few calls for the risk; says how many are needed.
    """
    if not isinstance(planner, Planner):
        raise InputError(f"planner is a muninn.Planner, got {type(planner).__name__}")
    name, deviation = resolve(metric)
    seed, batch = whole("seed", seed), whole("batch_size", batch_size, at_least=1)
    units = units_of(planner, contexts, deviation, 1.0, "call", None, seed, batch, None)
    split = split_units(units.count, risk, None, tune=True, seed=seed)
    paired = units.for_tuning(split["tune"][:CALLS])
    rows: list[Row] = []
    with workers_of(workers, planner.device) as crew, bars(progress) as task:
        advance = task("survey: programs tried", None)
        frontier = Frontier(paired, 1.0, SHARE, advance=advance, workers=crew)
        counts = [count for count in ladder(len(planner.sampler)) if count in COUNTS]
        ways = {"muninn": frontier} | {
            rival: frontier.restricted({rival})
            for rival in RIVALS
            if any(method.group == rival for method in frontier.methods.values())
        }
        for method, way in ways.items():
            for count in sorted(counts, key=lambda count: abs(math.log(count / 8))):
                best = way.best(count, move=False)
                passed = None if check is None else _passed(paired, best.program, check)
                rows.append(Row(method, count, best.excess, str(best.program), passed))
        passed = None if check is None else _passed(paired, None, check)
        marks, unit = _marks(frontier), str(getattr(deviation, "unit", ""))
    rows.sort(key=lambda row: (list(ways).index(row.method), row.evaluations))
    return Survey(name, len(planner.sampler), paired.count, rows, *marks, unit, passed)


def _passed(paired: PairedCalls, program: AnyProgram | None, check: Judge) -> float:
    """The share of plans that pass a check, of a program, or of full compute, which is known."""
    calls = list(range(paired.count))
    if program is None:
        plans = paired.full(calls)
    else:
        plans, _ = runtime_for(paired.planner, program)(paired.context, noise=paired.noise(calls))
    return float(one_each("check", check(plans, paired.context), len(calls)).mean())


def _marks(frontier: Frontier) -> tuple[float, float | None, float]:
    """Rounding, the sampler's step-size error, and the spread between two noises."""
    paired: PairedCalls = frontier.paired
    few = list(range(min(FEW, paired.count)))
    alone = replace(paired, batch=1, known={})
    single = torch.cat([alone.full([call]) for call in few])
    rounding = float(measure(paired.metric, paired.full(few), single, paired.contexts(few)).max())
    sampler, fine = paired.planner.sampler, None
    for solver in ("dpmsolver-3", "adams-3"):
        if solver in frontier.methods:
            table = frontier.methods[solver].build(sampler, sampler_states(sampler))
            fine = float(np.median(frontier.excess(table, 4 * FEW)[:-1]))
            break
    calls = list(range(min(4 * FEW, paired.count)))
    other = replace(paired, seed=call_seed(paired.seed, 3), known={})
    apart = measure(paired.metric, paired.full(calls), other.full(calls), paired.contexts(calls))
    return rounding, fine, float(np.median(apart))


def _round_up(value: float) -> float:
    """To one digit, 1, 2 or 5.

    >>> [_round_up(value) for value in (0.0013, 0.3, 7.0)]
    [0.002, 0.5, 10.0]
    """
    if value <= 0.0:
        return 1e-6
    power = 10.0 ** math.floor(math.log10(value))
    return float(
        f"{next(step for step in (1, 2, 5, 10) if step * power >= value * 0.999) * power:.3g}"
    )
