"""Episodes that entrants drive, in lockstep and by workers; every finished chunk is a file.

A file says how each episode ended, and keeps contexts of random calls of it. The noise of a call is
a function of seed, stream, episode and call, so all entrants meet the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from muninn.certify.paired import call_seed
from muninn.errors import InputError
from muninn.files import write_whole
from muninn.model.schedule import FloatArray
from muninn.parallel import Map
from muninn.progress import Task as Bars
from muninn_bench.measure.rollout import Drive, on_device, roll_out
from muninn_bench.studies.suite.entrants import Entrant, Site
from muninn_bench.task import SideBySide, Stream

LANES = 50
"""Episodes of a chunk, side by side, where the task does not say how many."""

KEPT = 6
"""Contexts kept of an episode; certificates take the first, the published method all."""

Item = tuple[Entrant, Stream, int, int]
"""An entrant, a stream, the first episode and how many."""


@dataclass(frozen=True)
class Driven:
    """Episodes in order: points, planning calls, evaluations of a call in the mean, and contexts
    of random calls, (episodes, KEPT, ...)."""

    score: FloatArray
    calls: FloatArray
    evaluations: FloatArray
    contexts: Tensor

    def __post_init__(self) -> None:
        if not np.isfinite(self.score).all():
            raise InputError(
                f"episode {int(np.argmin(np.isfinite(self.score)))} has a score that is not finite"
            )

    @property
    def evaluations_mean(self) -> float:
        """Of all calls."""
        return float((self.evaluations * self.calls).sum() / self.calls.sum())


class Driver:
    """Drives a chunk of episodes and writes its file, here or in another process.

    ``most_calls`` ends episodes early, in miniatures.
    """

    def __init__(self, site: Site, seed: int, most_calls: int | None) -> None:
        self._site, self._seed, self._most_calls = site, seed, most_calls

    def path(self, item: Item) -> Path:
        """The file of a chunk."""
        entrant, stream, first, count = item
        cut = "" if self._most_calls is None else f"-cut{self._most_calls}"
        name = f"{entrant.key}-{stream.name.lower()}-{first}-{count}-seed{self._seed}{cut}"
        return self._site.folder / "drives" / f"{name}.safetensors"

    def __call__(self, item: Item) -> int:
        """Drive the episodes of a chunk unless its file is there; their number."""
        entrant, stream, first, count = item
        path = self.path(item)
        if not path.is_file():
            site = self._site
            drives = roll_out(
                site.task,
                site.variant,
                on_device(entrant.run(site), site.planner.device),
                stream,
                count,
                seed=call_seed(self._seed, stream, 2),
                world=self._seed,
                lanes=count,
                first=first,
                most_calls=self._most_calls,
            )
            arrays = _arrays(drives, first, self._seed)
            write_whole(path, safetensors.torch.save(arrays))
        return count


def _arrays(drives: Sequence[Drive], first: int, seed: int) -> dict[str, Tensor]:
    kept = []
    for number, drive in enumerate(drives, first):
        draw = np.random.default_rng(call_seed(seed, number, 1, 2)).random(KEPT - 1)
        others = (draw * len(drive.contexts)).astype(int).tolist()
        places = [drive.random_call(seed, number), *others]
        kept.append(torch.cat([drive.contexts[place] for place in places]))
    columns = {
        "score": [_points(drive) for drive in drives],
        "calls": [len(drive.contexts) for drive in drives],
        "evaluations": [float(np.mean(drive.evaluations)) for drive in drives],
    }
    found = {name: torch.tensor(own, dtype=torch.float64) for name, own in columns.items()}
    return {**found, "contexts": torch.stack(kept)}


def _points(drive: Drive) -> float:
    """The world's own score; of a world that only knows success, 100 for it."""
    result = drive.result
    return 100.0 * bool(result.success) if result.score is None else float(result.score)


class Drives:
    """The episodes of a study, driven when they are asked for.

    Args:
        site: the pair, and the run folder.
        workers: who drives chunks.
        bar: shows how far they are.
        seed: of worlds and noise.
        lanes: episodes of a chunk; as many as the task says if None.
        most_calls: after which an episode is ended, in miniatures.
    """

    def __init__(
        self,
        site: Site,
        workers: Map,
        bar: Bars,
        seed: int,
        lanes: int | None = None,
        most_calls: int | None = None,
    ) -> None:
        self.site, self.seed = site, seed
        # A GPU takes hardly longer for many rows than for few, but simulators take memory.
        own = site.task.lanes if isinstance(site.task, SideBySide) else LANES
        self._workers, self._bar, self._lanes = workers, bar, lanes or own
        self._driver = Driver(site, seed, most_calls)  # one object, so that it travels once

    def _items(self, entrant: Entrant, stream: Stream, count: int, first: int = 0) -> list[Item]:
        last = first + count
        chunks = range(first, last, self._lanes)
        return [(entrant, stream, at, min(self._lanes, last - at)) for at in chunks]

    def run(self, name: str, entrants: Sequence[Entrant], stream: Stream, count: int) -> None:
        """Drive the first episodes of a stream with every entrant, as far as that is not done."""
        every = [self._items(each, stream, count) for each in dict.fromkeys(entrants)]
        self._drive(name, [item for items in every for item in items])

    def _drive(self, name: str, items: Sequence[Item]) -> None:
        missing = [item for item in items if not self._driver.path(item).is_file()]
        if not missing:
            return
        advance = self._bar(f"drive {name}: episodes", sum(item[-1] for item in missing))
        for finished in self._workers.map(self._driver, missing):
            advance(finished)

    def of(self, name: str, entrant: Entrant, stream: Stream, count: int, first: int = 0) -> Driven:
        """Episodes of a stream with an entrant, driven if they are not there."""
        items = self._items(entrant, stream, count, first)
        self._drive(name, items)
        parts = [safetensors.torch.load_file(self._driver.path(item)) for item in items]
        joined: dict[str, Any] = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
        contexts = joined.pop("contexts")
        return Driven(**{key: own.numpy() for key, own in joined.items()}, contexts=contexts)
