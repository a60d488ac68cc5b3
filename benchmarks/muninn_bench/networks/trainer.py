"""The one training loop: warm-up and cosine, averaged weights, progress, resumed where it stopped.

What is trained is a :class:`Lesson`. The learning rate falls along a cosine that ends with the
budget (time or steps, whichever ends first), so the budget is that of the whole training;
``pause_minutes`` ends one part of it early, and the same command takes up the next.
"""

from __future__ import annotations

import copy
import math
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.progress import bars
from muninn_bench.report.table import write_csv

SAVE_SECONDS = 60.0
"""Between two checkpoints: more is not lost when a training is interrupted."""


@dataclass(frozen=True)
class Training:
    """Settings of one training.

    Attributes:
        out: folder of the weights, ``training.csv`` and ``checkpoint.pt``.
        minutes, steps: budget of the whole training, parts before a pause included.
        pause_minutes: stop when this much of the budget is used.
        learning_rate, warmup: its peak, and the steps over which it rises.
        averaging: decay of the weight average.
        weight_decay, betas: of AdamW.
        report: steps between two rows of the training curve.
        fast: compile the loss and compute it in bfloat16.
        seed: of weights, batches and noise.
    """

    out: Path
    minutes: float = 15.0
    pause_minutes: float | None = None
    steps: int | None = None
    batch: int = 512
    learning_rate: float = 7e-4
    warmup: int = 500
    averaging: float = 0.9995
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    report: int = 500
    device: str = "cuda"
    fast: bool = True
    seed: int = 0

    def rate(self, step: int, spent: float) -> float:
        """Linear warm-up times a cosine in the spent share of the budget."""
        warmup = min(1.0, (step + 1) / max(1, self.warmup))
        return self.learning_rate * warmup * 0.5 * (1.0 + math.cos(math.pi * min(1.0, spent)))


class Lesson(Protocol):
    """What is learned: a network, batches and a loss, and the file that comes out.

    Attributes:
        kind: of what is learned, by name; a checkpoint of another kind is refused.
        network: on the device, in training mode.
    """

    kind: str
    network: nn.Module

    def batch(self, count: int, generator: torch.Generator) -> tuple[Any, ...]:
        """A random batch on the device, with whatever noise the loss needs."""

    def loss(self, network: nn.Module, *batch: Any) -> Tensor:
        """The loss of a network on a batch, a scalar."""

    def validation(self, generator: torch.Generator) -> tuple[Any, ...]:
        """A batch that is not trained on; the same for the same generator state."""

    def save(self, network: nn.Module, out: Path) -> Path:
        """Write the file of a network with averaged weights; returns its path."""


@runtime_checkable
class Trailing(Protocol):
    """A lesson that learns from the averaged weights, too: target networks, data of its own."""

    def trail(self, average: nn.Module, spent: float) -> None:
        """Called before every step with the averaged network and the spent share of the budget."""


def train(lesson: Lesson, settings: Training) -> Path:
    """Train to the end of the budget, or of a part of it; returns the file of the weights.

    Raises:
        InputError: the checkpoint in the folder is of another network.
    """
    device = torch.device(settings.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
    network = lesson.network
    average = copy.deepcopy(network).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=settings.betas,
        fused=device.type == "cuda",
    )
    step, seconds, rows = 0, 0.0, list[dict[str, float]]()
    checkpoint = settings.out / "checkpoint.pt"
    if checkpoint.is_file():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        if saved["kind"] != lesson.kind:
            raise InputError(
                f"{checkpoint} is of {saved['kind']}, not of {lesson.kind}; choose another folder, "
                "or delete it"
            )
        network.load_state_dict(saved["network"])
        average.load_state_dict(saved["average"])
        optimizer.load_state_dict(saved["optimizer"])
        step, seconds, rows = saved["step"], saved["seconds"], saved["rows"]
    generator = torch.Generator(device).manual_seed(settings.seed + step)
    torch.manual_seed(settings.seed + step)  # losses may draw from the global generator

    def loss_of(model: nn.Module, batch: tuple[Any, ...]) -> Tensor:
        cast = torch.autocast(device.type, torch.bfloat16)
        with cast if settings.fast else nullcontext():
            return lesson.loss(model, *batch)

    compiled: Any = torch.compile(loss_of) if settings.fast else loss_of
    weights: list[Tensor] = list(network.parameters())
    averages: list[Tensor] = list(average.parameters())
    budget = settings.minutes * 60.0
    pause = min(budget, (settings.pause_minutes or settings.minutes) * 60.0)
    total, since = torch.zeros((), device=device), 0
    started: float | None = None
    already = kept = seconds
    trailing = lesson if isinstance(lesson, Trailing) else None

    def spent() -> float:
        return max(seconds / budget, step / settings.steps if settings.steps else 0.0)

    def save() -> Path:
        """Keep what there is; each file is whole at any moment."""
        path = lesson.save(average, settings.out)
        if rows:
            write_csv(settings.out / "training.csv", rows)
        state = {"network": network.state_dict(), "average": average.state_dict(),
                 "optimizer": optimizer.state_dict(), "step": step, "seconds": seconds,
                 "rows": rows, "kind": lesson.kind}  # fmt: skip
        # Last: a disk that fills up before leaves the checkpoint to go on from.
        write_whole(checkpoint, lambda file: torch.save(state, file))
        return path

    with bars(True) as bar:
        advance = bar("train", settings.steps or max(1, round(pause)))
        advance(step if settings.steps else round(seconds))
        while seconds < pause and spent() < 1.0:
            rate, before = settings.rate(step, spent()), round(seconds)
            for group in optimizer.param_groups:
                group["lr"] = rate
            if trailing is not None:
                trailing.trail(average, spent())
            loss = compiled(network, lesson.batch(settings.batch, generator))
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            decay = min(settings.averaging, (1.0 + step) / (10.0 + step))
            with torch.no_grad():  # else the averages would remember every step they came from
                torch._foreach_lerp_(averages, weights, 1.0 - decay)
            step, since = step + 1, since + 1
            total += loss.detach()
            if started is None:
                loss.item()
                started = time.monotonic()  # compilation is not training
            if step % 20 == 0:
                loss.item()  # wait for the device, so that the clock is right
            seconds = already + time.monotonic() - started
            advance(1 if settings.steps else round(seconds) - before)
            done = seconds >= pause or spent() >= 1.0
            if step % settings.report == 0 or done:
                fixed = torch.Generator(device).manual_seed(settings.seed + 2)
                with torch.no_grad(), torch.random.fork_rng():
                    torch.manual_seed(settings.seed + 2)
                    held_out = float(loss_of(average, lesson.validation(fixed)))
                mean = float(total) / since
                rows.append({"step": step, "seconds": round(seconds, 1), "learning_rate": rate,
                             "loss": mean, "validation_loss": held_out})  # fmt: skip
                total.zero_()
                since = 0
                print(" ".join(f"{name}={value:.5g}" for name, value in rows[-1].items()))
            if seconds >= kept + SAVE_SECONDS and not done:
                save()
                kept = seconds
    return save()
