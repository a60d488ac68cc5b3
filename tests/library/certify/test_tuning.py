"""Tuning: not sound by itself, but it must find good families and find them again."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from muninn.certify.search import EVEN, Found, Search

import muninn
from certify_cases import Interrupting, contexts
from muninn.certify.journal import Journal
from muninn.certify.metrics import max_step, rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.tune import tune, tune_family
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Program, Static
from muninn_bench.studies.coverage.mixture import mixture_planner

CALLS, STEPS = 16, 12


def quiet(description: str, total: int) -> Any:
    return lambda steps: None


def paired_calls(sampler: str = "ddim", count: int = CALLS, **changes: Any) -> PairedCalls:
    own = mixture_planner(sampler, steps=changes.pop("steps", STEPS))
    own = replace(own, **changes)
    return PairedCalls(own, contexts(count), count, rms_step, 1)


def tuned(
    paired: PairedCalls | None = None,
    journal: Journal | None = None,
    *,
    tolerance: float = 0.1,
    share: float = 0.1,
    objective: Any = "evaluations",
) -> Family:
    paired = paired_calls() if paired is None else paired
    journal = Journal(None, {}) if journal is None else journal
    return tune_family(paired, tolerance, share, objective=objective, journal=journal, task=quiet)


@pytest.fixture(scope="module")
def family() -> Family:
    return tuned()


def score(paired: PairedCalls, program: Program) -> tuple[float, float]:
    """Deviation that 90% of fresh calls stay below, and mean evaluations."""
    fresh = PairedCalls(paired.planner, contexts(300, seed=9), 300, rms_step, 77)
    measured = fresh.measure(program, list(range(300)))
    return float(np.quantile(measured.deviation, 0.9)), float(measured.evaluations.mean())


def uniform(evaluations: int, steps: int) -> Static:
    return Static(tuple(np.unique(np.round(np.linspace(0, steps - 1, evaluations)).astype(int))))


def test_a_family_runs_from_full_compute_to_ever_fewer_evaluations(family: Family) -> None:
    assert isinstance(family.plans[0], Everywhere)
    assert 4 <= len(family) <= 12
    spent = [score(paired_calls(), family.member(k))[1] for k in range(len(family))]
    assert spent[0] == STEPS
    assert all(a >= b for a, b in pairwise(spent))
    assert spent[-1] < 0.7 * STEPS


def test_the_tuned_plan_is_clearly_cheaper_than_even_anchors_at_equal_deviation() -> None:
    paired = paired_calls(count=96, steps=40)
    search = Search(paired, 0.05, 0.1)
    program = search.static_family(*search.rank()).program
    forecast = program.forecast
    deviation, spent = score(paired, program)
    assert deviation < 1.3 * 0.05

    def fewest(forecast: Forecast) -> int:
        """Evenly spaced evaluations that do as well on the same fresh calls."""
        for count in range(2, 41):
            if score(paired, Program(forecast, uniform(count, 40)))[0] <= deviation:
                return count
        raise AssertionError("full compute deviates from itself")

    assert spent <= fewest(forecast) - 2
    assert spent <= 0.5 * fewest(replace(forecast, order=0, look_back=False))  # the paper's reuse


def test_of_plans_with_equally_many_evaluations_the_closest_is_taken() -> None:
    search = Search(paired_calls(), 0.1, 0.1)
    ranked, budget = search.rank()
    even = [candidate for candidate in ranked if candidate.model is None]
    assert len(even) == EVEN
    for candidate in even:
        assert search.program(candidate, 5).plan == uniform(5, STEPS)
    for order in (ranked, ranked[::-1]):
        found = search.static_family(order, budget)
        spent, excess = search.score(found.program).evaluations, search.score(found.program).excess
        others = [search.score(search.program(candidate, round(spent))) for candidate in ranked]
        assert excess <= min(other.excess for other in others if other.evaluations == spent)


@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_the_first_member_is_far_on_the_safe_side(kind: str) -> None:
    """In evaluations, which a threshold need not be proportional to."""
    paired = paired_calls(steps=60)
    search = Search(paired, 0.2, 0.1)
    if kind == "static":
        found: Found | None = search.static_family(*search.rank())
    else:
        found = search.adaptive_family([Forecast("sample", 0, True)])
    assert found is not None
    best = search.score(found.program).evaluations
    first = search.score(found.family.member(1)).evaluations
    assert first >= min(3.0 * best, 45)


def test_a_stochastic_sampler_is_tuned_too() -> None:
    paired = paired_calls("ddpm")
    found = tuned(paired, tolerance=0.5)
    scores = [score(paired, found.member(k)) for k in range(1, len(found))]
    assert scores[0][1] > scores[-1][1]
    assert any(deviation < 0.5 and spent < STEPS for deviation, spent in scores)


def test_an_interrupted_tuning_ends_with_the_same_family_and_runs_nothing_twice(
    tmp_path: Path, family: Family
) -> None:
    stopping = Interrupting(paired_calls().planner.denoiser)  # type: ignore[arg-type]
    uninterrupted = tuned(paired_calls(denoiser=stopping))
    spent, stopping.evaluations = stopping.evaluations, 0
    assert uninterrupted == family
    path, interruptions = tmp_path / "tune.jsonl", 0
    for budget in (40, 130, 77, 0):
        stopping.left = budget
        try:
            found = tuned(paired_calls(denoiser=stopping), Journal(path, {}))
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == 3
    assert found == family
    # Each start prices segments by one full run, pairs with another, and loses one program.
    assert stopping.evaluations <= spent + 3 * (2 * STEPS + STEPS)
    before = stopping.evaluations
    assert tuned(paired_calls(denoiser=stopping), Journal(path, {})) == family
    assert stopping.evaluations - before == STEPS


def test_a_family_survives_json(family: Family) -> None:
    assert Family.from_json(family.to_json()) == family


class Clock:
    """Time that passes only where a call is made: so much for each kind of plan."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.calls, self._seconds = 0.0, [], seconds

    def perf_counter(self) -> float:
        return self.now

    def runtime_for(self, planner: Planner, program: Program) -> Any:
        kind = type(program.plan).__name__.lower()

        def run(context: Any, *, noise: Any) -> None:
            self.calls.append(kind)
            # The first call of the faster kind is slow, as one that compiles or captures is.
            slow = self.calls.count(kind) == 1 and self._seconds[kind] == min(
                self._seconds.values()
            )
            self.now += self._seconds[kind] * (100.0 if slow else 1.0)

        return run


