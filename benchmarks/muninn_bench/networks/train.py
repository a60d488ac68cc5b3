"""Train a planner: ``python -m muninn_bench.networks.train --data FILE --out FOLDER --minutes M``.

``--architecture unet`` predicts the clean plan in coordinates of [-1, 1], ``transformer`` the noise
in standardised ones; the rest is shared. Needs torch, numpy and safetensors alone. The learning
rate falls along a cosine that ends with the time budget, so the budget must be the time of the
whole training; ``--pause-minutes`` ends one part of it early and ``--resume`` takes the next part
up. Writes ``teacher.safetensors`` (the average of the weights), ``checkpoint.pt`` and
``training.csv`` into the folder.
"""

from __future__ import annotations

import argparse
import copy
import csv
import io
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import Schedule
from muninn_bench.networks.runs import Runs, load_runs
from muninn_bench.networks.teacher import (
    Network,
    NetworkConfig,
    Teacher,
    build_network,
    save_teacher,
)
from muninn_bench.networks.transformer import TransformerConfig
from muninn_bench.networks.unet import UnetConfig
from muninn_bench.networks.windows import (
    PlanSource,
    largest_value,
    split_runs,
    standard_limits,
    symmetric_limits,
)
from muninn_bench.tasks.maze2d.planner import inpaint_ends

ARCHITECTURES: dict[str, type[NetworkConfig]] = {
    "unet": UnetConfig,
    "transformer": TransformerConfig,
}

SAVE_SECONDS = 60.0
"""Between two checkpoints: more is not lost when a training is interrupted."""

_COLUMNS = ("step", "seconds", "learning_rate", "loss", "validation_loss")


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of one training.

    Attributes:
        data: Runs, written by a task's ``data`` module; they say which channels are inpainted, and
            the time between frames.
        out: Folder for the results.
        minutes: Time budget of the whole training, parts before a resume included.
        pause_minutes: Stop when this much of the budget is used, leaving a checkpoint.
        resume: Checkpoint to continue from.
        maximum_steps: Stop after this many steps at the latest.
        batch: Plans per step.
        learning_rate: Peak learning rate.
        warmup_steps: Steps over which the learning rate rises.
        averaging: Decay of the weight average.
        horizon: Frames per plan.
        diffusion_steps: Steps of the cosine schedule.
        whole_share: Share of plans that start at a run's start; the others start on the way.
        validation_share: Share of runs, the last ones, kept out of training.
        report_steps: Steps between two rows of the training curve.
        seed: Seed of weights, batches and noise.
        device: ``cuda`` or ``cpu``.
        fast: Compile the network and compute in bfloat16.
        network: Architecture; its kind decides coordinates and prediction too.
    """

    data: Path
    out: Path
    minutes: float = 15.0
    pause_minutes: float | None = None
    resume: Path | None = None
    maximum_steps: int | None = None
    batch: int = 512
    learning_rate: float = 7e-4
    warmup_steps: int = 500
    averaging: float = 0.9995
    horizon: int = 256
    diffusion_steps: int = 100
    whole_share: float = 0.6
    validation_share: float = 0.01
    report_steps: int = 500
    seed: int = 0
    device: str = "cuda"
    fast: bool = True
    network: NetworkConfig = field(default_factory=UnetConfig)


class PlanLoss(nn.Module):
    """Mean squared error of the prediction in units of the output scaling.

    The error at timestep ``t`` is divided by ``gain[t]``, which is the loss of the learned
    correction with equal weight at every step. For a network that predicts the clean plan the last,
    least noisy steps are so learned as well. For one that predicts the noise it is the first steps:
    plain squared error of the noise weighs them by ``abar[t]``, 2e-7 to 1, but the route is chosen
    there, and the sampler multiplies an error of the noise by ``1 / sqrt(abar[t])`` to get a plan.

    The noise to predict is what the inpainted input contains, ``(x - sqrt(abar) x0) / sqrt(1 -
    abar)``. Away from the inpainted entries this is the drawn noise; at them the drawn noise was
    overwritten, and no network could tell it.
    """

    signal: Tensor
    noise: Tensor

    def __init__(self, network: Network, alpha_bar: Tensor, state_channels: int = 4) -> None:
        super().__init__()
        self.network = network
        self.state_channels = state_channels
        self.register_buffer("signal", alpha_bar.sqrt().float())
        self.register_buffer("noise", (1.0 - alpha_bar).sqrt().float())

    def forward(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Return the loss per plan, ``(batch,)``, of plans ``(batch, horizon, channels)``."""
        signal, spread = self.signal[t][:, None, None], self.noise[t][:, None, None]
        noisy = signal * clean + spread * noise
        noisy = inpaint_ends(noisy, clean[:, :: clean.shape[1] - 1, : self.state_channels])
        target = clean if self.network.predicts == "sample" else (noisy - signal * clean) / spread
        error: Tensor = (self.network(noisy, t) - target) / self.network.gain[t][:, None, None]
        return error.square().mean(dim=(1, 2))


