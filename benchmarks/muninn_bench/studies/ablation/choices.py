"""Who is certified, which heuristic stops where, and the figures of what was chosen.

Everything is a function of measured cells; nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.isotonic import IsotonicRegression

from muninn.certify.certificate import Bound
from muninn.certify.risk import choose_member, order_statistic
from muninn.errors import CalibrationError
from muninn.model.schedule import FloatArray
from muninn_bench.measure.statistics import mean, proportion
from muninn_bench.report.style import BLUE, GREEN, INK, PINK, SKY, YELLOW
from muninn_bench.report.table import Row, Value
from muninn_bench.studies.ablation.raw import CALIBRATE, TEST, Cell, Raw

TOO_FEW = "too few calls"
NOT_MEASURED = "not measured"
HEURISTIC_CALLS = 100
"""Said in words above table (ii) as well."""

METHODS = {
    "full": ("full compute", INK, "*"),
    "static": ("our cache, static plan", BLUE, "o"),
    "adaptive": ("our cache, adaptive gate", SKY, "D"),
    "frontier": ("our cache, frontier", INK, "P"),
    "fewsteps": ("fewer steps", YELLOW, "v"),
    "dpmsolver": ("DPM-Solver++", GREEN, "^"),
    "unipc": ("UniPC", "#0B5D45", "<"),
    "taylor": ("Taylor series", PINK, "s"),
    "fixedskip": ("fixed skip", "#999999", "x"),
    "probethresh": ("probe threshold", "#8C6D1F", "+"),
    "teacache": ("TeaCache", "#B8A000", "1"),
    "probegate": ("probe gate, our forecast", "#332288", "*"),
}
"""Title, colour and marker, which tells lines apart without colour."""
TITLES = {kind: title for kind, (title, *_) in METHODS.items()}
CERTIFIED = {kind: TITLES[kind].replace("our", "certified") for kind in tuple(TITLES)[1:4]}
BASELINES = tuple(TITLES)[4:-1]


def title_of(method: str, *, tuned: bool = True) -> str:
    """A method's name for people, with the tolerance it was tuned for.

    Not ``tuned``, it is the name in a table in which every row is certified.

    >>> title_of("static-0.05"), title_of("static-0.05", tuned=False)
    ('our cache, static plan (tuned for 0.05)', 'certified cache, static plan')
    """
    kind, _, rest = method.partition("-")
    if kind == "variant":
        return "variant: " + rest.replace("-", ", ")
    if not tuned:
        return {**TITLES, **CERTIFIED}[kind]
    return TITLES.get(kind, kind) + (f" (tuned for {rest})" if rest else "")


# -- choices ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The member of a family that a rule chose, and its cells on both streams."""

    place: int  # in the family, -1 for full compute
    calibrate: Cell | None  # None for full compute or no choice
    test: Cell | None
    why: str = ""  # there is no test cell: too few calls, or not measured

    @property
    def member(self) -> int | str | None:
        """Its place, or ``full``; None where nothing was chosen."""
        return None if self.test is None else "full" if self.place < 0 else self.place


def certified_place(deviation: FloatArray, tolerance: float, risk: float, confidence: float) -> int:
    """Index of the member that a confident certificate names; -1 for full compute.

    The scan of :func:`muninn.certify.risk.choose_member` over deviations (calls, members), with
    full compute as the most careful member.

    Raises:
        CalibrationError: there are too few calls.
    """
    return choose_member(np.pad(deviation / tolerance, ((0, 0), (1, 0))), risk, confidence) - 1


def certified(
    raw: Raw, method: str, tolerance: float, risk: float, calls: int | None = None
) -> Choice:
    """What a certificate made from the calibrate cells of a method, or their first calls, names."""
    asked = (tolerance, risk, raw.confidence)
    return _choose(raw, method, lambda deviation: certified_place(deviation[:calls], *asked))


def heuristic(raw: Raw, method: str, tolerance: float, risk: float) -> Choice:
    """The most aggressive member whose share of violations on 100 calls is at most the risk.

    What one does without a certificate: a threshold set on a sample, with no correction for its
    size and no care about members in between.
    """

    def place(deviation: FloatArray) -> int:
        shares = (deviation[:HEURISTIC_CALLS] > tolerance).mean(axis=0)
        return int(np.flatnonzero(shares <= risk + 1e-12).max(initial=-1))

    return _choose(raw, method, place)


