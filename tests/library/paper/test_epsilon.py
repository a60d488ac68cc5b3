"""The cached noise prediction takes the sampler's own step; the band of reuse is the paper's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analytic import mixture_denoiser
from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.model.solvers import ddim, ddpm, euler
from muninn.paper.epsilon import eligible_steps, require_eligible, used_epsilon
from runtime_cases import SCHEDULE, SHAPE, STEPS


def sampler_of(name: str, kind: Kind) -> Sampler:
    return {
        "ddpm": lambda: ddpm(SCHEDULE, STEPS, kind=kind),
        "clipped ddpm": lambda: ddpm(SCHEDULE, STEPS, kind=kind, clip=0.4),
        "ddim": lambda: ddim(SCHEDULE, STEPS, kind=kind),
        "stochastic ddim": lambda: ddim(SCHEDULE, STEPS, kind=kind, eta=0.7),
        "clipped ddim": lambda: ddim(SCHEDULE, STEPS, kind=kind, clip=0.4),
        "clipped ddim, epsilon kept": lambda: ddim(
            SCHEDULE, STEPS, kind=kind, clip=0.4, keep_epsilon=True
        ),
    }[name]()


NAMES = [
    "ddpm", "clipped ddpm", "ddim", "stochastic ddim", "clipped ddim", "clipped ddim, epsilon kept",
]  # fmt: skip


def draw(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, *SHAPE, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["epsilon", "sample", "v"])
@pytest.mark.parametrize("name", NAMES)
def test_the_cached_epsilon_takes_the_same_step_as_the_prediction(name: str, kind: Kind) -> None:
    sampler = sampler_of(name, kind)
    prediction = 1.5 * draw(1)  # far enough out for every clip to bite
    for step in (0, 7, STEPS - 2):
        x, noise = draw(2), draw(3)
        epsilon = used_epsilon(sampler, x, prediction, step)
        torch.testing.assert_close(
            sampler.step(x, epsilon, step, noise, "epsilon"),
            sampler.step(x, prediction, step, noise),
            rtol=1e-11,
            atol=1e-11,
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_network_that_predicts_epsilon_is_taken_at_its_word(name: str) -> None:
    prediction = draw(1).half()
    assert used_epsilon(sampler_of(name, "epsilon"), draw(2), prediction, 5) is prediction


@pytest.mark.parametrize("kind", ["sample", "v"])
def test_without_clipping_the_parameterisation_of_the_network_does_not_matter(kind: Kind) -> None:
    x, timestep = draw(2), torch.full((3,), ddim(SCHEDULE, STEPS).steps[9].timestep)
    said = {}
    for own in ("epsilon", kind):
        sampler = sampler_of("ddim", own)  # type: ignore[arg-type]
        said[own] = used_epsilon(sampler, x, mixture_denoiser(sampler, SHAPE)(x, timestep), 9)
    torch.testing.assert_close(said[kind], said["epsilon"], rtol=1e-11, atol=1e-11)


def test_the_clean_sample_is_clipped_before_epsilon_is_derived_and_only_where_it_is_derived() -> (
    None
):
    x, prediction = torch.full((1, 1, 1), 0.5), torch.full((1, 1, 1), 2.0)
    clipped = sampler_of("clipped ddim", "sample")
    kept = sampler_of("clipped ddim, epsilon kept", "sample")
    level = clipped.steps[4]
    derived = float(used_epsilon(clipped, x, prediction, 4))
    raw = float(used_epsilon(kept, x, prediction, 4))
    assert derived == pytest.approx((0.5 - level.signal * 0.4) / level.noise, rel=1e-6)
    assert raw == pytest.approx((0.5 - level.signal * 2.0) / level.noise, rel=1e-6)


def test_a_flow_has_a_noise_prediction_even_where_it_starts() -> None:
    sampler, x, velocity = euler(8), draw(1), draw(2)
    for step in (0, 3):
        level = sampler.steps[step]
        expected = x + level.signal * velocity
        torch.testing.assert_close(used_epsilon(sampler, x, velocity, step), expected)


def test_a_half_precision_prediction_is_derived_in_the_precision_of_the_state() -> None:
    sampler = sampler_of("clipped ddim", "sample")
    x, prediction = draw(1).float(), draw(2).half()
    epsilon = used_epsilon(sampler, x, prediction, 6)
    assert epsilon.dtype == torch.float32
    assert torch.equal(epsilon, used_epsilon(sampler, x, prediction.float(), 6))


# -- the band ----------------------------------------------------------------------------------

PAPER = {100: (10, 80), 20: (2, 16), 10: (1, 8), 25: (3, 19), 60: (6, 48), 150: (15, 120),
         16: (2, 12)}  # fmt: skip


@pytest.mark.parametrize("steps", PAPER)
def test_the_band_is_that_of_the_papers_table(steps: int) -> None:
    edge, count = PAPER[steps]
    eligible = eligible_steps(steps)
    assert len(eligible) == count
    # the definition, in the paper's own t = T..1
    assert {steps - i for i in eligible} == {
        t for t in range(1, steps + 1) if edge < t <= steps - edge
    }


@given(st.integers(3, 400), st.integers(0, 40), st.integers(0, 40))
def test_the_band_never_holds_the_first_step_nor_leaves_its_edges(
    steps: int, prefix: int, suffix: int
) -> None:
    expected = [i for i in range(steps) if i >= prefix and i < steps - suffix and i > 0]
    if expected:
        assert list(eligible_steps(steps, prefix, suffix)) == expected
    else:
        with pytest.raises(InputError, match="leave none"):
            eligible_steps(steps, prefix, suffix)


def test_negative_edges_and_impossible_bands_are_refused() -> None:
    with pytest.raises(InputError, match="-1"):
        eligible_steps(10, prefix=-1)
    for band in ((), (0, 1), (3, 2), (2, 2), (9, 10)):
        with pytest.raises(InputError, match="between 1 and 9"):
            require_eligible(band, 10)
    require_eligible((1, 5, 9), 10)