def train(config: TrainingConfig) -> Path:
    """Train, or continue training, and return the path of the teacher file.

    Raises:
        FileNotFoundError: If the data or the checkpoint does not exist.
        InputError: If the data holds fewer than two runs, or frames that the network does not fit.
    """
    device = torch.device(config.device)
    torch.manual_seed(config.seed)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    runs = load_runs(config.data)
    if runs.frames.shape[1] != config.network.channels:
        raise InputError(
            f"{config.data} has frames of {runs.frames.shape[1]} channels, the network "
            f"{config.network.channels}; set the network's channels"
        )
    low, high, clip = _coordinates(config.network, runs)
    training, held_out = split_runs(runs, config.validation_share)
    source = PlanSource(training, low, high, config.horizon, device)
    schedule = Schedule.cosine(config.diffusion_steps)
    network = build_network(config.network, schedule, config.horizon).to(device)
    average = copy.deepcopy(network).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=1e-4, betas=(0.9, 0.99),
        fused=device.type == "cuda",
    )  # fmt: skip
    alpha_bar = torch.from_numpy(schedule.alpha_bar)
    loss_of = PlanLoss(network, alpha_bar, runs.state_channels).to(device)
    average_loss_of = PlanLoss(average, alpha_bar, runs.state_channels).to(device)
    generator = torch.Generator(device).manual_seed(config.seed)
    step, seconds, rows = 0, 0.0, list[dict[str, float]]()
    if config.resume is not None:
        saved = torch.load(config.resume, map_location=device, weights_only=True)
        network.load_state_dict(saved["network"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])
        step, seconds, rows = saved["step"], saved["seconds"], saved["rows"]
        generator.manual_seed(config.seed + step)

    def noisy_loss(module: Any, windows: Tensor, source_of_noise: torch.Generator) -> Tensor:
        count = len(windows)
        t = torch.randint(
            config.diffusion_steps, (count,), generator=source_of_noise, device=device
        )
        noise = torch.randn(windows.shape, generator=source_of_noise, device=device)
        precision = torch.autocast(device.type, torch.bfloat16) if config.fast else nullcontext()
        with precision:
            loss: Tensor = module(windows, noise, t).mean()
        return loss

    check = torch.Generator(device).manual_seed(config.seed + 1)
    held_out_windows = PlanSource(held_out, low, high, config.horizon, device).draw(
        max(config.batch, 4 * (len(held_out.offsets) - 1)), config.whole_share, check
    )
    config.out.mkdir(parents=True, exist_ok=True)
    compiled: Any = torch.compile(loss_of) if config.fast else loss_of
    weights: list[Tensor] = list(network.parameters())
    averages: list[Tensor] = list(average.parameters())
    budget, pause = config.minutes * 60.0, (config.pause_minutes or config.minutes) * 60.0
    total, since_report = torch.zeros((), device=device), 0
    started: float | None = None
    already = kept = seconds

    def save() -> Path:
        """Keep what there is; each file is whole at any moment."""
        state = {
            "network": network.state_dict(), "average": average.state_dict(),
            "optimizer": optimizer.state_dict(), "step": step, "seconds": seconds, "rows": rows,
        }  # fmt: skip
        teacher = Teacher(
            average, low, high, config.horizon, schedule, runs.frame_seconds, network.predicts, clip
        )
        path = config.out / "teacher.safetensors"
        save_teacher(path, teacher)
        write_whole(config.out / "training.csv", _curve(rows))
        # Last: a disk that fills up before leaves the checkpoint to go on from.
        write_whole(config.out / "checkpoint.pt", lambda file: torch.save(state, file))
        return path

    while True:
        rate = _learning_rate(config, step, seconds / budget)
        for group in optimizer.param_groups:
            group["lr"] = rate
        windows = source.draw(config.batch, config.whole_share, generator)
        loss = noisy_loss(compiled, windows, generator)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        decay = min(config.averaging, (1.0 + step) / (10.0 + step))
        torch._foreach_lerp_(averages, weights, 1.0 - decay)
        step += 1
        total += loss.detach()
        since_report += 1
        if started is None:
            # Compilation is not training: the clock starts after the first step.
            loss.item()
            started = time.monotonic()
        if step % 20 == 0 or config.maximum_steps is not None:
            loss.item()
        seconds = already + time.monotonic() - started
        done = seconds >= min(pause, budget) or (
            config.maximum_steps is not None and step >= config.maximum_steps
        )
        if seconds >= kept + SAVE_SECONDS and not done:
            save()
            kept = seconds
        if step % config.report_steps == 0 or done:
            fixed = torch.Generator(device).manual_seed(config.seed + 2)
            with torch.no_grad():
                validation = float(noisy_loss(average_loss_of, held_out_windows, fixed))
            values = (step, round(seconds, 1), rate, float(total) / since_report, validation)
            rows.append(dict(zip(_COLUMNS, values, strict=True)))
            total.zero_()
            since_report = 0
            print(" ".join(f"{name}={value:.6g}" for name, value in rows[-1].items()), flush=True)
        if done:
            break

    return save()


