"""An interceptor never trusts a stale state, and leaves no trace."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from call_level_cases import SHAPE, Network, certificate_for, clamping_loop
from muninn.adapters.call_level import Interceptor, intercept
from muninn.adapters.styles import diffuser_style
from muninn.errors import CertificateError, InputError
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, euler
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static

SAMPLER = ddim(Schedule.cosine(40), kind="sample", clip=1.0)
PLAN = (0, 4, 12, 39)  # a forecast right after the first step
COND = torch.ones(1)
WATCHED = "no run before this one asked for the sampler's steps once each, in order"


def triple(x: Tensor, cond: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return x, t


class Case:
    """A network, its plain twin and its interceptor."""

    def __init__(
        self, sampler: Any = SAMPLER, anchors: tuple[int, ...] = PLAN, watched: bool = True
    ) -> None:
        self.network, self.twin = Network().eval(), Network().eval()
        self.planner = Planner(diffuser_style(self.network), sampler, SHAPE)
        quantity = "velocity" if sampler.flow else "sample"
        self.program = Program(Forecast(quantity, 1, False), Static(anchors))
        self.certificate = certificate_for(self.planner, self.program)
        self.cached = intercept(self.network, self.planner, self.certificate, read=triple)
        self.noise = self.planner.draw_noise(1, generator=torch.Generator())
        if watched:
            clamping_loop(self.network, self.planner, COND, self.noise)

    def run(self, network: Any = None) -> Tensor:
        own = self.network if network is None else network
        return clamping_loop(own, self.planner, COND, self.noise)

    @torch.no_grad()
    def ask(self, step: int | float, x: Tensor | None = None) -> bool:
        """Whether the answer at a step is the network's own."""
        timestep = torch.tensor([float(step)])
        if isinstance(step, int):
            timestep = torch.tensor([int(SAMPLER.steps[step].timestep)])
        x = torch.full((1, *SHAPE), 0.1 * step) if x is None else x
        told = COND.expand(len(x))
        answer = self.network(x, told, timestep.expand(len(x)))
        return torch.equal(answer, self.twin(x, told, timestep.expand(len(x))))

    @property
    def reason(self) -> str | None:
        assert self.cached.last is not None
        return self.cached.last.fallback[0]


# -- which run, which step -------------------------------------------------------------------------


def test_a_run_is_cached_once_a_run_was_seen_from_its_first_step_to_its_last() -> None:
    case = Case(watched=False)
    assert all(case.ask(step) for step in range(40))
    assert case.reason == WATCHED
    for _ in range(2):
        assert [case.ask(step) for step in range(40)] == [step in PLAN for step in range(40)]
        assert case.reason is None


def test_a_loop_that_is_joined_in_the_middle_is_evaluated() -> None:
    case = Case(watched=False)
    assert all(case.ask(step) for step in range(7, 40))
    assert all(case.ask(step) for step in range(40))
    assert case.ask(0) and not case.ask(1)


@pytest.mark.parametrize("strange", [1, 3, 30, 17.3, 1e9])
def test_a_repeated_skipped_or_unknown_step_is_full_compute_until_a_run_is_in_order(
    strange: int | float,
) -> None:
    case = Case()
    assert case.ask(0) and not case.ask(1)
    assert case.ask(strange)
    assert all(case.ask(step) for step in range(2, 40))
    word = "does not visit" if isinstance(strange, float) else f"step {strange} where 2 was next"
    assert case.reason is not None and word in case.reason
    assert all(case.ask(step) for step in range(40)) and case.reason == WATCHED
    assert case.ask(0) and not case.ask(1)


def test_runs_that_take_turns_are_evaluated() -> None:
    """So are two branches of guidance: their histories would mix."""
    case = Case()
    for _ in range(2):
        for step in range(40):
            assert case.ask(step) and case.ask(step, torch.ones(1, *SHAPE))
        assert case.reason == WATCHED
    assert all(case.ask(step) for step in range(40))
    assert case.ask(0) and not case.ask(1)


