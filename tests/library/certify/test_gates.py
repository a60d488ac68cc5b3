"""Gates as members of a family: where they win, where they are not tried, and what time says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from certify_cases import paired_calls, tuned
from muninn.certify.frontier import Frontier
from muninn.certify.gates import SMALL, SPREAD, gate_forecast, gate_members
from muninn.certify.journal import Journal
from muninn.certify.paired import PairedCalls
from muninn.model.planner import Planner
from muninn.programs.plan import Adaptive, AnyProgram, Family, Program
from muninn.programs.table import Table
from waving_cases import RARE, waving


@pytest.fixture(scope="module")
def rare() -> Iterator[tuple[PairedCalls, Family, Journal]]:
    """Without second looks, which win where only few calls are hard."""
    paired, journal = waving(48, 0.15, fastest=80.0), Journal()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("muninn.certify.tune.look_members", lambda *_: [])
        yield paired, tuned(paired, journal, **RARE), journal


def test_gates_win_where_few_calls_are_hard(rare: tuple[PairedCalls, Family, Journal]) -> None:
    paired, found, _ = rare
    calls = list(range(paired.count))
    gates = [m for m in found.programs if isinstance(m, Program) and isinstance(m.plan, Adaptive)]
    assert 2 < len(gates) <= len(SPREAD)  # without those that a cheaper one is as safe as
    assert found.search is not None
    fewest = found.search["tables"]
    assert found.search["winner"] == "gate" and found.search["evaluations"] < fewest
    measured = [paired.measure_in_batches(m, calls) for m in found.programs]
    spent = [float(each.evaluations.mean()) for each in measured]
    assert spent == sorted(spent, reverse=True)
    kept = {k for k, each in enumerate(measured) if np.mean(each.deviation > 0.05) <= 0.03}
    cheapest = max(kept)
    assert found.member(cheapest) in gates and spent[cheapest] < fewest - 0.25
    easy = paired.contexts(calls)[:, 0] == 0.0
    each = measured[cheapest].evaluations
    assert each[easy.numpy()].max() < each[~easy.numpy()].min()  # hard calls get more
    assert 3.0 * spent[cheapest] < fewest
    # Tables take another route at a fork even with more evaluations, and would end the scan.
    assert found.programs[1:] == tuple(gates)


def test_a_gate_must_save_evaluations(rare: tuple[PairedCalls, Family, Journal]) -> None:
    paired, _, journal = rare
    frontier = Frontier(paired, journal=journal, **RARE)
    forecast = gate_forecast(frontier, 20)
    found = gate_members(frontier, forecast, 30.0)
    spent = [entry.evaluations for entry in found]
    largest = SPREAD.index(1.0)
    assert spent == sorted(spent, reverse=True)
    assert frontier.keeps(frontier.excess(found[largest].program, SMALL)[:-1])  # found there
    assert gate_members(frontier, forecast, spent[largest] - 1.0) == []
    for entry in found[SPREAD.index(0.35) :]:  # the safe ones spend on easy calls, too
        program = entry.program
        assert isinstance(program, Program) and isinstance(program.plan, Adaptive)
        # A cap near the mean would cut the hard calls short, for which gates exist.
        most = frontier.most_evaluations(program)
        assert 3.0 * entry.evaluations < most <= program.plan.cap <= 30


def project(x: Tensor, context: Tensor) -> Tensor:
    return x.clamp(-2.0, 2.0)


def test_a_condition_that_projects_gives_gates_only_and_says_so() -> None:
    found = tuned(paired_calls(condition=project, steps=30), tolerance=0.1)
    plans = [m.plan for m in found.programs[1:] if isinstance(m, Program)]
    assert len(plans) == len(found) - 1 and all(isinstance(plan, Adaptive) for plan in plans)
    assert found.search is not None and found.search.keys() == {"notes", "winner", "evaluations"}
    assert found.search["notes"] == ["the condition projects states, so that no table was tried"]
    assert Family.from_json(found.to_json()).search == found.search


class Clock:
    """Time that passes only where a call is made: so much for each kind of program."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.calls, self._seconds = 0.0, [], seconds

    def perf_counter(self) -> float:
        return self.now

    def runtime_for(self, planner: Planner, program: AnyProgram) -> Any:
        kind = "table" if isinstance(program, Table) else "gate"

        def run(context: Any, *, noise: Any) -> None:
            self.calls.append(kind)
            # The first call of the faster kind is slow, as one that compiles or captures is.
            slow = self.calls.count(kind) == 1 and self._seconds[kind] == min(
                self._seconds.values()
            )
            self.now += self._seconds[kind] * (100.0 if slow else 1.0)

        return run


@pytest.mark.parametrize("faster", ["table", "gate"])
def test_the_objective_decides_between_gates_and_tables(
    faster: str,
    rare: tuple[PairedCalls, Family, Journal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paired, by_evaluations, journal = rare
    clock = Clock(**{kind: 1.0 if kind == faster else 2.0 for kind in ("table", "gate")})
    monkeypatch.setattr("muninn.certify.paired.time", clock)
    monkeypatch.setattr("muninn.certify.tune.runtime_for", clock.runtime_for)
    found = tuned(paired, journal, **RARE, objective="time")
    assert sorted(clock.calls) == ["gate"] * 7 + ["table"] * 7
    if faster == "gate":
        assert found == by_evaluations
    else:
        assert all(isinstance(program, Table) for program in found.programs[1:])
