"""One pair of a task and a planner: promises, episodes, latencies; `muninn-bench suite`.

A run folder keeps what is finished, so the same command goes on where it stopped, on the same
machine or on another one, whose latencies fill a column of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from muninn.certify.certificate import library_versions
from muninn.certify.journal import Journal, code_digest
from muninn.certify.paired import PairedCalls
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.parallel import Workers, workers_of
from muninn.programs.plan import AnyProgram, Family
from muninn.progress import Task as Bars
from muninn.progress import bars
from muninn_bench.measure.alternatives import FEWSTEPS, Alternative, available
from muninn_bench.studies.frontier import DRIVEN
from muninn_bench.studies.suite.drives import Drives
from muninn_bench.studies.suite.entrants import FULL, Entrant, Site
from muninn_bench.studies.suite.latency import time_entrants
from muninn_bench.studies.suite.lines import (
    ALTERNATIVES,
    CLOSED,
    FIDELITY,
    FULL_LINE,
    MEAN,
    OURS,
    POINTS_UNIT,
    SOLVER,
    Line,
    Lines,
    judged_figures,
)
from muninn_bench.studies.suite.outcome import MARGIN, mean_score_program
from muninn_bench.studies.suite.promises import (
    CLOSED_PART,
    Calls,
    Promise,
    Search,
    choice_of,
    closed_loop_member,
    judge,
    promises,
)
from muninn_bench.studies.suite.rivals import fidelity_lines, published_lines
from muninn_bench.task import Stream, Task

CLOSED_UP_TO = 25
"""Steps of samplers whose programs are certified in the closed loop, too."""


@dataclass(frozen=True)
class Sizes:
    """How much is run.

    Attributes:
        tune, certify, test: calls, one of each episode.
        ghosts: calls of the published method's calibration, the paper's number.
        episodes: that every method drives for its score.
        closed: episodes of a certificate in the closed loop; 0 for none.
        scored: episodes to tune for the certificate of the mean score.
        outcome: episodes of it at most; 0 for none.
        together: of these, before the evidence is looked at.
        timed: single calls of every method.
        lanes: episodes side by side; as many as the task says if None.
        most_calls: after which an episode is ended; None where it ends by itself.
        margin: points by which the mean score may fall.
        tuned: whether programs are searched for; else even ones stand in.
    """

    tune: int = 256
    certify: int = 512
    test: int = 1024
    ghosts: int = 4096
    episodes: int = 150
    closed: int = 256
    scored: int = 150
    outcome: int = 600
    together: int = 300
    timed: int = 40
    lanes: int | None = None
    most_calls: int | None = None
    margin: float = MARGIN
    tuned: bool = True


SMOKE = Sizes(
    tune=8, certify=59, test=6, ghosts=24, episodes=4, closed=59, scored=8, outcome=16, together=16,
    timed=2, lanes=16, most_calls=2, margin=100.0, tuned=False,
)  # fmt: skip


class Suite:
    """A pair in its run folder.

    Args:
        task, variant: the pair.
        folder: where what is finished is kept.
        device: ``cpu`` or ``cuda``.
        sizes: how much is run.
        seed: of worlds and noise.
        workers: who drives episodes; programs are tuned here.
        progress: show progress bars.

    Raises:
        InputError: a call draws several plans, the published method has no probe for the network,
            or the folder is of another run.
    """

    def __init__(
        self,
        task: Task,
        variant: str,
        folder: Path,
        *,
        device: str = "cpu",
        sizes: Sizes | None = None,
        seed: int = 0,
        workers: Workers = None,
        progress: bool = True,
    ) -> None:
        self.site = Site(task, variant, device, folder)
        self.sizes, self.seed = sizes or Sizes(), seed
        self._workers, self._progress = workers, progress
        shape = self.site.planner.shape
        if len(shape) != 2:
            raise InputError(
                f"a call of {task.name}, {variant} draws {shape[0]} plans, and the suite's metrics "
                f"are of one; `muninn-bench frontier --task {task.name}` certifies it"
            )
        self.site.probes()  # refused now, not after the hours of tuning that come before them
        folder.mkdir(parents=True, exist_ok=True)
        known = task.planner(variant).identity()
        own = self.sizes
        self._identity = {
            "planner": known,
            "seed": seed,
            "calls": [own.tune, own.certify, own.test, own.ghosts, own.closed],
            "mean score": [own.scored, own.outcome, own.together, own.margin],
            "most calls": own.most_calls,
            "tuned": own.tuned,
        }
        self.lines = Lines(folder, self._identity)
        self._choice = choice_of(task, variant)

    def run(self) -> Lines:
        """Everything that is not there yet."""
        site, sizes = self.site, self.sizes
        with workers_of(self._workers, site.planner.device) as crew, bars(self._progress) as bar:
            drives = Drives(site, crew, bar, self.seed, sizes.lanes, sizes.most_calls)
            contexts = self._contexts(drives)
            calls = Calls(site, contexts, self.seed)
            self.lines.add(Line(FULL_LINE, evaluations_mean=float(len(site.planner.sampler))))
            for _, same in groupby(promises(site.task, site.variant), lambda own: own.unit):
                self._promises(list(same), calls, drives, bar)
            published_lines(self, calls, contexts["ghosts"][: sizes.ghosts], bar)
            self._mean_score(drives, bar)
            fidelity_lines(self, calls, bar)
            entrants = [line.entrant for line in self.lines]
            drives.run("every method", entrants, Stream.TEST, sizes.episodes)
            timed = [line.entrant for line in self.lines if not line.method.startswith(FIDELITY)]
            time_entrants(site, timed, contexts["test"], sizes.timed, bar)
        return self.lines

    def drives(self) -> Drives:
        """The episodes, to be read: none is driven by workers."""
        with workers_of(None) as here, bars(False) as bar:
            return Drives(self.site, here, bar, self.seed, self.sizes.lanes, self.sizes.most_calls)

    def _contexts(self, drives: Drives) -> dict[str, Tensor]:
        """Of calls to tune, certify and test on, and for the published method."""
        path = self.site.folder / "contexts.safetensors"
        stored = safetensors.torch.load_file(path) if path.is_file() else {}
        sizes = self.sizes
        wanted = {"tune": sizes.tune, "certify": sizes.certify, "test": sizes.test}
        if all(len(stored.get(part, ())) == count for part, count in wanted.items()):
            return stored
        planner = self.site.task.planner(self.site.variant)
        steps = len(planner.sampler)
        name = FEWSTEPS if planner.sampler.flow else SOLVER
        fast = Entrant.of(Alternative.untuned(name, planner, min(DRIVEN, steps)).table)
        stored, every = {}, []
        for part, count in wanted.items():
            driven = drives.of(f"calls to {part}", fast, Stream[part.upper()], count)
            stored[part] = driven.contexts[:, 0].contiguous()
            every += [driven.contexts.flatten(0, 1)] * (part != "test")
        stored["ghosts"] = _joined(every)
        write_whole(path, safetensors.torch.save(stored))
        return stored

    # -- promises ------------------------------------------------------------------------------

    def journal(self, name: str) -> Journal:
        """Where scores of tuning are kept: those of this device, these sizes and this code."""
        identity = {
            **self._identity,
            "sizes": vars(self.sizes),
            "device": self.site.device,
            "versions": {**library_versions(), "code": code_digest()},
        }
        return Journal(self.site.folder / f"{name}.jsonl", identity)

    def _promises(self, same: list[Promise], calls: Calls, drives: Drives, bar: Bars) -> None:
        """The lines of promises in one metric: ours, in both loops, and the alternatives'."""
        offered = available(self.site.planner)
        names = [OURS, *(name for name in ALTERNATIVES if name in offered)]
        closed = self.sizes.closed and len(self.site.planner.sampler) <= CLOSED_UP_TO
        every = [*names, CLOSED] if closed else names
        wanted = [(name, own) for name in every for own in same]
        missing = [each for each in wanted if self.lacks(*each)]
        if not missing:
            return
        with self.journal(f"tune-{same[0].metric.__qualname__}") as journal:
            search = Search(calls, same[0].metric, journal, bar, self.sizes.tuned)
            for name, promise in product(names, same):
                given = (name, promise) in missing
                own = name == OURS and (CLOSED, promise) in missing
                if given or own:
                    group = None if name == OURS else name
                    family, member = search.certified(group, promise.tolerance)
                if given:
                    self._judged(name, promise, chosen(family, member), calls)
                if own:
                    self._in_closed_loop(promise, family, member, calls, drives)

    def _in_closed_loop(
        self, promise: Promise, family: Family, member: int, calls: Calls, drives: Drives
    ) -> None:
        episodes = self.sizes.closed
        program = closed_loop_member(drives, calls, family, member, promise, episodes)
        entrant = FULL if program is None else Entrant.of(program)
        driven = drives.of("in the closed loop", entrant, Stream.TEST, self.sizes.episodes)
        fresh = calls.paired(driven.contexts[:, 0], Stream.TEST, part=CLOSED_PART)
        self._judged(CLOSED, promise, program, calls, fresh)

    def lacks(self, name: str, promise: Promise) -> bool:
        """Whether a method has no line under a promise yet."""
        return self.lines.find(name, promise.tolerance, promise.unit) is None

    def _judged(
        self,
        name: str,
        promise: Promise,
        program: AnyProgram | None,
        calls: Calls,
        fresh: PairedCalls | None = None,
    ) -> None:
        """Add the line of a certified program, or of full compute, judged on fresh calls."""
        line = Line.of(name, promise.tolerance, promise.unit, program)
        self.add_judged(line, promise, fresh or calls.of("test", promise.metric))

    def add_judged(self, line: Line, promise: Promise, paired: PairedCalls) -> None:
        """Add the line of an entrant, judged on fresh calls."""
        judged = judge(paired, line.entrant.run(self.site), promise.metric, self._choice)
        figures = judged_figures(judged, promise.tolerance)
        self.lines.add(replace(line, **figures), judged.deviation)

    def _mean_score(self, drives: Drives, bar: Bars) -> None:
        """The line of the certificate of the mean score."""
        sizes = self.sizes
        if not sizes.outcome or self.lines.find(MEAN, sizes.margin, POINTS_UNIT) is not None:
            return
        with self.journal("mean-score") as journal:
            program = mean_score_program(
                drives,
                journal,
                bar,
                tune=sizes.scored,
                certify=sizes.outcome,
                together=sizes.together,
                margin=sizes.margin,
                tuned=sizes.tuned,
            )
        line = Line.of(MEAN, sizes.margin, POINTS_UNIT, program)
        driven = drives.of("for the mean score", line.entrant, Stream.TEST, sizes.episodes)
        self.lines.add(replace(line, evaluations_mean=driven.evaluations_mean))


def chosen(family: Family, member: int) -> AnyProgram | None:
    """A member of a family; None is full compute."""
    return family.member(member) if member else None


def _joined(parts: list[Tensor]) -> Tensor:
    """Contexts of the published method: episodes of both purposes, in another order of rows."""
    every = torch.cat(parts)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
    return every[order].contiguous()
