"""A small network, a planner around it on any engine, and what a stranger may do to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from muninn.certify.calibrate import calibrate
from muninn.certify.certificate import Certificate
from muninn.model.planner import Engine, Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static

SHAPE = (8, 2)
STEPS = 12
TOLERANCE = 0.3
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ENGINES: tuple[Engine, ...] = ("eager", "compile")
if torch.cuda.is_available():
    ENGINES = ("eager", "graph", "compile")
FAMILY = Family.of(
    Forecast("sample", 1),
    (Everywhere(), Static((0, 1, 2, 3, 4, 6, 8, 10, 11)), Static((0, 1, 2, 4, 7, 11))),
    "static",
)


class Small(nn.Module):
    """Two layers that see state, timestep and a context of four numbers."""

    def __init__(self, activation: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Linear(16 + 1 + 4, 32)
            self.last = nn.Linear(32, 16)
        self.activation = activation or nn.SiLU()
        self.dropout = nn.Dropout(dropout)
        self.repeats = 1
        self.eval()
        self.to(DEVICE)

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        told = (timestep / STEPS)[:, None].to(x.dtype)
        hidden = torch.cat([x.flatten(1), told, context], dim=1)
        for _ in range(self.repeats):
            hidden = torch.cat([self._layers(hidden), hidden[:, 16:]], dim=1)
        return hidden[:, :16].view_as(x)

    def _layers(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.last(self.dropout(self.activation(self.first(hidden))))
        return found


def planner(network: Any | None = None, engine: Engine = "eager", **more: Any) -> Planner:
    sampler = ddim(Schedule.cosine(STEPS), kind="sample")
    return Planner(network or Small(), sampler, SHAPE, device=DEVICE, engine=engine, **more)


def contexts(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator).to(DEVICE)


def certify(own: Planner, calls: Any = None, **changes: Any) -> Certificate:
    """A small certificate with a frozen family."""
    settings: dict[str, Any] = {
        "tolerance": TOLERANCE, "risk": 0.1, "family": FAMILY, "progress": False,
    }  # fmt: skip
    return calibrate(own, contexts(72) if calls is None else calls, **{**settings, **changes})
