"""What a survey found, as a table, advice in sentences, a file and a picture."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from muninn.certify.metrics import in_words
from muninn.errors import InputError

COUNTS = (2, 3, 4, 5, 6, 8, 10, 13, 18, 25)
TITLES = {"muninn": "Muninn", "fewsteps": "fewer steps", "dpmsolver": "DPM-Solver++"}
RIVALS = ("fewsteps", "dpmsolver")
"""What a user would pick instead, each on its own."""


@dataclass(frozen=True)
class Row:
    """What one method does with so many evaluations, on calls that it was not fitted on."""

    method: str  # "muninn" for the best of all, else the name of an alternative
    evaluations: int
    deviation: float  # that 95% of the calls stay below
    program: str
    passed: float | None = None  # share of the plans that pass the user's check
    certifiable: float | None = None  # tolerance that calibrating will probably certify


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
    given: int = 0  # calls that calibrating will be given; 0 for episodes: nothing is estimated
    certify: int = 0  # of them certify,
    allowed: int = -1  # and so many of these may exceed the tolerance; -1: they are too few

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
        floor = max(self.step_size or 0.0, self.rounding)
        said = []
        for tolerance in (_round_up(4.0 * floor), _round_up(0.05 * self.noise)):
            ours, theirs = self.fewest(tolerance), self.fewest(tolerance, RIVALS[0])
            if ours is not None:
                rival = f"fewer sampler steps {theirs}" if theirs else "fewer sampler steps do not"
                within = self._size(tolerance)
                said.append(f"A tolerance of {within} needs about {ours} evaluations ({rival}")
                said[-1] += ")" if theirs else f" with up to {max(COUNTS)})"
                if self.allowed >= 0:
                    certified = self.certified(tolerance)
                    many = f"more than {max(COUNTS)}" if certified is None else str(certified)
                    said[-1] += f", and {many} to be certified from {self.given:,} calls"
                said[-1] += "."
        said = list(dict.fromkeys(said))
        if self.step_size is not None:
            least = self._size(self.step_size, 2)
            said.append(f"Below {least} you would certify your sampler's step size.")
        apart = self._size(self.noise, 2)
        said.append(f"Two noises differ by {apart}: near that a promise means nothing.")
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
        sizes = {r.evaluations: r.certifiable for r in self.rows if r.method == "muninn"}
        for cells, count in zip(rows, counts, strict=True):
            size = sizes.get(count)
            cells.append("?" if size is None else f"{size:.2g}")
        return ["evaluations", *(TITLES[name] for name in names), "certified"], rows

    def heading(self) -> str:
        """What the table shows, in a sentence."""
        unit = self.unit or in_words(self.metric)
        checked = "" if self.passed is None else " (and the share of plans that pass your check)"
        said = (
            f"Deviation, {unit}, that 95% of {self.calls} calls stay below{checked}; full compute "
            f"takes {self.steps} evaluations"
            f"{'' if self.passed is None else f' and passes {self.passed:.0%}'}."
        )
        if not self.given:
            return said
        reached = f"the tolerance that calibrating on {self.given:,} calls probably reaches"
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