def test_the_run_after_one_that_was_aborted_is_evaluated() -> None:
    case = Case()
    assert case.ask(0) and not case.ask(1)
    assert all(case.ask(step) for step in range(40)) and case.reason == WATCHED
    assert case.ask(0) and not case.ask(1)


def test_another_batch_precision_or_shape_is_evaluated() -> None:
    case = Case()
    assert case.ask(0) and case.ask(1, torch.zeros(2, *SHAPE))
    assert case.reason is not None and "a state is (2, 8, 4)" in case.reason
    for x in (torch.zeros(1, 3, 4), torch.zeros(1, *SHAPE).double()):
        case = Case()
        with pytest.raises(RuntimeError):  # the network itself cannot take it: it was asked
            case.ask(0, x)
        assert case.reason is not None and str(x.dtype) in case.reason


@torch.no_grad()
def test_rows_at_different_timesteps_are_evaluated() -> None:
    case = Case()
    assert case.ask(0)
    case.network(torch.zeros(2, *SHAPE), torch.ones(2), torch.tensor([38, 37]))
    assert case.reason is not None and "does not visit" in case.reason


def test_a_loop_that_differentiates_is_evaluated_with_gradients() -> None:
    case = Case()
    for step in range(3):
        x = torch.full((1, *SHAPE), 0.5, requires_grad=True)
        answer = case.network(x, COND, torch.tensor([int(SAMPLER.steps[step].timestep)]))
        (gradient,) = torch.autograd.grad(answer.sum(), x)
        assert float(gradient.abs().sum()) > 0.0
    assert case.reason is not None and "differentiates" in case.reason


@pytest.mark.parametrize("method", ["heun", "rk4"])
@torch.no_grad()
def test_heun_and_rk4_are_full_compute_and_said(method: str) -> None:
    case = Case(euler(10), (0, 3, 6, 9), watched=False)

    def sample(network: Any) -> Tensor:
        x, move = case.noise.initial.clone(), -0.1

        def velocity(x: Tensor, time: float) -> Tensor:
            return network(x, COND, torch.tensor([time])).clone()

        for step in range(10):
            time = 1 - step / 10
            k1 = velocity(x, time)
            if method == "heun":
                x = x + move * (k1 + velocity(x + move * k1, time + move)) / 2
                continue
            k2 = velocity(x + move / 2 * k1, time + move / 2)
            k3 = velocity(x + move / 2 * k2, time + move / 2)
            x = x + move * (k1 + 2 * k2 + 2 * k3 + velocity(x + move * k3, time + move)) / 6
        return x

    for _ in range(3):
        assert torch.equal(sample(case.network), sample(case.twin)) and case.reason == WATCHED


# -- the network ---------------------------------------------------------------------------------


def test_changed_weights_or_mode_are_an_error_at_the_next_run() -> None:
    case = Case()
    case.run()
    averaged = Network(seed=1).state_dict()
    before = copy.deepcopy(case.network.state_dict())
    for value, mean in zip(case.network.parameters(), averaged.values(), strict=True):
        value.data.copy_(mean)  # as an average of weights is swapped in; torch does not count it
    with pytest.raises(CertificateError, match=r"network: its weights.*put that back"):
        case.run()
    for value, old in zip(case.network.parameters(), before.values(), strict=True):
        value.data.copy_(old)
    case.run()
    assert case.reason == WATCHED  # an error ends what was known of the loop
    case.run()
    assert case.reason is None
    case.network.train()
    with pytest.raises(CertificateError, match=r"network: its weights, settings or mode"):
        case.run()
    case.network.eval()
    with (
        torch.autocast("cpu"),
        pytest.raises(CertificateError, match=r"arithmetic: certificate plain, call"),
    ):
        case.run()
    case.network.load_state_dict(averaged)
    with pytest.raises(CertificateError, match="network: its weights"):
        case.run()


