"""Each style and condition repeats its framework's loop, written here independently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    HeunDiscreteScheduler,
    UNet1DModel,
    UniPCMultistepScheduler,
)
from torch import Tensor, nn

from muninn.adapters.diffusers_sampler import DiffusersSampler
from muninn.adapters.styles import (
    diffusers_style,
    diffusion_policy_style,
    dp3_style,
    masked,
    planner_from_diffusers,
)
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.planner import Planner
from muninn.programs.plan import Program
from style_cases import ACTION, BATCH, HORIZON, SIZE, bits, seeded


class Network(nn.Module):
    """Some function of trajectory, timestep (a number or one per row) and a condition."""

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inner = nn.Linear(SIZE + extra + 1, 16)
            self.outer = nn.Linear(16, SIZE)

    def mix(self, x: Tensor, timestep: Tensor, *extra: Tensor) -> Tensor:
        times = timestep.reshape(-1).expand(len(x)) / 100
        told = [*extra, times[:, None, None].expand(-1, x.shape[1], 1)]
        return self.outer(torch.tanh(self.inner(torch.cat([x, *told], dim=2))))


class PolicyNetwork(Network):
    """Takes local (batch, horizon, 2) and global (batch, 3) conditions."""

    def __init__(self) -> None:
        super().__init__(extra=5)

    def forward(
        self, sample: Tensor, timestep: Tensor, local_cond: Any = None, global_cond: Any = None
    ) -> Tensor:
        local = torch.zeros(*sample.shape[:2], 2) if local_cond is None else local_cond
        overall = torch.zeros(len(sample), 3) if global_cond is None else global_cond
        return self.mix(sample, timestep, local, overall[:, None].expand(-1, sample.shape[1], -1))


class KeywordNetwork(PolicyNetwork):
    def forward(  # type: ignore[override]
        self, *, sample: Tensor, timestep: Tensor, local_cond: Any = None, global_cond: Any = None
    ) -> Tensor:
        return super().forward(sample, timestep, local_cond, global_cond)


# -- diffusion_policy and DP3 --------------------------------------------------------------------


def policy_loop(
    call: Any, scheduler: Any, steps: int, context: dict[str, Tensor], generator: Any
) -> Tensor:
    """Conditioned before every call and once at the end; the network is told one 0-d timestep."""
    data, mask = context["condition_data"], context["condition_mask"]
    x = torch.randn(data.shape, generator=generator)
    scheduler.set_timesteps(steps)
    for t in scheduler.timesteps:
        assert t.ndim == 0
        x[mask] = data[mask]
        output = call(x, t, context.get("local_cond"), context.get("global_cond"))
        x = scheduler.step(output, t, x, generator=generator).prev_sample
    x[mask] = data[mask]
    return x


def conditions(rows: int = BATCH) -> dict[str, Tensor]:
    generator = seeded(1)
    data = torch.randn(rows, HORIZON, SIZE, generator=generator)
    mask = torch.zeros(rows, HORIZON, SIZE, dtype=torch.bool)
    mask[:, :2, ACTION:] = True
    return {
        "condition_data": data,
        "condition_mask": mask,
        "local_cond": torch.randn(rows, HORIZON, 2, generator=generator),
        "global_cond": torch.randn(rows, 3, generator=generator),
    }


CASES = [
    (DDPMScheduler(100, beta_schedule="squaredcos_cap_v2"), 100),
    (DDIMScheduler(100, beta_schedule="squaredcos_cap_v2"), 16),
    (DDIMScheduler(100, beta_schedule="squaredcos_cap_v2", prediction_type="sample"), 10),
]


@pytest.mark.parametrize(("scheduler", "steps"), CASES)
@pytest.mark.parametrize("style", ["diffusion_policy", "dp3"])
@pytest.mark.parametrize("missing", ["nothing", "local_cond", "global_cond"])
def test_policy_styles_are_their_loops_bit_for_bit(
    scheduler: Any, steps: int, style: str, missing: str
) -> None:
    model = (PolicyNetwork() if style == "diffusion_policy" else KeywordNetwork()).eval()

    def call(x: Tensor, t: Tensor, local: Any, overall: Any) -> Tensor:
        if style == "diffusion_policy":
            return model(x, t, local_cond=local, global_cond=overall)
        return model(sample=x, timestep=t, local_cond=local, global_cond=overall)

    denoiser = diffusion_policy_style(model) if style == "diffusion_policy" else dp3_style(model)
    planner = Planner(
        denoiser, DiffusersSampler(scheduler, steps), (HORIZON, SIZE), condition=masked
    )
    context = {key: value for key, value in conditions().items() if key != missing}
    with torch.no_grad():
        own = policy_loop(call, scheduler, steps, context, seeded())
    noise = planner.draw_noise(BATCH, generator=seeded())
    assert torch.equal(bits(planner.sample(context, noise=noise)), bits(own))
    full, record = Runtime(planner, Program.full(planner.sampler.kind))(context, noise=noise)
    assert torch.equal(bits(full), bits(own)) and record.evaluations.tolist() == [steps] * BATCH
    others = {**context, "condition_data": context["condition_data"] + 1.0}
    assert not torch.equal(planner.sample(others, noise=noise), own)


def test_a_context_in_another_form_is_refused() -> None:
    denoiser = diffusion_policy_style(PolicyNetwork())
    x, timestep = torch.zeros(1, HORIZON, SIZE), torch.zeros(1, dtype=torch.long)
    with pytest.raises(InputError, match=r"condition_data.*got Tensor"):
        denoiser(x, timestep, torch.zeros(1, 3))
    with pytest.raises(InputError, match=r"global_cond.*got .*'goal'"):
        denoiser(x, timestep, {"goal": torch.zeros(1, 3)})


# -- diffusers -----------------------------------------------------------------------------------


def unet() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return UNet1DModel(
            sample_size=32,
            in_channels=2,
            out_channels=2,
            block_out_channels=(32, 64),
            down_block_types=("DownBlock1D", "DownBlock1D"),
            up_block_types=("UpBlock1D", "UpBlock1D"),
            mid_block_type="UNetMidBlock1D",
            extra_in_channels=0,
            time_embedding_type="positional",
        ).eval()


@pytest.mark.parametrize(("scheduler", "steps"), [(DDPMScheduler(50), 50), (DDIMScheduler(50), 12)])
def test_a_diffusers_model_and_scheduler_are_diffusers_loop_bit_for_bit(
    scheduler: Any, steps: int
) -> None:
    model = unet()
    generator = seeded()
    x = torch.randn((BATCH, 2, 32), generator=generator)
    scheduler.set_timesteps(steps)
    for t in scheduler.timesteps:
        with torch.no_grad():
            output = model(x, t).sample
        x = scheduler.step(output, t, x, generator=generator).prev_sample
    planner = planner_from_diffusers(model, scheduler, steps, (2, 32))
    ours = planner.sample(noise=planner.draw_noise(BATCH, generator=seeded()))
    assert torch.equal(bits(ours), bits(x)) and float(x.std()) > 0.1


def test_keywords_precision_and_conditions_reach_a_diffusers_model() -> None:
    model = PolicyNetwork().double().eval()
    planner = planner_from_diffusers(
        model, DDIMScheduler(100), 5, (HORIZON, SIZE), condition=lambda x, _: x.clamp_(-2.0, 2.0)
    )
    assert planner.dtype == torch.float64 and planner.device == torch.device("cpu")
    x, t = torch.zeros(2, HORIZON, SIZE).double(), torch.tensor([3, 3])
    told = {"global_cond": torch.ones(2, 3).double()}
    expected = model(x, t, global_cond=told["global_cond"])
    assert torch.equal(diffusers_style(model)(x, t, told), expected)
    assert float(planner.sample(told).abs().max()) <= 2.0


@pytest.mark.parametrize(
    "scheduler",
    [DPMSolverMultistepScheduler(100), UniPCMultistepScheduler(100), HeunDiscreteScheduler(100)],
)
def test_multistep_and_heun_schedulers_are_refused_by_name(scheduler: Any) -> None:
    with pytest.raises(InputError, match=f"{type(scheduler).__name__} is not supported.*DDPM"):
        planner_from_diffusers(unet(), scheduler, 10, (2, 32))


def test_a_model_in_train_mode_is_refused() -> None:
    with pytest.raises(InputError, match=r"train mode; call model\.eval\(\)"):
        planner_from_diffusers(unet().train(), DDPMScheduler(50), 10, (2, 32))


def test_rows_may_stand_at_different_steps() -> None:
    """The batched engine evaluates rows at their own steps: one number for all would be wrong."""
    model, rng = PolicyNetwork().eval(), np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(2, HORIZON, SIZE))).float()
    t = torch.tensor([10, 60])
    together = diffusion_policy_style(model)(x, t, {})
    alone = [model(x[i : i + 1], t[i]) for i in range(2)]
    torch.testing.assert_close(together, torch.cat(alone))
