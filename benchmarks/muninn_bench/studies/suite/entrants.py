"""Who plans: full compute, a program, or the published method; and the planner it runs on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from muninn.context import Context
from muninn.engines.choose import runtime_for
from muninn.model.denoiser import ClassifierFreeGuidance
from muninn.model.planner import Noise, Planner
from muninn.paper.envelope import fit_envelope
from muninn.paper.gates import paper_budget
from muninn.paper.ghost import GhostPairs
from muninn.paper.named_split import NamedSplit
from muninn.paper.policy import ProbedPlanner
from muninn.paper.split import GuidedSplit, Probe, Split, split_of
from muninn.programs.plan import AnyProgram, Program
from muninn.record import Record
from muninn_bench.measure.protocol import Run, plain
from muninn_bench.networks.on_gpu import InGraphs, moved
from muninn_bench.planners.decision_diffuser import LabelledDenoiser
from muninn_bench.planners.diffusion_ql import CandidateDenoiser
from muninn_bench.task import Task

RISK, CONFIDENCE = 0.05, 0.95
"""Of every promise, the published method's among them."""

PAPER = "paper"


class Site:
    """One variant of a task on a device; ``folder`` holds what the published method measured."""

    def __init__(self, task: Task, variant: str, device: str, folder: Path) -> None:
        self.task, self.variant, self.device, self.folder = task, variant, device, folder

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: vars(self)[name] for name in ("variant", "device", "folder")}
        return {"name": self.task.name, **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from muninn_bench.registry import find_task

        self.task = find_task(state.pop("name"))
        vars(self).update(state)

    @cached_property
    def planner(self) -> Planner:
        """Full compute; on a GPU its network is in CUDA graphs."""
        return moved(self.task.planner(self.variant), self.device)

    @cached_property
    def bare(self) -> Planner:
        """The same with a network that can be looked into, or captured with all around it."""
        return moved(self.task.planner(self.variant), self.device, graphs=False)

    @cached_property
    def single(self) -> Planner:
        """The one that single calls are timed on: on a GPU a call is one CUDA graph."""
        return replace(self.bare, engine="graph") if self.device == "cuda" else self.planner

    @property
    def rows(self) -> int:
        """Calls that are planned together."""
        return 512 if self.device == "cuda" else 64

    def ghosts(self, probe: str) -> Path:
        """Where the pairs of Algorithm 2 lie."""
        return self.folder / f"ghosts-{probe}.safetensors"

    def probes(self) -> dict[str, Probe]:
        """What the published method looks at, by the name of its line."""
        denoiser: Any = self.bare.denoiser
        if isinstance(denoiser, CandidateDenoiser):
            # The paper has the penultimate layer, which is nearly the whole network: both.
            network = denoiser.network
            first, last = "layers.0", "layers.5"
            return {
                PAPER: Probe(NamedSplit(denoiser, network, first, "tokens")),
                f"{PAPER}-penultimate": Probe(NamedSplit(denoiser, network, last, "tokens")),
            }
        if isinstance(denoiser, ClassifierFreeGuidance) and isinstance(
            denoiser.denoiser, LabelledDenoiser
        ):
            inner = denoiser.denoiser
            split = NamedSplit(inner, inner.network, "first", "time_last")
            return {PAPER: Probe(GuidedSplit(denoiser, split))}
        whole = split_of(denoiser)
        return {PAPER: Probe(CapturedSplit(whole) if self.device == "cuda" else whole)}


class CapturedSplit:
    """A split whose parts are CUDA graphs: launched one by one, their kernels take minutes more.

    For parts that are functions of tensors alone.
    """

    def __init__(self, split: Split) -> None:
        self.stem = InGraphs(_Part(split.stem))
        self.core = InGraphs(_Part(split.core))
        self.feature = split.feature


class _Part(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *given: Tensor) -> Tensor:
        """What the function returns."""
        return self._function(*given)


@dataclass(frozen=True)
class Entrant:
    """Somebody who plans; ``told`` is a program, or a probe and a tolerance, as JSON."""

    kind: Literal["full", "program", "paper"]
    told: str = ""

    @classmethod
    def of(cls, program: AnyProgram) -> Entrant:
        """A program."""
        return cls("program", json.dumps(program.to_json(), sort_keys=True))

    @classmethod
    def published(cls, probe: str, tolerance: float) -> Entrant:
        """The published method."""
        return cls("paper", json.dumps({"probe": probe, "tolerance": tolerance}))

    @property
    def key(self) -> str:
        """Short, and another for every other entrant."""
        hashed = hashlib.sha256(self.told.encode()).hexdigest()[:16]
        return self.kind if self.kind == "full" else f"{self.kind}-{hashed}"

    @property
    def program(self) -> AnyProgram:
        """Of a program."""
        return AnyProgram.from_json(json.loads(self.told))

    def run(self, site: Site, *, single: bool = False) -> Run:
        """The method on the site's device; ``single`` as one call is timed."""
        planner = site.single if single else site.planner
        if self.kind == "paper":
            return self._probed(site)
        if self.kind == "full" and planner.engine == "eager":
            return plain(planner)
        full = Program.full(planner.sampler.kind)
        runtime = runtime_for(planner, full if self.kind == "full" else self.program)
        return lambda context, noise: runtime(context, noise=noise)

    def _probed(self, site: Site) -> Run:
        asked = json.loads(self.told)
        probe, planner = site.probes()[asked["probe"]], site.bare
        # As published: where the level cannot be reached, the largest residual is taken.
        pairs = GhostPairs.load(site.ghosts(asked["probe"]))
        envelope = fit_envelope(pairs, RISK, strict=False)
        probed = ProbedPlanner(planner, probe, paper_budget(planner, envelope, asked["tolerance"]))

        def run(context: Context, noise: Noise) -> tuple[Tensor, Record]:
            return probed(context, noise=noise)

        return run


FULL = Entrant("full")
