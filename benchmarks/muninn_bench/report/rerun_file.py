"""Files that rerun shows: maps, plans and figures over time; `rerun FILE` opens one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from muninn.errors import InputError
from muninn.model.schedule import FloatArray

GREY = "#5a5a5a"


def rerun_package() -> Any:
    """The module of rerun; InputError if it is not installed."""
    try:
        import rerun
    except ImportError as error:
        raise InputError("--rerun needs rerun: pip install 'muninn-bench[viz]'") from error
    return rerun


class RerunFile:
    """An .rrd file that grows as things are logged; :meth:`close` finishes it."""

    def __init__(self, path: Path) -> None:
        self._rerun = rerun_package()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._stream: Any = self._rerun.RecordingStream("muninn-bench", recording_id=path.stem)
        self._stream.save(path)

    def episode(self, number: int) -> None:
        """What follows belongs to an episode of many."""
        self._stream.set_time("episode", sequence=number)

    def time(self, seconds: float) -> None:
        """What follows belongs to a moment of simulated time."""
        self._stream.set_time("simulated", duration=seconds)

    def numbers(self, figures: Mapping[str, float]) -> None:
        """Curves by name."""
        for name, value in figures.items():
            self._stream.log(name, self._rerun.Scalars(float(value)))

    def say(self, words: str) -> None:
        """A line of text."""
        self._stream.log("calls", self._rerun.TextLog(words))

    def lines(
        self, name: str, lines: Sequence[FloatArray], colour: str, static: bool = False
    ) -> None:
        """Lines, each (points, 2 or 3), world units; none clears what was there."""
        self._log(name, "LineStrips", lines, colour, static)

    def point(self, name: str, place: FloatArray, colour: str, static: bool = False) -> None:
        """A point, (2 or 3,), world units."""
        size = {"radii": [self._rerun.Radius.ui_points(6.0)]}
        self._log(name, "Points", [place], colour, static, **size)

    def _log(
        self, name: str, shape: str, what: Sequence[FloatArray], colour: str, static: bool,
        **more: Any,
    ) -> None:  # fmt: skip
        shown = self._rerun.Clear(recursive=False)
        if len(what):
            colours = [int(colour.removeprefix("#") + "ff", 16)] * len(what)
            kind = getattr(self._rerun, f"{shape}{np.shape(what[0])[-1]}D")
            shown = kind(what, colors=colours, **more)
        self._stream.log(name, shown, static=static)

    def close(self) -> None:
        """Write what is left."""
        self._stream.flush()
        self._stream.disconnect()
