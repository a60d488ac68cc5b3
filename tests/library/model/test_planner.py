"""The plain sampler: draws in order, conditions where asked, and refuses what does not fit."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from analytic import Counting, mixture_denoiser, mixture_planner, polynomial_planner
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Noise, Planner
from muninn.model.sampler import Sampler
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim, ddpm, euler

SHAPE = (4, 2)
SCHEDULE = Schedule.cosine(40)


def samplers() -> dict[str, Sampler]:
    return {
        "ddpm": ddpm(SCHEDULE, 12, kind="sample", clip=1.0),
        "ddim": ddim(SCHEDULE, 12, kind="epsilon", clip=1.0),
        "stochastic ddim": ddim(SCHEDULE, 12, kind="v", eta=0.6),
        "euler": euler(12),
    }


def pin_start(x: Tensor, context: Any) -> Tensor:
    """Writes the first entry of every trajectory in place, as Diffuser does."""
    x[:, 0] = 0.5
    return x


@pytest.mark.parametrize("name", list(samplers()))
@pytest.mark.parametrize("when", [None, "before", "after"])
def test_one_generator_gives_what_a_hand_written_loop_draws_in_order(name: str, when: Any) -> None:
    sampler = samplers()[name]
    denoiser = mixture_denoiser(sampler, SHAPE)
    condition = None if when is None else pin_start
    planner = Planner(denoiser, sampler, SHAPE, condition, when or "before")
    planned = planner.sample(torch.zeros(3, 2), generator=torch.Generator().manual_seed(7))

    generator = torch.Generator().manual_seed(7)
    x = torch.randn(3, *SHAPE, generator=generator)
    for index, step in enumerate(sampler.steps):
        if when == "before":
            x[:, 0] = 0.5
        dtype = torch.float32 if sampler.flow else torch.long
        prediction = denoiser(x, torch.full((3,), step.timestep, dtype=dtype), torch.zeros(3, 2))
        xi = torch.randn(3, *SHAPE, generator=generator) if step.draws_noise else None
        x = sampler.step(x, prediction, index, xi)
        if when == "after":
            x[:, 0] = 0.5
    if when == "before":
        x[:, 0] = 0.5
    assert torch.equal(planned, x)


@pytest.mark.parametrize(("when", "pinned"), [("before", True), ("after", False)])
def test_conditioning_before_writes_the_first_state_and_after_leaves_it_drawn(
    when: Any, pinned: bool
) -> None:
    seen: list[Tensor] = []
    sampler = samplers()["ddim"]
    inner = mixture_denoiser(sampler, SHAPE)

    def denoiser(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        seen.append(x.clone())
        return inner(x, timestep, context)

    planner = Planner(denoiser, sampler, SHAPE, pin_start, when)
    noise = planner.draw_noise(seeds=[1])
    before = noise.initial.clone()
    planned = planner.sample(noise=noise)
    assert bool((seen[0][:, 0] == 0.5).all()) is pinned
    assert all((x[:, 0] == 0.5).all() for x in seen[1:]) and (planned[:, 0] == 0.5).all()
    assert torch.equal(noise.initial, before)


@pytest.mark.parametrize("name", list(samplers()))
def test_a_rows_noise_follows_its_seed_and_not_its_batch(name: str) -> None:
    planner = mixture_planner(samplers()[name], SHAPE)
    together = planner.draw_noise(seeds=[3, 1, 2])
    for row, seed in enumerate([3, 1, 2]):
        alone = planner.draw_noise(seeds=[seed])
        assert torch.equal(together.initial[row : row + 1], alone.initial)
        assert set(together.steps) == set(alone.steps)
        for step, draw in alone.steps.items():
            assert torch.equal(together.steps[step][row : row + 1], draw)
    assert not torch.equal(together.initial[0], together.initial[1])
    drawing = {i for i, step in enumerate(planner.sampler.steps) if step.draws_noise}
    assert set(together.steps) == drawing


def test_selecting_noise_takes_the_same_rows_of_every_draw() -> None:
    planner = mixture_planner(samplers()["ddpm"], SHAPE)
    noise = planner.draw_noise(seeds=[0, 1, 2])
    some = noise.select(torch.tensor([2, 0]))
    assert torch.equal(some.initial, planner.draw_noise(seeds=[2, 0]).initial)
    assert torch.equal(some.steps[4], planner.draw_noise(seeds=[2, 0]).steps[4])
    draw = noise.at(4, torch.tensor([1]))
    assert draw is not None and torch.equal(draw, noise.steps[4][1:2])
    assert noise.at(11, slice(None)) is None  # DDPM draws nothing at timestep 0


@pytest.mark.parametrize("name", list(samplers()))
def test_the_plain_sampler_evaluates_every_step_once_in_order(name: str) -> None:
    sampler = samplers()[name]
    counting = Counting(mixture_denoiser(sampler, SHAPE))
    Planner(counting, sampler, SHAPE).sample(torch.zeros(3, 2))
    assert counting.rows == [3] * 12
    expected = [float(torch.tensor(step.timestep).float()) for step in sampler.steps]
    assert counting.timesteps == expected


def test_without_context_one_trajectory_is_drawn() -> None:
    assert mixture_planner(samplers()["euler"], SHAPE).sample().shape == (1, *SHAPE)
    assert mixture_planner(samplers()["euler"], SHAPE).draw_noise(5).initial.shape == (5, *SHAPE)


def test_the_network_is_told_integers_for_diffusion_and_floats_for_flow() -> None:
    diffusion, flow = (mixture_planner(samplers()[name]) for name in ("ddim", "euler"))
    assert diffusion.timestep(0, 2).dtype == torch.long
    assert diffusion.timestep(0, 2).tolist() == [33, 33]
    assert flow.timestep(3, 2).dtype == torch.float32 and flow.timestep(3, 2).shape == (2,)


def test_a_clean_polynomial_sample_is_where_the_sampler_ends() -> None:
    sampler = ddim(SCHEDULE, 12, kind="sample")
    planner = polynomial_planner(sampler, 2, SHAPE, dtype=torch.float64)
    last = planner.denoiser(torch.zeros(1, *SHAPE).double(), planner.timestep(11, 1), None)
    torch.testing.assert_close(planner.sample(), last, rtol=0.0, atol=1e-12)


def test_a_network_predicting_a_gaussian_mixture_samples_near_its_modes() -> None:
    sampler = ddim(Schedule.cosine(100), kind="epsilon")
    planner = mixture_planner(sampler, (2, 2), deviation=0.02, spread=2.0)
    means = planner.denoiser.means.float()  # type: ignore[attr-defined]
    planned = planner.sample(noise=planner.draw_noise(64, generator=torch.Generator()))
    nearest = (planned[:, None] - means[None]).flatten(2).norm(dim=2).min(dim=1)
    assert float(nearest.values.max()) < 0.25  # modes are 2 apart, deviations 0.02 to 0.03
    assert len(set(nearest.indices.tolist())) == 3


# -- identity ----------------------------------------------------------------------------------


def test_identity_is_plain_and_changes_with_the_program() -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    base = planner.identity()
    assert json.loads(json.dumps(base)) == base
    others = [
        replace(planner, condition=pin_start),
        replace(planner, condition_when="after"),
        replace(planner, dtype=torch.float64),
        replace(planner, shape=(4, 3)),
        mixture_planner(samplers()["ddpm"], SHAPE),
    ]
    assert all(other.identity() != base for other in others)
    assert base["shape"] == [4, 2] and base["dtype"] == "float32" and base["device"] == "cpu"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CPU devices carry no index")
def test_a_device_without_an_index_is_the_one_its_tensors_say() -> None:
    on_cpu = mixture_planner(samplers()["ddim"], SHAPE)
    planner = replace(on_cpu, denoiser=on_cpu.denoiser.to(torch.device("cuda")), device="cuda")
    assert planner.device == torch.zeros(1, device="cuda").device
    assert planner.sample(torch.zeros(2, 2, device="cuda")).shape == (2, *SHAPE)


# -- bad input -----------------------------------------------------------------------------------


def ddpm_noise(**changes: Any) -> Noise:
    noise = mixture_planner(samplers()["ddpm"], SHAPE).draw_noise(seeds=[0, 1])
    return replace(noise, **changes)


@pytest.mark.parametrize(
    ("context", "noise", "message"),
    [
        (torch.zeros(0, 2), None, "the context is empty"),
        ({"a": torch.zeros(2, 2), "b": torch.zeros(3, 2)}, None, r"\['b'\] has 3 rows"),
        ({"goal": torch.zeros(2, 2, device="meta")}, None, r"context\['goal'\] is on meta but"),
        (None, ddpm_noise(initial=torch.zeros(2, 5, 2)), r"noise has shape \(2, 5, 2\)"),
        (None, ddpm_noise(initial=torch.zeros(4, 2)), r"noise has shape \(4, 2\)"),
        (torch.zeros(3, 2), ddpm_noise(), "noise has 2 rows but the context has 3"),
        (None, ddpm_noise(initial=torch.zeros(2, 4, 2).double()), "noise is torch.float64 on cpu"),
        (None, ddpm_noise(initial=torch.zeros(2, 4, 2, device="meta")), "float32 on meta"),
        (None, ddpm_noise(initial=torch.zeros(0, 4, 2)), "noise holds no row"),
        (None, ddpm_noise(steps={}), r"lacks the draws of steps \[0, 1, 2\]"),
        (
            None,
            ddpm_noise(steps={step: torch.zeros(1, 4, 2) for step in range(11)}),
            r"draw of step 0 has shape \(1, 4, 2\)",
        ),
    ],
)
def test_context_and_noise_that_do_not_fit_are_refused(
    context: Any, noise: Noise | None, message: str
) -> None:
    planner = mixture_planner(samplers()["ddpm"], SHAPE)
    with pytest.raises(InputError, match=message):
        planner.sample(context, noise=noise)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": ()}, "shape must be that of one trajectory"),
        ({"shape": (4, 0)}, "shape must be that of one trajectory"),
        ({"condition_when": "sometimes"}, "'before' or 'after', got 'sometimes'"),
        ({"dtype": torch.int64}, "must be a floating-point dtype, got torch.int64"),
    ],
)
def test_a_planner_that_cannot_work_is_refused(fields: dict[str, Any], message: str) -> None:
    planner = mixture_planner(samplers()["ddim"], SHAPE)
    with pytest.raises(InputError, match=message):
        replace(planner, **fields)


@pytest.mark.parametrize("wanted", [{"batch": 0}, {"batch": -1}, {"seeds": []}])
def test_noise_for_no_rows_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="at least one row"):
        mixture_planner(samplers()["ddpm"], SHAPE).draw_noise(**wanted)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: (x,), "returned tuple"),
        (lambda x: x[:, :1], "returned shape"),
        (lambda x: x.to("meta"), "on meta"),
    ],
)
def test_the_plain_sampler_says_what_is_wrong_with_a_prediction(answer: Any, message: str) -> None:
    planner = Planner(lambda x, t, c: answer(x), samplers()["ddim"], SHAPE)
    with pytest.raises(DenoiserError, match=message):
        planner.sample()


@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_a_sampler_with_one_step_is_a_plain_sampler(name: str) -> None:
    sampler = {
        "ddpm": ddpm(SCHEDULE, 1, kind="sample", spacing="trailing"),
        "ddim": ddim(SCHEDULE, 1, kind="sample", spacing="trailing"),
        "euler": euler(1, kind="sample"),
    }[name]
    counting = Counting(mixture_denoiser(sampler, SHAPE))
    planner = Planner(counting, sampler, SHAPE)
    noise = planner.draw_noise(seeds=[0])
    planned = planner.sample(noise=noise)
    assert len(counting.rows) == 1
    expected = counting.inner(noise.initial, planner.timestep(0, 1), None)
    torch.testing.assert_close(planned, expected, rtol=0.0, atol=1e-6)


def test_a_scheduler_and_a_plain_tensor_are_not_taken_for_sampler_and_noise() -> None:
    scheduler: Any = object()
    with pytest.raises(InputError, match=r"sampler is made by muninn\.ddim.*got object"):
        Planner(lambda x, t, c: x, scheduler, (4, 2))
    sampler = ddim(Schedule.cosine(5), kind="sample")
    plain = Planner(lambda x, t, c: x, sampler, (4, 2))
    noise: Any = torch.zeros(1, 4, 2)
    with pytest.raises(InputError, match=r"planner\.draw_noise\(batch\); got Tensor"):
        plain.sample(noise=noise)


def first_of_each(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
    goal = context["obs"] if isinstance(context, dict) else context
    return x * goal[:, :1, None]


@pytest.mark.parametrize(
    ("context", "place"),
    [(torch.zeros(2), "context[None]"), ({"obs": torch.zeros(2)}, "context['obs'][None]")],
)
def test_a_single_call_without_its_row_is_told_how_to_get_one(context: Any, place: str) -> None:
    planner = Planner(first_of_each, ddim(SCHEDULE, 4, kind="sample"), SHAPE)
    with pytest.raises(InputError, match=re.escape(f"the first counts calls: give {place} for")):
        planner.sample(context)


def test_an_error_of_the_network_says_what_it_was_called_with() -> None:
    def swapped(timestep: Tensor, x: Tensor, context: Any) -> Tensor:
        return x.expand(7, 7) + timestep

    planner = Planner(swapped, ddim(SCHEDULE, 4, kind="sample"), SHAPE)
    with pytest.raises(RuntimeError) as told:
        planner.sample({"goal": torch.zeros(3, 2)})
    said = f"x (3, {SHAPE[0]}, {SHAPE[1]}) torch.float32, context['goal'] (3, 2) torch.float32"
    if sys.version_info >= (3, 11):
        assert told.value.__notes__ == [
            f"Muninn calls the network with x, timestep and context: {said}"
        ]

    def full_memory(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(InputError, match=r"network failed \(RuntimeError: out of memory\), and"):
        replace(planner, denoiser=full_memory).sample(torch.zeros(3))


def test_one_number_a_call_is_a_context_and_other_errors_stay_as_they_are() -> None:
    def scaled(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return x * context[:, None, None]

    sampler = ddim(SCHEDULE, 4, kind="sample")
    assert Planner(scaled, sampler, SHAPE).sample(torch.ones(3)).shape == (3, *SHAPE)
    with pytest.raises(TypeError):
        Planner(first_of_each, sampler, SHAPE).sample({"obs": None})
