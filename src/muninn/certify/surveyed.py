"""What a survey found, as a table, advice in sentences, a file and a picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from muninn.certify.alternatives import TITLES
from muninn.certify.metrics import in_words
from muninn.errors import InputError

COUNTS = (2, 3, 4, 5, 6, 8, 10, 13, 18, 25)
RIVALS = ("fewsteps", "dpmsolver")
"""What a user would pick instead, each on its own."""

OFFERED = (25, 10, 5)
"""Evaluations that Muninn may take at the tolerances that advice names."""


@dataclass(frozen=True)
class Row:
    """What one method does with so many evaluations, on calls that it was not fitted on."""

    method: str  # "muninn" for the best of all, else the name of an alternative
    evaluations: int
    deviation: float  # that 95% of the calls stay below
    program: str
    passed: float | None = None  # share of the plans that pass the user's check
    certifiable: float | None = None  # tolerance that calibrating will probably certify
    beyond: float | None = None  # share of calls beyond the tolerance that was asked for
    likely: float | None = None  # probability that calibrating certifies that tolerance
    one_call: bool = False  # without the worst call, ``certifiable`` would be far smaller
    median: float = 0.0  # deviation of the typical call
    strayed: float = 0.0  # share of calls that take another route than full compute


@dataclass(frozen=True)
class Survey:
    """Deviation against evaluations, and three marks to read it by, all in the metric's unit."""

    metric: str
    steps: int
    calls: int
    rows: list[Row]
    rounding: float  # full compute of a call alone, against the same in a batch
    # Full compute against a solver of higher order on the same steps; None if it is stochastic.
    step_size: float | None
    noise: float  # full compute with one noise, against another, in the median
    unit: str = ""  # of the metric, where it has one
    passed: float | None = None  # share of full compute's plans that pass the user's check
    given: int = 0  # calls that calibrating will be given; 0 for episodes: nothing is estimated
    certify: int = 0  # of them certify,
    allowed: int = -1  # and so many of these may exceed the tolerance; -1: they are too few
    tolerance: float | None = None  # that was asked for
    weighted: bool = False  # calls that Muninn fitted tables on count half

    def __str__(self) -> str:
        """The table and the advice."""
        return self.markdown()

    def fewest(self, tolerance: float, method: str = "muninn") -> int | None:
        """The fewest evaluations with which a method stayed below a tolerance, or None."""
        kept = [r.evaluations for r in self.rows if r.method == method and r.deviation <= tolerance]
        return min(kept, default=None)

    def certified(self, tolerance: float) -> int | None:
        """The fewest evaluations, the same for every call, that calibrating will probably certify
        for a tolerance; None if none of those that were tried."""
        sizes = {r.evaluations: r.certifiable for r in self.rows if r.method == "muninn"}
        return min((k for k, s in sizes.items() if s is not None and s <= tolerance), default=None)

    def advice(self) -> str:
        """What to make of it, in plain sentences."""
        asked = self._worth_a_look() if self.tolerance is None else [self.tolerance]
        said = [*map(self._needed, asked), *self._routes()]
        if self.step_size is None:
            said.append(
                "Your sampler is stochastic: its step-size error cannot be told from its noise, so "
                "none is shown."
            )
        else:
            least = self._size(self.step_size, 2)
            said.append(f"Below {least} you would certify your sampler's step size.")
        said.append(
            f"Plans from two noises are {self._size(self.noise, 2)} apart in the median: near that "
            "a promise means nothing."
        )
        if not self.given:
            said.append(
                "What will be certified of episodes is not estimated: the worst call counts."
            )
        elif self.allowed < 0:
            said.append(f"{self.given:,} calls are too few for a certificate.")
        else:
            said.append(
                f"Of {self.given:,} calls {self.certify:,} certify, and {self.allowed} of these "
                "may exceed the tolerance: more calls allow a larger share, and fewer evaluations. "
                "Where some calls are hard, calibrating may find a program that spends more on "
                "these and less on average."
            )
        return " ".join(said)

    def _worth_a_look(self) -> list[float]:
        """Two or three tolerances, smallest first: between step size and noise, where programs keep
        these; else what Muninn reaches with many and few evaluations; else shares of the noise."""
        floor, noise = max(self.step_size or 0.0, self.rounding), self.noise or math.inf
        marks = (_round_up(4.0 * floor), _round_up(0.05 * self.noise))
        found = {tolerance for tolerance in marks if self.fewest(tolerance)}
        own = [row for row in self.rows if row.method == "muninn"]
        if len(found) < 2 and own:
            near = [min(own, key=lambda r: abs(math.log(r.evaluations / k))) for k in OFFERED]
            reached = {_round_up(max(row.deviation, floor)) for row in near}
            below = {tolerance for tolerance in reached if tolerance < noise}
            found = below if len(below) > 1 else found | below
        if len(found) < 2:
            found |= {_round_up(share * self.noise) for share in (0.05, 0.2)}
        return sorted(found)

    def _needed(self, tolerance: float) -> str:
        """What a tolerance costs, in a sentence."""
        ours, theirs = self.fewest(tolerance), self.fewest(tolerance, RIVALS[0])
        most, within = max(row.evaluations for row in self.rows), self._size(tolerance)
        if ours is None:
            said = f"No program with up to {most} evaluations keeps 95% of calls within {within}"
        else:
            rival = f"{theirs})" if theirs else f"do not with up to {most})"
            said = f"A tolerance of {within} needs about {ours} evaluations "
            said += f"(fewer sampler steps {rival}"
        if self.allowed >= 0:
            certified = self.certified(tolerance)
            many = f"more than {most}" if certified is None else str(certified)
            if ours is not None or certified is not None:
                said += f", and {many} to be certified from {self.given:,} calls"
        return f"{said}."

    def _routes(self) -> list[str]:
        """What it means that some calls take another route than full compute, if some do."""
        met = [row for row in self.rows if row.strayed > 0.0]
        own = [row for row in met if row.method == "muninn"]
        if not met:
            return []
        last = max(own or met, key=lambda row: row.evaluations)
        said = (
            f"Some calls take another route than full compute: with {last.evaluations} evaluations "
            f"({TITLES[last.method]}) {last.strayed:.1%} end nearly as far away as with another "
            f"noise, while half stay below {self._size(last.median, 2)}. So deviations may rise "
            "with more evaluations"
        )
        if own:
            said += (
                ", and a few calls decide what is certified. More calls tell more; a larger risk "
                "allows more of these calls"
            )
            if self.tolerance is None:
                said += "; with --tolerance (tolerance=) you see the share of calls beyond it"
        return [f"{said}."]

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
        at = {(row.method, row.evaluations): row for row in self.rows}
        rows = []
        for count in counts:
            found = [at.get((name, count)) for name in names]
            cells = ["" if row is None else _cell(row) for row in found]
            rows.append([str(count), *cells, _certified(at.get(("muninn", count)))])
        return ["evaluations", *(TITLES[name] for name in names), "certified"], rows

    def heading(self) -> str:
        """What the table shows, in a sentence."""
        unit = self.unit or in_words(self.metric)
        checked = "" if self.passed is None else " (and the share of plans that pass your check)"
        shown = f"Deviation, {unit}, that 95% of {self.calls} calls stay below"
        if self.tolerance is not None:
            shown = f"Share of {self.calls} calls that deviate by more than {self.tolerance:g}, "
            shown += unit
        if self.weighted:
            shown += " (for Muninn, calls that tables were fitted on count half)"
        said = (
            f"{shown}{checked}; full compute takes {self.steps} evaluations"
            f"{'' if self.passed is None else f' and passes {self.passed:.0%}'}."
        )
        if not self.given:
            return said
        if self.tolerance is not None:
            return (
                f"{said} Certified: estimated probability that a program with so many evaluations "
                f"passes when {self.given:,} calls are calibrated."
            )
        reached = f"the tolerance that calibrating on {self.given:,} calls probably reaches"
        if any(row.one_call for row in self.rows if row.method == "muninn"):
            reached += "; with a question mark, a single call decides it"
        return f"{said} Certified: {reached}."

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
        marks: dict[str, float | None] = {
            "rounding": self.rounding,
            "your sampler's step size": self.step_size,
        }
        marks["your tolerance"] = self.tolerance
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


def _cell(row: Row) -> str:
    """What a method does with so many evaluations."""
    said = f"{row.deviation:.2g}" if row.beyond is None else f"{row.beyond:.1%}"
    return said if row.passed is None else f"{said} ({row.passed:.0%})"


def _certified(row: Row | None) -> str:
    """What calibrating will make of it; a question mark where so few calls cannot tell."""
    if row is None or (row.certifiable is None and row.likely is None):
        return "?"
    if row.beyond is not None:
        return "?" if row.likely is None else f"{row.likely:.0%}"
    return f"{row.certifiable:.2g}{'?' if row.one_call else ''}"


def require_drawing() -> None:
    """Raise InputError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise InputError("a picture needs matplotlib: pip install matplotlib")


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
