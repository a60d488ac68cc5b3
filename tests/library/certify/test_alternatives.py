"""Published methods beside a certificate: tuned apart from the calls that judge, judged alike."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
from analytic import mixture_planner
from certify_cases import SHORT_FAMILY, drive
from muninn.certify.alternatives import FULL, TITLES, available, calls_to_tune_on, measured
from muninn.certify.certificate import Certificate
from muninn.certify.evaluate import Evaluation, evaluate
from muninn.certify.metrics import rms_step
from muninn.certify.page import page
from muninn.certify.paired import PairedCalls, call_seed
from muninn.certify.risk import wilson
from muninn.certify.target import apart
from muninn.certify.units import Outcome, units_of
from muninn.errors import InputError
from muninn.identity.rows import row_marks
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, euler
from muninn.programs.forecast import Forecast
from muninn.programs.methods import few_steps
from muninn.programs.plan import Everywhere, Family, Program, Static
from muninn.programs.spacing import sampler_states
from muninn_bench.studies.coverage.mixture import mixture_planner as driven_planner

STEPS, JUDGED, RISK = 12, 80, 0.1
TERMS = (rms_step, 0.1)


def planner() -> Planner:
    return mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample"), (8, 2))


def contexts(count: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def issued() -> Certificate:
    plans = Everywhere(), Static((0, 1, 3, 6, 9, 11)), Static((0, 1, 4, 8, 11))
    family = Family.of(Forecast("sample", 1), plans, "static")
    return muninn.calibrate(
        planner(), contexts(120, 1), tolerance=0.1, risk=RISK, family=family, progress=False
    )


@pytest.fixture(scope="module")
def judged(issued: Certificate) -> Evaluation:
    found = evaluate(
        planner(), issued, contexts(JUDGED, 2), compare=contexts(120, 1), progress=False
    )
    assert isinstance(found, Evaluation)
    return found


def test_every_method_runs_with_no_fewer_evaluations_and_full_compute_deviates_by_nothing(
    issued: Certificate, judged: Evaluation
) -> None:
    names = [row.method for row in judged.alternatives]
    assert names == [FULL, *(TITLES[name] for name in available(planner()))]
    full, *published = judged.alternatives
    assert (full.evaluations, full.within, full.violations) == (STEPS, 0.0, 0)
    assert full.seconds == judged.seconds["full"]
    assert issued.member > 0 and {row.evaluations for row in published} == {
        math.ceil(judged.evaluations)
    }
    assert judged.compared_on == 64 and all(row.seconds > 0.0 for row in published)


def test_a_method_is_judged_on_the_same_calls_and_noise_as_the_certificate(
    issued: Certificate,
) -> None:
    table = few_steps(planner().sampler, sampler_states(planner().sampler)[::3])
    units = units_of(
        planner(), contexts(JUDGED, 2), *TERMS, "call", None, issued.seed + 1, 32, None
    )
    row = measured("fewer steps", table, STEPS, units.measure(table, range(JUDGED)), 0.1)
    paired = PairedCalls(
        planner(), contexts(JUDGED, 2), JUDGED, rms_step, call_seed(issued.seed + 1, 0)
    )
    deviation = paired.measure_in_batches(table, list(range(JUDGED))).deviation
    assert row.within == pytest.approx(np.quantile(deviation, 0.95))
    assert row.violations == int((deviation > 0.1).sum())
    assert row.interval == wilson(row.violations, JUDGED)
    assert row.evaluations == len(table.states)


def test_a_call_in_which_a_method_failed_counts_against_it() -> None:
    failed, fine = Outcome([0.0], [0.1], [math.nan], [9]), Outcome([0.05], [0.1], [0.0], [4])
    program = Program.full("sample")
    found = measured("Heun", program, STEPS, [failed, fine], 0.1)
    assert found.violations == 1 and found.within is None  # full compute's plan is no credit
    rare = measured("Heun", program, STEPS, [*[fine] * 39, failed], 0.1)
    assert rare.violations == 1 and rare.within == 0.05


def test_tuning_takes_other_calls_with_other_noise(issued: Certificate) -> None:
    own, fresh = contexts(400, 1), contexts(JUDGED, 2)
    units = units_of(planner(), fresh, *TERMS, "call", None, issued.seed + 1, 32, None)
    many = replace(issued, counts={**issued.counts, "tune": 100})
    for made, count in ((issued, 64), (many, 100)):  # no fewer than the family was tuned on
        tuning = calls_to_tune_on(planner(), made, own, units, TERMS, None)
        assert (
            tuning.count == count and len({tuple(row.tolist()) for row in tuning.context}) == count
        )
        assert {tuple(row.tolist()) for row in tuning.context} <= {tuple(r.tolist()) for r in own}
    assert isinstance(units.examples(1)[1].initial, Tensor)
    drawn = units.paired.noise([0]).initial  # type: ignore[union-attr]
    assert not torch.equal(drawn, tuning.noise([0]).initial)


def test_calls_that_judge_or_are_too_few_tune_nothing(issued: Certificate) -> None:
    def judge(compare: Any) -> None:
        evaluate(planner(), issued, contexts(JUDGED, 2), compare=compare, progress=False)

    with pytest.raises(InputError, match=f"{JUDGED} of the calls in compare also judge"):
        judge(contexts(JUDGED, 2))
    with pytest.raises(
        InputError, match="15 calls are too few to tune alternatives on: give at lea"
    ):
        judge(contexts(15, 3))


@pytest.mark.parametrize(
    "compare", [64, contexts(64, 3).double(), contexts(64, 3)[:, :1], {"goal": contexts(64, 3)}]
)
def test_calls_of_another_form_tune_nothing(issued: Certificate, compare: Any) -> None:
    with pytest.raises(InputError, match="compare is of another form than the calls that judge"):
        evaluate(planner(), issued, contexts(JUDGED, 2), compare=compare, progress=False)


def test_a_family_of_episodes_counts_its_calls(issued: Certificate) -> None:
    own, fresh = contexts(400, 1), contexts(JUDGED, 2)
    units = units_of(planner(), fresh, *TERMS, "call", None, issued.seed + 1, 32, None)
    marked = replace(issued.family, tuned_on=row_marks(contexts(150, 4)))
    made = replace(issued, family=marked, counts={**issued.counts, "tune": 15})
    assert calls_to_tune_on(planner(), made, own, units, TERMS, None).count == 150


def test_episodes_are_not_compared() -> None:
    own, episodes = driven_planner("ddim", steps=6), muninn.Episodes(drive, 28)
    made = muninn.calibrate(
        own, episodes, tolerance=0.3, risk=0.2, family=SHORT_FAMILY, progress=False
    )
    with pytest.raises(InputError, match="a closed loop every method drives episodes of its own"):
        evaluate(own, made, muninn.Episodes(drive, 20), compare=episodes, progress=False)


def test_a_flow_has_solvers_of_its_own() -> None:
    flow = mixture_planner(euler(STEPS), (8, 2))
    assert available(flow) == ("fewsteps", "taylor", "adams", "heun")
    made = muninn.calibrate(flow, 100, tolerance=0.5, risk=RISK, progress=False)
    found = evaluate(flow, made, 60, compare=60, progress=False)
    assert isinstance(found, Evaluation)
    rows = {row.method: row for row in found.alternatives}
    assert set(rows) == {FULL, "fewer steps", "Taylor series", "Adams-Bashforth", "Heun"}
    assert rows["Heun"].evaluations % 2 == 1  # two a step, and one in the last
    assert rows["Heun"].evaluations >= found.evaluations


def halved(x: Tensor, context: Any) -> Tensor:
    """A condition that projects: no table of weights can follow it."""
    return torch.cat([x[:, :-1], 0.5 * x[:, -1:]], dim=1)


def test_where_no_table_fits_or_the_sampler_draws_there_is_a_report_all_the_same() -> None:
    projecting = replace(planner(), condition=halved)
    drawing = mixture_planner(ddim(Schedule.cosine(STEPS), kind="sample", eta=1.0), (8, 2))
    plans = Everywhere(), Static((0, 1, 2, 4, 6, 8, 10, 11))
    family = Family.of(Forecast("sample", 0), plans, "static")
    for own, expected in (
        (projecting, [FULL]),
        (drawing, [FULL, "fewer steps", "DPM-Solver++"]),
    ):
        made = muninn.calibrate(own, 60, tolerance=5.0, risk=RISK, family=family, progress=False)
        found = evaluate(own, made, 60, compare=60, progress=False)
        assert isinstance(found, Evaluation) and made.member > 0
        assert [row.method for row in found.alternatives] == expected


def test_where_only_full_compute_is_certified_there_is_nothing_to_match(
    issued: Certificate,
) -> None:
    found = evaluate(
        planner(), replace(issued, member=0), contexts(JUDGED, 2), compare=contexts(60, 3),
        progress=False,
    )  # fmt: skip
    assert isinstance(found, Evaluation)
    assert [row.method for row in found.alternatives] == [FULL]
    assert "No published method" in page(found.to_json())


def test_the_page_has_a_row_for_every_method_and_says_what_they_were_tuned_on(
    judged: Evaluation,
) -> None:
    stored = json.loads(json.dumps(judged.to_json()))
    text = page(stored)
    rows = [line for line in text.partition("| method |")[2].splitlines() if line.startswith("| ")]
    assert len(rows) == len(judged.alternatives) + 1
    assert rows[0].startswith("| full compute | 12 |") and rows[1].startswith("| Muninn, certified")
    assert "were tuned on 64 other calls" in text
    low, high = judged.alternatives[-1].interval
    assert f"({low:.1%} to {high:.1%}) |" in rows[-1]
    for row, violations in zip(stored["alternatives"][1:], (0, 40, 40, 40), strict=False):
        row["violations"] = violations  # one that is as good as a certified program is named
    best = stored["alternatives"][1]
    named = f"than Muninn: {best['method']} ({best['evaluations']} evaluations, "
    assert named in page({**stored, "violations": 3})
    assert "than Muninn: " not in page({**stored, "violations": -1})
    assert "What else could run" not in page({**stored, "alternatives": []})
    del stored["alternatives"]  # a file of an earlier version
    assert page(stored).startswith("# Is the promise kept?")


def test_what_judges_and_what_is_left_for_tuning_are_apart() -> None:
    rows = torch.arange(10.0)[:, None]
    judge, rest = apart(rows, 4)
    assert judge[:, 0].tolist() == [6, 7, 8, 9] and rest[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    judge, rest = apart(iter(rows[:, None]), 4)  # an iterator goes on
    assert judge[:, 0].tolist() == [0, 1, 2, 3] and rest[:, 0].tolist() == [4, 5, 6, 7]
    assert apart(10, 4) == (4, 4) and apart(None, 4) == (4, 4)
    for calls in (10, None):
        with pytest.raises(InputError, match="but all 10 judge: say --calls N with fewer"):
            apart(rows, calls)
