"""Train the Meta-World policies: LeRobot's own class and loss in a loop that keeps a GPU busy.

``python -m muninn_bench.tasks.metaworld.train --out models/metaworld/diffusion`` trains on a data file;
neither Meta-World nor mujoco is needed. Stopped at any time and started again, it goes on from
the checkpoint in the folder. The policy that is written holds averaged weights.
"""

from __future__ import annotations

import argparse
import copy
import csv
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muninn.errors import InputError
from muninn.files import write_whole
from muninn.progress import bars
from muninn_bench.tasks.metaworld.data import load_demonstrations
from muninn_bench.tasks.metaworld.flow import flow_loss
from muninn_bench.tasks.metaworld.policy import make_policy, make_processors, save_policy
from muninn_bench.tasks.metaworld.windows import Windows

Loss = Callable[[Any, dict[str, Tensor]], Tensor]


def diffusion_loss(policy: Any, batch: dict[str, Tensor]) -> Tensor:
    """LeRobot's."""
    loss: Tensor = policy.forward(batch)[0]
    return loss


LOSSES: dict[str, Loss] = {"diffusion": diffusion_loss, "flow": flow_loss}

_COLUMNS = ("step", "seconds", "learning_rate", "loss", "validation_loss")


@dataclass(frozen=True)
class Training:
    """Settings of one training.

    Attributes:
        data: file of :mod:`muninn_bench.tasks.metaworld.data`.
        out: folder of the policy, its curve and checkpoint.
        kind: ``diffusion`` or ``flow``.
        steps: of the optimiser.
        minutes: time budget, parts before a resume included. The learning rate ends at zero
            with whichever budget ends first.
        batch: windows per step.
        learning_rate: at its peak.
        warmup: steps over which it rises.
        averaging: decay of the weight average.
        held_out: share of episodes, the last ones, for the validation loss.
        report: steps between two rows of the curve.
        device: ``cuda`` or ``cpu``.
        bfloat16: compute the loss in bfloat16.
        compiled: compile the U-Net.
        seed: of weights, batches and noise.
    """

    data: Path
    out: Path
    kind: str = "diffusion"
    steps: int = 30_000
    minutes: float = 8.0
    batch: int = 1024
    learning_rate: float = 5e-4
    warmup: int = 500
    averaging: float = 0.999
    held_out: float = 0.03
    report: int = 500
    device: str = "cuda"
    bfloat16: bool = False
    compiled: bool = False
    seed: int = 0