def test_a_certificate_for_other_weights_is_refused_or_runs_full_compute() -> None:
    case = Case()
    other = Network(seed=1).eval()
    planner = Planner(diffuser_style(other), SAMPLER, SHAPE)
    with pytest.raises(CertificateError, match=r"model\.weights"):
        intercept(other, planner, case.certificate, read=triple)
    assert "forward" not in vars(other)
    plain = case.run(other)
    cached = intercept(other, planner, case.certificate, read=triple, on_mismatch="full")
    assert torch.equal(case.run(other), plain)
    assert cached.last is not None and cached.last.evaluations.tolist() == [40]
    assert "model.weights" in str(cached.last.fallback[0]) and cached.last.bound is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda x: torch.full_like(x, float("nan")), "NaN or Inf at step 4"),
        (lambda x: (x, x), "the network returned tuple"),
        (lambda x: x[:, :2], r"the network returned (1, 2, 4)"),
    ],
)
def test_an_answer_that_cannot_be_kept_ends_the_forecasts(
    answer: Callable[[Tensor], Any], reason: str
) -> None:
    case = Case()
    for step in range(4):
        case.ask(step)
    inner = case.cached._network
    case.cached._network = lambda x, cond, t: answer(x)
    x = torch.zeros(1, *SHAPE)
    case.network(x, COND, torch.tensor([int(SAMPLER.steps[4].timestep)]))
    case.cached._network = inner
    assert case.reason is not None and reason in case.reason
    assert all(case.ask(step) for step in range(5, 40))


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))]
)
def test_a_copy_is_plain_and_its_own(duplicate: Callable[[Any], Any]) -> None:
    case = Case()
    plain = case.run(case.twin)
    cached = case.run()
    copied = duplicate(case.network)
    assert not isinstance(vars(copied).get("forward"), Interceptor)
    assert copied.forward.__self__ is copied
    assert torch.equal(case.run(copied), plain) and torch.equal(case.run(duplicate(copied)), plain)
    assert torch.equal(case.run(), cached) and not torch.equal(cached, plain)
    planner = Planner(diffuser_style(copied), SAMPLER, SHAPE)
    again = intercept(copied, planner, case.certificate, read=triple)
    case.run(copied)
    assert torch.equal(case.run(copied), cached)
    again.remove()
    assert torch.equal(case.run(copied), plain)
    assert list(copied.state_dict()) == list(case.twin.state_dict())
    assert duplicate(case.cached).__func__ is Network.forward


def test_intercepting_twice_and_removing_twice_are_errors() -> None:
    case = Case()
    with pytest.raises(InputError, match=r"already replaced, by <.*Interceptor"):
        intercept(case.network, case.planner, case.certificate, read=triple)
    case.cached.remove()
    with pytest.raises(InputError, match="nothing to undo"):
        case.cached.remove()


def test_compiled_networks_are_refused_and_compiling_one_changes_nothing() -> None:
    case = Case()
    expected = case.run()
    compiled = torch.compile(case.network, backend="eager")
    for _ in range(2):
        assert torch.equal(case.run(compiled), expected)
    assert case.reason is None
    with pytest.raises(InputError, match="OptimizedModule is compiled"):
        intercept(compiled, case.planner, case.certificate, read=triple)
    in_place = Network().eval()
    in_place.compile(backend="eager")
    with pytest.raises(InputError, match="Network is compiled"):
        intercept(in_place, case.planner, case.certificate, read=triple)
    function = torch.compile(lambda x, cond, t: x, backend="eager")
    with pytest.raises(InputError, match="is compiled"):
        intercept(function, case.planner, case.certificate, read=triple)


def test_a_bound_method_is_followed_as_its_module_and_nothing_is_replaced() -> None:
    case = Case()
    expected = case.run()
    case.cached.remove()
    cached = intercept(case.network.forward, case.planner, case.certificate, read=triple)
    assert "forward" not in vars(case.network)
    case.run(cached)
    assert torch.equal(case.run(cached), expected)
    with pytest.raises(InputError, match="nothing to undo"):
        cached.remove()
    assert copy.deepcopy(cached).__func__ is Network.forward
    with torch.no_grad():
        case.network.outer.bias.add_(1.0)
    with pytest.raises(CertificateError, match="network: its weights"):
        case.run(cached)