def neighbour(raw: Raw, method: str, choice: Choice, offset: int) -> Cell | None:
    """The test cell ``offset`` members from the chosen one; None beyond the family's ends."""
    place, members = choice.place + offset, len(raw.family(method, CALIBRATE))
    if choice.why or not -1 <= place < members:
        return None
    return _choose(raw, method, lambda _: place).test


def deviations(family: Sequence[Cell]) -> FloatArray:
    """Deviations of the calls that all members share, (calls, members)."""
    calls = min(len(cell.deviation) for cell in family)
    return np.stack([cell.deviation[:calls] for cell in family], axis=1).astype(np.float64)


def _choose(raw: Raw, method: str, rule: Callable[[FloatArray], int]) -> Choice:
    """The member at the place that a rule finds in the deviations of the calibrate cells."""
    family = raw.family(method, CALIBRATE)
    try:
        place = rule(deviations(family)) if family else -1
    except CalibrationError:
        return Choice(-1, None, None, TOO_FEW)
    chosen, test = None, raw.full if family else None
    if place >= 0:
        chosen, name = family[place], family[place].filename(TEST)
        test = next((cell for cell in raw.family(method) if cell.filename(TEST) == name), None)
    return Choice(place, chosen, test, "" if test else NOT_MEASURED)


def call_bound(cell: Cell, risk: float) -> Bound | None:
    """Per-call bound ``max(m(A) + q, 0)`` from the calibrate cell of a member.

    The first half of the calls fits ``m`` by isotonic regression, the second gives the conformal
    residual ``q``, as :func:`muninn.calibrate` does. None if the second half is too small, or if
    the program keeps no estimate.
    """
    half = len(cell.deviation) // 2
    rank = order_statistic(len(cell.deviation) - half, risk, None)
    if half == 0 or rank == 0 or not np.isfinite(cell.estimate).all():
        return None
    fit = IsotonicRegression(out_of_bounds="clip").fit(cell.estimate[:half], cell.deviation[:half])
    knots = Bound(fit.X_thresholds_.astype(float), fit.y_thresholds_.astype(float), 0.0)
    residuals = np.sort(cell.deviation[half:] - knots.fitted(cell.estimate[half:]))
    return replace(knots, quantile=float(residuals[-rank]))


# -- figures ---------------------------------------------------------------------------------

FIGURES: dict[str, Callable[[Raw, Cell, float], Value]] = {
    "evaluations": lambda raw, cell, _: mean(cell.evaluations),
    "evaluations / T": lambda raw, cell, _: float(cell.evaluations.mean() / raw.steps),
    "reuse": lambda raw, cell, _: float(1.0 - cell.evaluations.mean() / raw.steps),
    "median ms": lambda raw, cell, _: cell.milliseconds,
    "speed-up": lambda raw, cell, _: raw.speed_up(cell),
    "mean deviation": lambda raw, cell, _: mean(cell.deviation),
    "p95 deviation": lambda raw, cell, _: float(np.quantile(cell.deviation, 0.95)),
    "violations": lambda raw, cell, tolerance: proportion(cell.deviation > tolerance),
    "collisions": lambda raw, cell, _: proportion(cell.collided),
    "success": lambda raw, cell, _: proportion(cell.success),
    "success / full, %": lambda raw, cell, _: relative_success(raw, cell),
}


def figures(raw: Raw, chosen: Cell | Choice, tolerance: float, names: Sequence[str]) -> Row:
    """The figures called ``names`` of a program on the test stream.

    Where nothing was chosen, the first says why and the others are empty.
    """
    if isinstance(chosen, Choice):
        if chosen.test is None:
            return {**dict.fromkeys(names), names[0]: chosen.why}
        chosen = chosen.test
    return {name: FIGURES[name](raw, chosen, tolerance) for name in names}


def relative_success(raw: Raw, cell: Cell) -> float | None:
    """Successes in percent of those of full compute on the same calls; None if not driven."""
    reference = raw.full.success[: len(cell.success)] if raw.full else cell.success[:0]
    if len(reference) < len(cell.success) or not reference.any():
        return None
    return float(100.0 * cell.success.sum() / reference.sum())
