"""Spacings are the published ones, visit both ends, and never a state twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muninn.errors import InputError
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler
from muninn.programs.spacing import (
    FINER,
    POWERS,
    distinct,
    sampler_states,
    spacings,
    spread_steps,
    trained_states,
)

FINE = ddim(Schedule.linear(1000), kind="sample")
SAMPLERS: dict[str, Sampler] = {
    "ddim": ddim(Schedule.cosine(100), kind="sample"),
    "16 of 100": ddim(Schedule.cosine(100), 16, kind="sample"),
    "ddpm": ddpm(Schedule.linear(60), kind="sample"),
    "flow": euler(12),
    "upward flow": euler([0.0, 0.1, 0.4, 0.5, 0.9, 1.0]),
}


def ratios(sampler: Sampler) -> Any:
    return np.array([state.noise / state.signal for state in sampler_states(sampler)])


# -- the family --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 7, 20, 99, 100])
def test_even_spacing(count: int) -> None:
    found = spacings(sampler_states(SAMPLERS["ddim"]), count)["t^1" if 2 < count < 100 else "t^0.5"]
    assert found == spread_steps(100, count)
    assert max(np.diff(found)) - min(np.diff(found)) <= 1


def test_quadratic_spacing() -> None:
    """Song et al. (2021): timesteps proportional to i^2."""
    found = spacings(sampler_states(FINE), 12)["t^2"]
    timesteps = 999.0 - np.array(found)
    assert timesteps[::-1] == pytest.approx(999.0 * (np.arange(12) / 11.0) ** 2, abs=0.5)


def test_the_spacing_of_karras() -> None:
    """Equation 5 of Karras et al. (2022) with rho = 7, rounded to states that exist."""
    sigma, count = ratios(FINE), 15
    ramp = np.arange(count) / (count - 1)
    ends = sigma[0] ** (1 / 7), sigma[-1] ** (1 / 7)
    wanted = (ends[0] + ramp * (ends[1] - ends[0])) ** 7
    found = np.array(spacings(sampler_states(FINE), count)["sigma^7"])
    # Where its steps are longer than those of training, the nearest state is visited.
    apart = int((np.diff(found) > 1).sum())
    assert apart > 10
    for place, level in list(zip(found, wanted, strict=True))[1:apart]:
        assert sigma[place - 1] > level > sigma[place + 1]
        assert np.interp(-level, -sigma, np.arange(1000)) == pytest.approx(place, abs=0.5 + 1e-9)


def test_a_large_power_of_sigma_is_nearly_even_in_the_log_snr() -> None:
    sigma = ratios(FINE)

    def unevenness(name: str) -> float:
        moves = -np.diff(np.log(sigma[list(spacings(sampler_states(FINE), 8)[name])]))
        return float(moves.max() / moves.min())

    assert unevenness("sigma^50") < 1.2 < 1.5 < unevenness("sigma^7")


def test_even_steps_of_the_angle() -> None:
    states = sampler_states(FINE)
    places = spacings(states, 9)["angle^1"]
    angle = [np.arctan2(states[place].noise, states[place].signal) for place in places]
    moves = -np.diff(angle)
    assert moves == pytest.approx([moves.mean()] * 8, rel=0.02)


def test_powers_below_one_are_dense_where_noise_is() -> None:
    found = spacings(sampler_states(FINE), 10)
    second = [found[f"t^{power:g}"][1] for power in POWERS["t"]]
    assert second == sorted(second) and len(set(second)) == len(second)


# -- whatever the sampler ----------------------------------------------------------------------


@given(st.sampled_from(list(SAMPLERS)), st.booleans(), st.data())
def test_both_ends_are_visited_and_no_state_twice(name: str, finer: bool, data: Any) -> None:
    states = (trained_states if finer else sampler_states)(SAMPLERS[name])
    count = data.draw(st.integers(2, len(states)))
    found = spacings(states, count)
    assert found and found.keys() == spacings(states, 2).keys()  # a name means the same anywhere
    for places in found.values():
        assert len(places) == count and places[0] == 0 and places[-1] == len(states) - 1
        assert (np.diff(places) >= 1).all()
    if count in (2, len(states)):
        assert len(set(found.values())) == 1  # there is only one way


@given(st.lists(st.floats(0.0, 30.0), min_size=2, max_size=31))
def test_places_are_moved_apart_no_further_than_needed(places: list[float]) -> None:
    wanted = np.array([0.0, *sorted(places)[1:-1], 30.0])
    found = np.array(distinct(wanted, 31))
    assert found[0] == 0 and found[-1] == 30 and (np.diff(found) >= 1).all()
    if (np.diff(np.round(wanted)) >= 1).all():
        assert found.tolist() == np.round(wanted).tolist()


def test_pure_noise_has_no_ratio_to_space() -> None:
    assert not any(name.startswith("sigma") for name in spacings(sampler_states(euler(20)), 6))
    assert any(name.startswith("sigma") for name in spacings(sampler_states(FINE), 6))


# -- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_the_samplers_own_states_are_among_those_of_training(name: str) -> None:
    """Bit for bit: a method that takes the sampler's steps finds them by their timestep."""
    own, trained = sampler_states(SAMPLERS[name]), trained_states(SAMPLERS[name])
    assert (trained[0], trained[-1]) == (own[0], own[-1])
    assert set(own) <= set(trained)
    noise = [state.noise for state in trained]
    assert noise == sorted(noise, reverse=True)


def test_a_short_sampler_has_all_trained_timesteps_between_its_ends() -> None:
    trained = trained_states(SAMPLERS["16 of 100"])
    assert [state.timestep for state in trained] == list(range(90, -1, -1))
    power = Schedule.cosine(100).alpha_bar
    assert [state.signal**2 for state in trained] == pytest.approx(power[90::-1], rel=1e-12)
    assert [state.signal**2 + state.noise**2 for state in trained] == pytest.approx([1.0] * 91)


@pytest.mark.parametrize("name", ["flow", "upward flow"])
def test_a_flow_knows_every_time_between(name: str) -> None:
    sampler = SAMPLERS[name]
    trained = trained_states(sampler)
    assert len(trained) == FINER * (len(sampler) - 1) + 1
    for state in trained:
        assert state.signal + state.noise == pytest.approx(1.0)
        time = 1.0 - state.noise if name == "upward flow" else state.noise
        assert state.timestep == pytest.approx(time)


def test_without_a_schedule_the_samplers_own_states_are_all_there_are() -> None:
    unknown = replace(SAMPLERS["16 of 100"], schedule=None)
    assert trained_states(unknown) == sampler_states(unknown)


@pytest.mark.parametrize("count", [-1, 0, 1, 13])
def test_a_count_that_cannot_be_is_refused(count: int) -> None:
    states = sampler_states(SAMPLERS["flow"])
    with pytest.raises(InputError, match=rf"choose between 2 and 12 evaluations, got {count}"):
        spacings(states, count)
    with pytest.raises(InputError, match=rf"choose between 2 and 12 evaluations, got {count}"):
        spread_steps(12, count)