class Trainer:
    """The state of a training; everything that a checkpoint holds."""

    def __init__(self, settings: Training) -> None:
        if settings.kind not in LOSSES:
            raise InputError(f"kind is one of {', '.join(LOSSES)}, got {settings.kind!r}")
        self.settings = settings
        self.device = torch.device(settings.device)
        torch.manual_seed(settings.seed)
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cudnn.allow_tf32 = True
        whole = load_demonstrations(settings.data)
        kept = whole.episodes - max(1, round(settings.held_out * whole.episodes))
        if kept < 1:
            raise InputError(f"{settings.data} holds {whole.episodes} episodes; give at least 2")
        self.policy = make_policy().to(self.device).train()
        self.processors = make_processors(self.policy, whole)
        config, normalise = self.policy.config, self.processors[0]
        self.windows = Windows(whole.part(0, kept), config, normalise, self.device)
        check = Windows(whole.part(kept, whole.episodes), config, normalise, self.device)
        self.validation = check.take(torch.arange(min(len(check), 2048), device=self.device))
        self.average = copy.deepcopy(self.policy).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=settings.learning_rate,
            betas=config.optimizer_betas,
            weight_decay=config.optimizer_weight_decay,
            fused=self.device.type == "cuda",
        )
        self.step, self.seconds = 0, 0.0
        self.rows: list[dict[str, float]] = []
        self._checkpoint = settings.out / "checkpoint.pt"
        if self._checkpoint.is_file():
            self._resume()
        self._generator = torch.Generator(self.device).manual_seed(settings.seed + self.step)
        torch.manual_seed(settings.seed + self.step)  # the losses draw from the global generator
        if settings.compiled:
            self.policy.diffusion.unet.compile()

    @property
    def spent(self) -> float:
        """Share of the budget that is used up, 0 to 1."""
        settings = self.settings
        return min(1.0, max(self.step / settings.steps, self.seconds / (60.0 * settings.minutes)))

    def run(self) -> Path:
        """Train to the end of the budget; the folder of the policy."""
        settings = self.settings
        settings.out.mkdir(parents=True, exist_ok=True)
        already, began, saved = self.seconds, time.monotonic(), time.monotonic()
        total, since = torch.zeros((), device=self.device), 0
        with bars(True) as task:
            advance = task(f"train {settings.kind}", settings.steps)
            advance(self.step)
            while self.spent < 1.0:
                total += self._update()
                since += 1
                advance(1)
                if self.step % 50 == 0:
                    total.item()  # wait for the device, so that the clock is right
                self.seconds = already + time.monotonic() - began
                if self.step % settings.report == 0 or self.spent >= 1.0:
                    self._report(float(total) / since)
                    total.zero_()
                    since = 0
                    if time.monotonic() - saved > 60.0:
                        self._save_checkpoint()
                        saved = time.monotonic()
        self._save_checkpoint()
        save_policy(settings.out, self.average.to("cpu"), *self.processors)
        return settings.out

    def _update(self) -> Tensor:
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.windows.draw(self.settings.batch, self._generator)
        loss = self._loss(self.policy, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        decay = min(self.settings.averaging, (1.0 + self.step) / (10.0 + self.step))
        weights = [each.detach() for each in self.policy.parameters()]
        torch._foreach_lerp_(list(self.average.parameters()), weights, 1.0 - decay)
        self.step += 1
        return loss.detach()

    def _loss(self, policy: Any, batch: dict[str, Tensor]) -> Tensor:
        cast = torch.autocast(self.device.type, torch.bfloat16)
        with cast if self.settings.bfloat16 else nullcontext():
            return LOSSES[self.settings.kind](policy, batch)

    def _rate(self) -> float:
        """Linear warm-up times a cosine in the spent share of the budget."""
        warmup = min(1.0, (self.step + 1) / self.settings.warmup)
        return self.settings.learning_rate * warmup * 0.5 * (1.0 + math.cos(math.pi * self.spent))

    def _report(self, loss: float) -> None:
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(self.settings.seed)  # the same noise every time
            validation = float(LOSSES[self.settings.kind](self.average, self.validation))
        values = (self.step, round(self.seconds, 1), self._rate(), loss, validation)
        self.rows.append(dict(zip(_COLUMNS, values, strict=True)))
        print(" ".join(f"{name}={value:.5g}" for name, value in self.rows[-1].items()), flush=True)
        with (self.settings.out / "training.csv").open("w", newline="") as stream:
            writer = csv.DictWriter(stream, _COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def _save_checkpoint(self) -> None:
        state = {
            "policy": self.policy.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "rows": self.rows,
            "kind": self.settings.kind,
        }
        write_whole(self._checkpoint, lambda file: torch.save(state, file))

    def _resume(self) -> None:
        saved = torch.load(self._checkpoint, map_location=self.device, weights_only=True)
        if saved["kind"] != self.settings.kind:
            raise InputError(
                f"{self._checkpoint} belongs to a {saved['kind']} policy, not to a "
                f"{self.settings.kind} one; choose another folder"
            )
        self.policy.load_state_dict(saved["policy"])
        self.average.load_state_dict(saved["average"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.seconds, self.rows = saved["step"], saved["seconds"], saved["rows"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        prog="python -m muninn_bench.tasks.metaworld.train", description=__doc__
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("data/metaworld.npz"))
    parser.add_argument("--kind", choices=tuple(LOSSES), default=Training.kind)
    parser.add_argument("--steps", type=int, default=Training.steps)
    parser.add_argument("--minutes", type=float, default=Training.minutes)
    parser.add_argument("--batch", type=int, default=Training.batch)
    parser.add_argument("--learning-rate", type=float, default=Training.learning_rate)
    parser.add_argument("--report", type=int, default=Training.report)
    parser.add_argument("--device", choices=("cuda", "cpu"), default=Training.device)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--seed", type=int, default=Training.seed)
    print(f"wrote {Trainer(Training(**vars(parser.parse_args(arguments)))).run()}")


if __name__ == "__main__":
    main()
