"""Tuning: not sound by itself, but it must find good families and find them again."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import muninn
from certify_cases import TUNE_CALLS as CALLS
from certify_cases import TUNE_STEPS as STEPS
from certify_cases import Interrupting, contexts, paired_calls, tuned
from muninn.certify.journal import Journal
from muninn.certify.metrics import max_step, rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.scores import Entry
from muninn.certify.tune import safer_first, tune
from muninn.errors import InputError
from muninn.programs.methods import few_steps
from muninn.programs.plan import AnyProgram, Everywhere, Family, Program
from muninn.programs.spacing import sampler_states, spread_steps
from muninn.programs.table import Table
from muninn_bench.studies.coverage.mixture import mixture_planner


@pytest.fixture(scope="module")
def family() -> Family:
    return tuned()


def score(paired: PairedCalls, program: AnyProgram) -> tuple[float, float]:
    """Deviation that 90% of fresh calls stay below, and mean evaluations."""
    fresh = PairedCalls(paired.planner, contexts(300, seed=9), 300, rms_step, 77)
    measured = fresh.measure(program, list(range(300)))
    return float(np.quantile(measured.deviation, 0.9)), float(measured.evaluations.mean())


# -- families --------------------------------------------------------------------------------


def test_a_family_runs_from_full_compute_to_ever_fewer_evaluations(family: Family) -> None:
    full = family.member(0)
    assert isinstance(full, Program) and isinstance(full.plan, Everywhere)
    assert family.name == "frontier" and 4 <= len(family) <= 12
    assert len(set(family.programs)) == len(family)
    paired = paired_calls()
    measured = [paired.measure(program, list(range(CALLS))) for program in family.programs]
    spent = [float(each.evaluations.mean()) for each in measured]
    assert spent[0] == STEPS
    assert all(a > b for a, b in pairwise(spent))
    assert spent[-1] < 0.5 * STEPS


def test_the_first_members_are_far_on_the_safe_side(family: Family) -> None:
    assert family.search is not None
    fewest = family.search["evaluations"]
    assert family.member(1).most_evaluations(STEPS) >= min(1.5 * fewest, STEPS - 1)
    assert family.member(len(family) - 1).most_evaluations(STEPS) <= max(fewest - 1, 2)


def entry(evaluations: float, beyond: float, score: float, worst: float) -> Entry:
    states = sampler_states(mixture_planner("ddim", steps=STEPS).sampler)
    table = few_steps(mixture_planner("ddim", steps=STEPS).sampler, states[: int(evaluations)])
    return Entry(table, evaluations, "fewsteps", score, score, beyond, worst, beyond == 0.0)


def test_safer_members_come_first_and_others_are_left_out() -> None:
    cheap, dear = entry(4, 0.0, 0.5, 0.99), entry(8, 0.0, 0.6, 0.7)
    assert safer_first([cheap, dear]) == [dear, cheap]  # its worst call is further from the limit
    assert safer_first([cheap, entry(8, 0.0, 0.4, 1.0)]) == [cheap]
    assert safer_first([cheap, entry(8, 2.0, 0.4, 0.7)]) == [cheap]  # it would end the scan
    fork, other = entry(4, 3.0, 0.5, 90.0), entry(8, 3.0, 0.6, 40.0)
    assert safer_first([fork, other]) == [fork]  # how far another route is says nothing
    assert safer_first([fork, entry(8, 3.0, 0.4, 95.0)])[0].evaluations == 8


def test_the_report_says_who_won(family: Family) -> None:
    assert family.search is not None
    assert family.search["notes"] == []
    winner = family.search["winner"]
    at = [m for m in family.programs if m.most_evaluations(STEPS) == family.search["evaluations"]]
    assert isinstance(at[0], Table) and at[0].method.startswith("fitted") == (winner == "fitted")
    assert "fitted" in family.search["excess"] and len(family.search["excess"]) > 1
    assert family.search["excess"][winner] <= 1.0


def test_it_is_clearly_cheaper_than_fewer_steps_at_equal_deviation() -> None:
    paired = paired_calls(count=96, steps=40)
    found = tuned(paired, tolerance=0.05)
    assert found.search is not None
    fewest = found.search["evaluations"]
    program = next(m for m in found.programs if m.most_evaluations(40) == fewest)
    deviation, spent = score(paired, program)
    assert spent == fewest and deviation < 1.3 * 0.05
    states = sampler_states(paired.planner.sampler)
    for count in range(2, 41):  # of evenly spaced steps, as many as do as well on the same calls
        even = few_steps(paired.planner.sampler, [states[s] for s in spread_steps(40, count)])
        if score(paired, even)[0] <= deviation:
            break
    assert 2 * spent < count


def test_a_stochastic_sampler_is_tuned_too() -> None:
    paired = paired_calls("ddpm")
    found = tuned(paired, tolerance=0.5)
    scores = [score(paired, found.member(k)) for k in range(1, len(found))]
    assert scores[0][1] > scores[-1][1]
    assert any(deviation < 0.5 and spent < STEPS for deviation, spent in scores)


def test_a_tolerance_that_nothing_keeps_is_found_out_soon() -> None:
    tried: list[int] = []
    found = tuned(tolerance=1e-12, task=lambda *_: tried.append)
    assert len(found) == 2 and found.search is not None
    assert "hardly any call keeps the tolerance" in found.search["notes"][0]
    usual: list[int] = []
    tuned(task=lambda *_: usual.append)
    assert len(tried) < len(usual)
    certificate = muninn.calibrate(
        paired_calls().planner, contexts(200, 1), tolerance=1e-12, family=found, progress=False
    )
    assert certificate.member == 0 and certificate.promise().startswith("No speed-up")


def test_groups_restrict_a_family() -> None:
    found = tuned(groups={"fewsteps"})
    tables = [program for program in found.programs[1:] if isinstance(program, Table)]
    assert len(tables) == len(found) - 1
    assert all(table.method.startswith("fewer steps") for table in tables)


def test_a_method_with_odd_numbers_of_evaluations_only_makes_a_family_of_those() -> None:
    found = tuned(groups={"heun"})
    counts = [program.most_evaluations(STEPS) for program in found.programs[1:]]
    assert counts and all(count % 2 == 1 for count in counts)


def test_an_interrupted_tuning_ends_with_the_same_family_and_runs_nothing_twice(
    tmp_path: Path, family: Family
) -> None:
    stopping = Interrupting(paired_calls().planner.denoiser)  # type: ignore[arg-type]
    uninterrupted = tuned(paired_calls(denoiser=stopping))
    spent, stopping.evaluations = stopping.evaluations, 0
    assert uninterrupted == family and uninterrupted.search == family.search
    path, interruptions = tmp_path / "tune.jsonl", 0
    for budget in (spent // 6, spent // 3, spent // 4, 0):
        stopping.left = budget
        try:
            found = tuned(paired_calls(denoiser=stopping), Journal(path, {}))
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == 3
    assert found == family
    # Each start runs full compute once, loses one program and what was carried to its anchors.
    full = STEPS * -(-CALLS // 32)
    assert stopping.evaluations <= spent + 3 * 4 * full
    before = stopping.evaluations
    assert tuned(paired_calls(denoiser=stopping), Journal(path, {})) == family
    assert stopping.evaluations - before == full


def test_a_family_survives_json(family: Family) -> None:
    back = Family.from_json(family.to_json())
    assert back == family and back.search == family.search


def test_gates_are_not_tried_where_few_evaluations_leave_nothing_to_judge_by(
    family: Family,
) -> None:
    assert not any(isinstance(program, Program) for program in family.programs[1:])


# -- the verb ----------------------------------------------------------------------------------


def test_the_public_verb_takes_contexts_or_a_number() -> None:
    short = mixture_planner("ddim", steps=6)
    paired = PairedCalls.for_tuning(short, contexts(8), "rms_step", 0)
    found = tune(short, contexts(8), tolerance=0.1, progress=False)
    assert found == tuned(paired, tolerance=0.1, share=0.03)

    def origin(x: torch.Tensor, timestep: torch.Tensor, context: None) -> torch.Tensor:
        return 0.9 * x / (1 + timestep.view(-1, 1, 1))

    alone = replace(short, denoiser=origin)
    paired = PairedCalls(alone, None, 8, max_step, 0)
    fewest = []
    for tolerance in (0.3, 0.03, 0.0003):
        found = tune(alone, 8, tolerance=tolerance, metric="max_step", progress=False)
        kept = [
            measured.evaluations.mean()
            for measured in (
                paired.measure(found.member(k), list(range(8))) for k in range(len(found))
            )
            if (measured.deviation <= tolerance).all()
        ]
        fewest.append(float(min(kept)))
    assert fewest[0] < fewest[1] < fewest[2] <= 6.0, fewest  # closer takes more


def test_verbs_are_what_their_modules_define_even_after_all_modules_were_imported() -> None:
    """A module with the name of a verb would take its place in the package once it is imported."""
    for name in muninn.__all__:
        home = importlib.import_module(f"muninn.{muninn._HOME[name]}")
        assert getattr(muninn, name) is vars(home)[name]
    modules = {module.name for module in pkgutil.iter_modules(muninn.__path__)}
    assert "certify" in modules and not modules & set(muninn.__all__)


def test_bad_arguments_name_what_is_allowed() -> None:
    with pytest.raises(InputError, match="'time' or 'worst', got 'speed'"):
        tuned(objective="speed")
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match=r"share must lie in \[0, 1\)"):
            tuned(share=share)
    with pytest.raises(InputError, match=r"no program with fewer evaluations .* use it as it is"):
        tuned(paired_calls(steps=2))
    with pytest.raises(InputError, match="at least one call"):
        tune(mixture_planner("ddim"), 0, tolerance=0.1, progress=False)
