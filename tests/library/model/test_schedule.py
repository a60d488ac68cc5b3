"""Schedules and spacings are those of diffusers, and bad tables are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from muninn.errors import InputError, MuninnError
from muninn.model.schedule import Schedule, spaced_timesteps

MAKERS = {
    "squaredcos_cap_v2": Schedule.cosine,
    "linear": Schedule.linear,
    "scaled_linear": Schedule.scaled_linear,
}


@pytest.mark.parametrize("steps", [100, 1000])
@pytest.mark.parametrize("name", list(MAKERS))
def test_tables_equal_the_diffusers_schedule_of_the_same_name(name: str, steps: int) -> None:
    theirs = DDPMScheduler(num_train_timesteps=steps, beta_schedule=name)
    ours = MAKERS[name](steps)
    assert ours.steps == steps
    # diffusers stores float32 betas: 6e-8 of rounding, worth 6e-5 of 1 - 0.999 and of a
    # product of a thousand factors.
    np.testing.assert_allclose(ours.alpha_bar, theirs.alphas_cumprod.double().numpy(), rtol=2e-4)
    exact = np.cumprod(1.0 - theirs.betas.double().numpy())
    np.testing.assert_allclose(ours.alpha_bar, exact, rtol=1e-4)


def test_from_betas_is_the_product_of_kept_signal() -> None:
    table = Schedule.from_betas("mine", np.array([0.1, 0.2, 0.5])).alpha_bar
    np.testing.assert_allclose(table, [0.9, 0.9 * 0.8, 0.9 * 0.8 * 0.5], rtol=1e-15)


def test_custom_ends_of_linear_schedules_are_honoured() -> None:
    theirs = DDPMScheduler(100, beta_start=0.001, beta_end=0.05, beta_schedule="scaled_linear")
    ours = Schedule.scaled_linear(100, 0.001, 0.05)
    np.testing.assert_allclose(ours.alpha_bar, theirs.alphas_cumprod.double().numpy(), rtol=2e-5)
    assert "0.05" in ours.name


@settings(max_examples=150)
@given(
    training=st.sampled_from([10, 100, 128, 1000]),
    share=st.floats(0.0, 1.0),
    spacing=st.sampled_from(["leading", "trailing", "linspace"]),
    offset=st.integers(0, 1),
)
def test_spacings_visit_the_timesteps_of_diffusers(
    training: int, share: float, spacing: str, offset: int
) -> None:
    steps = max(1, round(share * (training - 1)))
    theirs = DDIMScheduler(training, timestep_spacing=spacing, steps_offset=offset)
    theirs.set_timesteps(steps)
    ours = spaced_timesteps(training, steps, spacing, offset)  # type: ignore[arg-type]
    # diffusers' trailing spacing has rounding that appends a timestep -1 for some counts
    # (29 of 100, say); ours keeps to the count that was asked for.
    assert ours == theirs.timesteps.tolist()[:steps]


@pytest.mark.parametrize("spacing", ["leading", "trailing", "linspace"])
@pytest.mark.parametrize("training", [1, 7, 50, 100, 150])
def test_every_count_gives_that_many_decreasing_timesteps_in_range(
    training: int, spacing: str
) -> None:
    for steps in range(1, training + 1):
        visited = spaced_timesteps(training, steps, spacing)  # type: ignore[arg-type]
        assert len(visited) == steps, (training, steps)
        assert visited == sorted(set(visited), reverse=True)
        assert visited[-1] >= 0 and visited[0] < training


def test_digest_tells_tables_apart_and_ignores_how_they_were_made() -> None:
    table = Schedule.cosine(50)
    assert table.digest() == Schedule("other name", table.alpha_bar.copy()).digest()
    assert table.digest() != Schedule.cosine(51).digest()
    assert table.digest() != Schedule.linear(50).digest()


def test_a_schedule_does_not_change_when_the_table_it_was_given_does() -> None:
    table = np.array([0.9, 0.5, 0.1])
    schedule = Schedule("mine", table)
    table[1] = 0.8
    assert schedule.alpha_bar[1] == 0.5


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], "non-empty 1-D table"),
        ([[0.9, 0.5]], r"non-empty 1-D table, got shape \(1, 2\)"),
        ([0.9, 0.5, 0.0], r"must lie in \(0, 1\)"),
        ([1.0, 0.5], r"must lie in \(0, 1\)"),
        ([1.2, 0.5], r"must lie in \(0, 1\)"),
        ([0.9, float("nan")], r"must lie in \(0, 1\)"),
        ([0.9, 0.5, 0.5], r"strictly decrease.*alpha_bar\[2\]"),
        ([0.5, 0.9], r"strictly decrease.*index 0 is the least noisy"),
    ],
)
def test_a_bad_table_is_refused_with_its_reason(table: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Schedule("bad", np.array(table))
    assert isinstance(caught.value, MuninnError) and isinstance(caught.value, ValueError)


def test_more_sampler_steps_than_training_steps_are_refused() -> None:
    with pytest.raises(InputError, match="101 sampler steps of a model trained with 100"):
        spaced_timesteps(100, 101)


@pytest.mark.parametrize("steps", [0, -3])
def test_a_schedule_without_steps_is_refused(steps: int) -> None:
    with pytest.raises(InputError, match="at least one step"):
        spaced_timesteps(100, steps)
    for make in MAKERS.values():
        with pytest.raises(InputError, match="at least one step"):
            make(steps)


def test_an_unknown_spacing_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="'even'; choose leading, trailing or linspace"):
        spaced_timesteps(100, 10, "even")  # type: ignore[arg-type]


def test_an_offset_past_the_last_training_step_is_refused() -> None:
    with pytest.raises(InputError, match="offset 1 moves the first timestep to 100"):
        spaced_timesteps(100, 100, "leading", 1)
    assert spaced_timesteps(100, 50, "leading", 1)[0] == 99
    with pytest.raises(InputError, match="offset -1 moves the last timestep to -1"):
        spaced_timesteps(100, 50, "leading", -1)


def test_tables_are_float64_whatever_they_came_from() -> None:
    schedule = Schedule("mine", torch.tensor([0.9, 0.5]).numpy())
    assert schedule.alpha_bar.dtype == np.float64