@pytest.mark.parametrize("faster", ["static", "adaptive"])
def test_the_objective_decides_between_the_two_kinds_of_plan(
    faster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paired = paired_calls(count=8, steps=6)
    search = Search(paired, 0.1, 0.1)
    ranked, budget = search.rank()
    kinds = {"static": search.static_family(ranked, budget)}
    gates = search.adaptive_family(list(dict.fromkeys(c.forecast for c in ranked if c.model))[:2])
    assert gates is not None
    kinds["adaptive"] = gates
    spent = {kind: search.score(found.program).evaluations for kind, found in kinds.items()}
    clock = Clock(**{kind: 1.0 if kind == faster else 2.0 for kind in kinds})
    monkeypatch.setattr("muninn.certify.paired.time", clock)
    monkeypatch.setattr("muninn.certify.tune.runtime_for", clock.runtime_for)

    assert tuned(paired, objective="time") == kinds[faster].family
    assert sorted(clock.calls) == ["adaptive"] * 7 + ["static"] * 7
    clock.calls.clear()
    assert tuned(paired, objective="evaluations") == kinds[min(spent, key=spent.__getitem__)].family
    assert clock.calls == []  # nothing is timed where time does not matter


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
    for tolerance in (0.3, 0.03, 0.003):
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
    with pytest.raises(InputError, match="'evaluations' or 'time', got 'speed'"):
        tuned(objective="speed")
    for share in (-0.1, 1.0, float("nan")):
        with pytest.raises(InputError, match=r"share must lie in \[0, 1\)"):
            tuned(share=share)
    with pytest.raises(InputError, match="at least one call"):
        tune(mixture_planner("ddim"), 0, tolerance=0.1, progress=False)
