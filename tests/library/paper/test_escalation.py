"""The paper's escalation is the same machine with the published numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import paper_cases as cases
from loop_cases import VirtualRunner, record
from muninn.errors import InputError
from muninn.loop.escalation import Hold, Mode, Needs
from muninn.loop.request import Request, accept_all
from muninn.loop.supervisor import Observation, Supervisor
from muninn.paper.envelope import fit_envelope
from muninn.paper.escalation import (
    PaperPrograms,
    paper_escalation,
    rho_of,
)
from muninn.paper.gates import paper_budget
from muninn.paper.policy import ProbedPlanner


def _programs(tolerance: float = 0.5, risk: float = 0.8) -> PaperPrograms:
    planner = cases.planner()
    pairs = cases.pairs(planner, 400)
    policies = []
    for samples in (1, 3):
        envelope = fit_envelope(pairs, risk, samples=samples, strict=False)
        gate = paper_budget(planner, envelope, tolerance, units="appendix")
        policies.append(ProbedPlanner(planner, cases.probe(planner), gate))
    return PaperPrograms(*policies, accept_all)


def test_published_numbers() -> None:
    machine = paper_escalation(3)
    levels = [machine.level(rho) for rho in (0.6, 0.61, 0.75, 0.76, 0.9, 0.91)]
    assert levels == [
        Mode.NOMINAL, Mode.DAMP, Mode.DAMP, Mode.RESAMPLE, Mode.RESAMPLE, Mode.FULL,
    ]  # fmt: skip
    assert machine.clear == 0.5
    assert machine.candidates == 3


def test_the_signal_is_rho_of_the_published_policy() -> None:
    programs = _programs()
    plans = programs.run(Request("cached", None, (1, 2)))
    rho = rho_of(plans.record)
    assert plans.record.bound is not None
    np.testing.assert_allclose(rho, plans.record.bound / 0.5)
    assert (rho > 0.0).all()
    with pytest.raises(InputError, match="rank"):
        rho_of(record([0.1], [0.2]))


def test_resampled_plans_are_charged_at_a_share_of_the_risk() -> None:
    programs = _programs()
    job = Request("cached", None, (1, 2, 3))
    once, shared = programs.run(job), programs.run(Request("resampled", None, job.seeds))
    # A smaller risk has larger upper bounds: the same reuse costs more of the budget.
    assert (shared.record.evaluated == once.record.evaluated).all()
    assert (rho_of(shared.record) > rho_of(once.record)).all()


def test_full_compute_is_the_planners_own() -> None:
    programs = _programs()
    plans = programs.run(Request("full", None, (5,)))
    planner = programs.cached.planner
    full = planner.sample(None, noise=planner.draw_noise(seeds=[5]))
    assert torch.equal(plans.trajectories, full)
    assert plans.record.evaluations.tolist() == [cases.STEPS]
    assert programs.most_evaluations("cached") == cases.STEPS
    with pytest.raises(InputError, match="no member"):
        programs.run(Request(2, None, (5,)))


def test_where_an_override_does_not_fit_the_safety_controller_acts() -> None:
    # The budget is spent greedily, so that rho is near one.
    runner = VirtualRunner(_programs(0.2), lambda job: 0.02)
    machine = paper_escalation()
    supervisor = Supervisor(runner, machine, budget=0.1, needs=Needs(full=0.5))
    command = supervisor.supervise(Observation(None, 0.0), 0.0)
    assert command.report.signal is not None
    assert command.report.signal > 0.9
    assert isinstance(command.action, Hold)
    assert "full compute needs 0.5 s" in command.action.reason