def _coordinates(network: NetworkConfig, runs: Runs) -> tuple[Tensor, Tensor, float]:
    """Return the limits of the coordinates, and the bound on clean plans in them."""
    if isinstance(network, UnetConfig):
        return *symmetric_limits(runs), 1.0
    low, high = standard_limits(runs)
    return low, high, largest_value(runs, low, high)


def _learning_rate(config: TrainingConfig, step: int, spent: float) -> float:
    """Return the learning rate: linear warm-up times a cosine in the spent share of the budget."""
    warmup = min(1.0, (step + 1) / max(1, config.warmup_steps))
    return config.learning_rate * warmup * 0.5 * (1.0 + math.cos(math.pi * min(1.0, spent)))


def _curve(rows: list[dict[str, float]]) -> str:
    """Return the loss curve as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m muninn_bench.networks.train", description=__doc__
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--architecture", choices=tuple(ARCHITECTURES), default="unet")
    parser.add_argument("--minutes", type=float, default=TrainingConfig.minutes)
    parser.add_argument("--pause-minutes", type=float)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--maximum-steps", type=int)
    parser.add_argument("--batch", type=int, default=TrainingConfig.batch)
    parser.add_argument("--learning-rate", type=float, default=TrainingConfig.learning_rate)
    parser.add_argument("--report-steps", type=int, default=TrainingConfig.report_steps)
    parser.add_argument("--seed", type=int, default=TrainingConfig.seed)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=TrainingConfig.device)
    parser.add_argument("--plain", action="store_true", help="neither compile nor use bfloat16")
    options = vars(parser.parse_args(arguments))
    fast = not options.pop("plain")
    network = ARCHITECTURES[options.pop("architecture")]()
    print(train(TrainingConfig(**options, fast=fast, network=network)))


if __name__ == "__main__":
    main()
