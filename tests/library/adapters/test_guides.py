"""The code of the guides runs as printed, on stand-ins for what the reader has."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler
from torch import Tensor, nn

import muninn
from call_level_cases import SHAPE, Network, clamping_loop
from diffuser_cases import GaussianDiffusion
from muninn.model.planner import Planner

GUIDES = Path(__file__).parents[3] / "docs" / "guides"


def blocks(guide: str, count: int) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)
    assert len(found) == count
    return found


class Smooth(nn.Module):
    """Answers as diffusers' models do, and cheaply: calibration asks thousands of times."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, timestep: Tensor) -> Any:
        return SimpleNamespace(sample=self.weight * torch.tanh(x))


class FirstTwo(nn.Module):
    """Predicts the channels of the state among those that it is given."""

    def forward(self, x: Tensor, timestep: Tensor) -> Tensor:
        return x[:, :, :2]


def test_the_guide_to_diffusers() -> None:
    first, second = blocks("diffusers.md", 2)
    names: dict[str, Any] = {
        "torch": torch,
        "unet": Smooth(),
        "scheduler": DDIMScheduler(50),
        "calls": 150,
        "network": FirstTwo(),
    }
    exec(first, names)
    assert names["record"].fallbacks == 0 and names["trajectory"].shape == (1, 2, 32)
    assert names["certificate"].identity["sampler"]["steps"] == 50
    exec(second, names)
    assert names["planner"].sample(torch.zeros(3, 8, 1)).shape == (3, 8, 2)


class Told(nn.Module):
    """Takes its arguments as the styles pass them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        return self.weight * x


def test_the_guide_to_styles() -> None:
    diffuser, policy, agent = blocks("styles.md", 3)
    diffusion: Any = GaussianDiffusion(Told(), torch.linspace(1e-3, 0.3, 20))
    diffusion.horizon, diffusion.transition_dim, diffusion.action_dim = 8, 6, 2
    names: dict[str, Any] = {
        "diffusion": diffusion,
        "start": torch.zeros(3, 4),
        "goal": torch.ones(3, 4),
        "policy": SimpleNamespace(
            model=Told(), noise_scheduler=DDIMScheduler(100), num_inference_steps=16, horizon=8,
            action_dim=2,
        ),
        "features": torch.zeros(3, 5),
        "known": torch.full((3, 8, 2), 0.25),
        "known_mask": torch.ones(3, 8, 2) > 0,
        "agent": SimpleNamespace(
            alpha=torch.linspace(0.99, 0.05, 50), sigma=torch.linspace(0.01, 0.99, 50),
            diffusion_steps=50, predict_noise=False, x_max=torch.ones(1, 8, 2),
            x_min=-torch.ones(1, 8, 2), fix_mask=torch.ones(1, 8, 2),
            model_ema={"diffusion": Told()},
        ),
        "prior": torch.full((3, 8, 2), 0.5),
        "embedding": torch.zeros(3, 4),
    }  # fmt: skip
    exec(diffuser, names)
    assert torch.equal(names["plan"][:, -1, 2:], names["goal"])
    exec(policy, names)
    assert torch.equal(names["plan"], names["known"])
    exec(agent, names)
    assert torch.equal(names["plan"], names["prior"])
    assert isinstance(names["planner"], Planner)


def test_the_guide_to_loops_that_cannot_be_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    network = Network().eval()
    sampler = muninn.ddim(muninn.Schedule.cosine(40), kind="sample", clip=1.0)
    loop = SimpleNamespace()

    def their_loop(cond: Tensor) -> Tensor:
        noise = loop.planner.draw_noise(len(cond))
        return clamping_loop(network, loop.planner, cond, noise)

    loop.planner = Planner(network, sampler, SHAPE)  # only its steps and its draws are used
    names: dict[str, Any] = {
        "torch": torch,
        "network": network,
        "sampler": sampler,
        "their_loop": their_loop,
        "contexts": torch.randn(200, 1, generator=torch.Generator().manual_seed(0)),
        "new_contexts": torch.randn(3, 1, generator=torch.Generator().manual_seed(1)),
    }
    for block in blocks("call_level.md", 3):
        exec(block, names)
    watched, first, second = capsys.readouterr().out.splitlines()[-3:]
    assert watched.startswith('[40] ("no run before') and first == second
    assert first.endswith("(None,)") and 2 <= int(first.split("]")[0][1:]) < 40
    assert "forward" not in vars(network)


def test_the_guide_to_onnx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.plan").write_bytes(b"a plan")

    class Near(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2, bias=False)
            self.layer.weight.data = 0.5 * torch.eye(2)

        def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
            return self.layer(torch.tanh(x)) + context[:, None] + 0 * timestep[:, None, None]

    names: dict[str, Any] = {
        "network": Near().eval(),
        "sampler": muninn.ddim(muninn.Schedule.cosine(10), kind="sample"),
        "contexts": torch.randn(400, 2, generator=torch.Generator().manual_seed(0)),
        "load_engine": lambda plan: lambda x, timestep, context: x,
    }
    export, certified, robot, int8, engine = blocks("onnx.md", 5)
    for block in (export, certified, robot):
        exec(block, names)
    assert "reference's full compute" in capsys.readouterr().out
    assert names["record"].evaluations[0] < 10 and names["record"].fallback == (None,)
    names["contexts"] = names["contexts"][:150]
    exec(int8, names)
    assert names["certificate"].batch_size == 1 and names["certificate"].member > 0
    exec(engine, names)
    assert names["deployed"].identity()["model"]["weights"] is not None
