"""When a denoiser fails, its rows get full compute or the error the user asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from analytic import mixture_planner
from muninn.engines.runtime import Runtime, log_once
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from runtime_cases import ANCHORS, SHAPE, STEPS, contexts, gate, own, pin_start, programs, samplers

BAD = 2  # the row that fails, of five
SEEDS = range(5)
Poison = Callable[[Tensor], Any]


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    """Messages that earlier tests logged count as new."""
    log_once.cache_clear()


def marked(rows: int = 5) -> dict[str, Tensor]:
    """A context that tells its rows apart, whatever sub-batch they are in."""
    return {"shift": contexts(rows), "row": torch.arange(rows)}


class Faulty:
    """A denoiser that fails at one sampler step: for one row or all, once or always."""

    def __init__(
        self, planner: Planner, poison: Poison, step: int, row: int | None, times: int
    ) -> None:
        self.inner = planner.denoiser
        self.poison = poison
        self.timestep = float(planner.sampler.steps[step].timestep)
        self.row = row
        self.left = times
        self.calls = 0

    def __call__(self, x: Tensor, timestep: Tensor, context: Any) -> Any:
        self.calls += 1
        prediction = self.inner(x, timestep, context["shift"])
        here = abs(float(timestep[0]) - self.timestep) < 1e-6
        if not here or self.left == 0:
            return prediction
        if self.row is None:
            self.left -= 1
            return self.poison(prediction)
        hit = context["row"] == self.row
        if hit.any():
            self.left -= 1
            prediction[hit] = self.poison(prediction[hit])
        return prediction


def healthy(planner: Planner) -> Planner:
    """The same planner, reading the marked context."""
    inner = planner.denoiser
    return replace(planner, denoiser=lambda x, t, c: inner(x, t, c["shift"]))


def faulty(
    planner: Planner, poison: Poison, *, step: int, row: int | None = BAD, times: int = 1
) -> Planner:
    return replace(planner, denoiser=Faulty(planner, poison, step, row, times))


def planner_for(name: str) -> Planner:
    def pin(x: Tensor, context: Any) -> Tensor:
        return pin_start(x, context["shift"])

    return mixture_planner(samplers()[name], SHAPE, condition=pin)


def nan(prediction: Tensor) -> Tensor:
    return torch.full_like(prediction, float("nan"))


def one_infinity(prediction: Tensor) -> Tensor:
    prediction = prediction.clone()
    prediction.flatten()[-1] = float("inf")
    return prediction


@pytest.mark.parametrize("poison", [nan, one_infinity])
@pytest.mark.parametrize("kind", list(programs(samplers()["ddim"])))
@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_a_row_with_nan_gets_full_compute_and_the_others_do_not_notice(
    name: str, kind: str, poison: Poison
) -> None:
    planner = planner_for(name)
    program, noise = programs(planner.sampler)[kind], planner.draw_noise(seeds=SEEDS)
    clean, clean_record = Runtime(healthy(planner), program)(marked(), noise=noise)
    step = int(np.flatnonzero(clean_record.evaluated[BAD])[3])
    planned, record = Runtime(faulty(planner, poison, step=step), program)(marked(), noise=noise)

    row = torch.tensor([BAD])
    context = {key: value[row] for key, value in marked().items()}
    full = healthy(planner).sample(context, noise=noise.select(row))
    assert torch.equal(planned[row], full)
    others = [other for other in SEEDS if other != BAD]
    # after the failure the sub-batches are smaller: float32 sums in another order
    torch.testing.assert_close(planned[others], clean[others], rtol=0.0, atol=1e-5)
    assert np.array_equal(record.evaluated[others], clean_record.evaluated[others])

    reason = f"the denoiser returned NaN or Inf at step {step}"
    assert record.fallback == tuple(reason if r == BAD else None for r in SEEDS)
    assert record.fallbacks == 1
    # A gate sees the failure at once; a fixed plan reads nothing until its end.
    spent = clean_record.evaluations[BAD] if program.plan.fixed else 4
    assert record.evaluations[BAD] == spent + STEPS
    assert record.evaluations[others].tolist() == clean_record.evaluations[others].tolist()


def test_a_fall_back_is_logged_once_and_counted_every_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    planner = planner_for("ddim")
    broken = faulty(planner, nan, step=4, times=1)
    runtime = Runtime(broken, Program(Forecast("sample", 1), Static(ANCHORS)))
    with caplog.at_level(logging.WARNING, logger="muninn"):
        for _ in range(3):
            broken.denoiser.left = 1  # type: ignore[attr-defined]
            _, record = runtime(marked(), noise=planner.draw_noise(seeds=SEEDS))
            assert record.fallbacks == 1
    messages = [entry.getMessage() for entry in caplog.records if entry.name == "muninn"]
    assert messages == ["falling back to full compute: the denoiser returned NaN or Inf at step 4"]


def test_a_healthy_run_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    planner = planner_for("ddim")
    with caplog.at_level(logging.DEBUG, logger="muninn"):
        Runtime(healthy(planner), gate(planner.sampler))(marked())
    assert caplog.records == []


@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_asked_for_an_error_a_run_raises_it_and_names_step_and_row(name: str) -> None:
    planner = planner_for(name)
    runtime = Runtime(
        faulty(planner, nan, step=4),
        Program(Forecast(own(planner.sampler), 1), Static(ANCHORS)),
        on_failure="error",
    )
    with pytest.raises(DenoiserError, match=r"NaN or Inf at step 4 \(rows \[2\]\)"):
        runtime(marked(), noise=planner.draw_noise(seeds=SEEDS))


@pytest.mark.parametrize("row", [None, BAD])
def test_nan_in_full_compute_too_raises(row: int | None) -> None:
    planner = planner_for("ddim")
    broken = faulty(planner, nan, step=4, row=row, times=-1)
    runtime = Runtime(broken, Program(Forecast("sample", 1), Static(ANCHORS)))
    with pytest.raises(DenoiserError, match="full compute does not give a finite trajectory"):
        runtime(marked(), noise=planner.draw_noise(seeds=SEEDS))


def test_a_run_after_a_failed_one_is_as_if_nothing_had_happened() -> None:
    planner = planner_for("ddpm")
    broken = faulty(planner, nan, step=4, row=None, times=1)
    program = Program(Forecast("sample", 1), Static(ANCHORS))
    runtime = Runtime(broken, program, on_failure="error")
    noise = planner.draw_noise(seeds=SEEDS)
    with pytest.raises(DenoiserError):
        runtime(marked(), noise=noise)
    again, record = runtime(marked(), noise=noise)
    assert torch.equal(again, Runtime(healthy(planner), program)(marked(), noise=noise)[0])
    assert record.fallbacks == 0


def test_forecasts_that_overflow_are_planned_in_full() -> None:
    def huge(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return torch.full_like(x, 2e38)  # constant, but -3 * 2e38 is not a float32 any more

    planner = Planner(huge, samplers()["ddpm"], SHAPE)
    noise = planner.draw_noise(seeds=SEEDS)
    program = Program(Forecast("sample", 2, look_back=False), Static((0, 1, 2, 9)))
    planned, record = Runtime(planner, program)(noise=noise)
    assert torch.equal(planned, planner.sample(noise=noise))
    assert record.fallbacks == 5 and "not finite" in str(record.fallback[0])


# -- predictions that do not fit -----------------------------------------------------------------


MISFITS: dict[str, tuple[Poison, str]] = {
    "shape": (lambda prediction: prediction[:, :2], "returned shape"),
    "broadcastable shape": (lambda prediction: prediction[:, :1], "returned shape"),
    "dtype": (lambda prediction: prediction.double(), "returned torch.float64 after"),
    "integers": (lambda prediction: prediction.long(), "returned torch.int64"),
    "device": (lambda prediction: prediction.to("meta"), "tensor on meta"),
    "type": (lambda prediction: (prediction, None), "returned tuple"),
}


@pytest.mark.parametrize("misfit", list(MISFITS))
@pytest.mark.parametrize("name", ["ddpm", "euler"])
def test_a_prediction_that_suddenly_does_not_fit_leads_to_full_compute(
    name: str, misfit: str
) -> None:
    planner, (poison, message) = planner_for(name), MISFITS[misfit]
    broken = faulty(planner, poison, step=4, row=None, times=1)
    noise = planner.draw_noise(seeds=SEEDS)
    program = Program(Forecast(own(planner.sampler), 1), Static(ANCHORS))
    planned, record = Runtime(broken, program)(marked(), noise=noise)
    assert torch.equal(planned, healthy(planner).sample(marked(), noise=noise))
    assert record.fallbacks == 5 and message in str(record.fallback[0])
    spent = ANCHORS.index(4) + 1 + STEPS
    assert record.evaluations.tolist() == [spent] * 5
    assert broken.denoiser.calls == spent  # type: ignore[attr-defined]


@pytest.mark.parametrize("misfit", list(MISFITS))
def test_a_prediction_that_does_not_fit_is_an_error_if_asked_for(misfit: str) -> None:
    planner, (poison, message) = planner_for("ddim"), MISFITS[misfit]
    broken = faulty(planner, poison, step=4, row=None, times=1)
    program = Program(Forecast("sample", 1), Static(ANCHORS))
    with pytest.raises(DenoiserError, match=message):
        Runtime(broken, program, on_failure="error")(marked())


@pytest.mark.parametrize("misfit", [name for name in MISFITS if name != "dtype"])
def test_a_prediction_that_never_fits_is_a_clear_error_even_with_full_compute(
    misfit: str,
) -> None:
    planner, (poison, message) = planner_for("ddim"), MISFITS[misfit]
    broken = faulty(planner, poison, step=4, row=None, times=-1)
    program = Program(Forecast("sample", 1), Static(ANCHORS))
    with pytest.raises(DenoiserError, match=message):
        Runtime(broken, program)(marked())


def test_errors_of_the_users_own_code_pass_through() -> None:
    class OutOfBattery(RuntimeError):
        pass

    def failing(prediction: Tensor) -> Tensor:
        raise OutOfBattery

    planner = planner_for("ddim")
    broken = faulty(planner, failing, step=4, row=None, times=-1)
    with pytest.raises(OutOfBattery):
        Runtime(broken, Program(Forecast("sample", 1), Static(ANCHORS)))(marked())


# -- bad input -----------------------------------------------------------------------------------


def test_an_unknown_reaction_to_failure_is_refused() -> None:
    planner = planner_for("ddim")
    with pytest.raises(InputError, match="on_failure is 'full' or 'error', got 'ignore'"):
        Runtime(planner, Program.full("sample"), on_failure="ignore")  # type: ignore[arg-type]


def test_a_quantity_that_the_planner_does_not_speak_is_refused() -> None:
    with pytest.raises(InputError, match="cannot forecast 'velocity'"):
        Runtime(planner_for("ddim"), Program.full("velocity"))


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (torch.zeros(0, 2), "the context is empty"),
        (torch.zeros(2, 2, device="meta"), "context is on meta but the planner runs on cpu"),
        ((torch.zeros(2), torch.zeros(3)), r"context\[1\] has 3 rows"),
    ],
)
def test_a_context_that_does_not_fit_is_refused_before_any_evaluation(
    context: Any, message: str
) -> None:
    def untouched(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        raise AssertionError("evaluated")

    planner = Planner(untouched, samplers()["ddim"], SHAPE)
    with pytest.raises(InputError, match=message):
        Runtime(planner, Program.full("sample"))(context)


def test_noise_that_does_not_fit_is_refused() -> None:
    planner = planner_for("ddpm")
    noise = planner.draw_noise(seeds=SEEDS)
    runtime = Runtime(planner, Program.full("sample"))
    with pytest.raises(InputError, match="noise has 5 rows but the context has 4"):
        runtime(marked(4), noise=noise)
    with pytest.raises(InputError, match="lacks the draws of steps"):
        runtime(marked(), noise=replace(noise, steps={}))
