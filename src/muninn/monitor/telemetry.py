"""Telemetry: one JSON line per planning call, and metrics for Prometheus.

Nothing here may disturb a control loop. A disk that is full or gone costs lines, never a call: the
log counts lost lines, says so once it can be written again, and exports the count as a metric.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import numpy as np

from muninn.errors import InputError
from muninn.record import Record

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class JsonLines:
    """An append-only log of JSON objects, one per line; whole lines or none.

    Args:
        path: file to append to; its folder is made when it is first written.
        limit: size in bytes beyond which the file becomes ``path.1``, that ``path.2``, and so on.
        keep: rotated files that are kept.
    """

    def __init__(self, path: str | Path, *, limit: int | None = None, keep: int = 4) -> None:
        if (limit is not None and limit < 1) or keep < 0:
            raise InputError(f"need limit >= 1 byte and keep >= 0 files, got {limit} and {keep}")
        self.path = Path(path)
        self._limit = limit
        self._keep = keep
        self.lost = self._unsaid = 0  # lines that could not be written

    def append(self, entry: dict[str, Any], *, sync: bool = False) -> bool:
        """Write one line; False, and counted, if it could not be written. Never raises.

        With ``sync`` it waits for the disk: this line, and all before it, outlive a power cut.
        """
        try:
            line = json.dumps(plain(entry), allow_nan=False) + "\n"
            if self._unsaid:
                line = json.dumps({"kind": "lost", "lines": self._unsaid}) + "\n" + line
            self._write(line.encode(), sync)
        except (OSError, TypeError, ValueError, RecursionError):
            self.lost += 1
            self._unsaid += 1
            return False
        self._unsaid = 0
        return True

    def _write(self, data: bytes, sync: bool) -> None:
        """All of ``data`` at the end of the file, or an OSError and the file as before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = self.path.stat().st_size if self.path.exists() else 0
        if self._limit is not None and size and size + len(data) > self._limit:
            self._rotate()
        with os.fdopen(os.open(self.path, _APPEND, 0o644), "ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:  # a line cut short by a power loss must not swallow this one
                file.seek(-1, os.SEEK_END)
                data = data if file.read(1) == b"\n" else b"\n" + data
            try:
                if os.write(file.fileno(), data) != len(data):
                    raise OSError("the disk took only a part of the line")
                if sync:
                    os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise

    def _rotate(self) -> None:
        old = [self.path.with_name(f"{self.path.name}.{i + 1}") for i in range(self._keep)]
        for newer, older in reversed(list(pairwise([self.path, *old]))):
            if newer.exists():
                os.replace(newer, older)
        if not self._keep:
            self.path.unlink()


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """Every whole line of a log; lines that were cut short are skipped."""
    with Path(path).open(errors="replace") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError, RecursionError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    yield entry


def plain(value: Any) -> Any:
    """JSON-ready: arrays as lists, numpy numbers as numbers, NaN and infinity as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


@dataclass(frozen=True)
class Sample:
    """One value that Prometheus is shown; ``muninn_`` is put before its name."""

    name: str
    kind: str  # counter or gauge
    value: float
    help: str
    labels: dict[str, str] = field(default_factory=dict)


Source = Callable[[], Iterable[Sample]]
"""Where samples are read: ``samples`` of a :class:`Telemetry`, a monitor or a watched planner."""


class Collector:
    """Shows Prometheus the samples of some sources, as they are whenever it asks.

    Register it with a ``CollectorRegistry`` of your own, or use :func:`serve_metrics`. One
    collector takes all the sources of a registry, because each metric stands there once.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Any]:
        """One metric family for every name; its samples have the same labels."""
        core = _prometheus().core
        groups: dict[str, list[Sample]] = {}
        for sample in chain.from_iterable(source() for source in self._sources):
            groups.setdefault(sample.name, []).append(sample)
        for name, group in groups.items():
            first, keys = group[0], list(group[0].labels)
            kind = core.CounterMetricFamily if first.kind == "counter" else core.GaugeMetricFamily
            family = kind(f"muninn_{name}", first.help, labels=keys)
            for sample in group:
                family.add_metric([sample.labels[key] for key in keys], float(sample.value))
            yield family


def _prometheus() -> Any:
    try:
        import prometheus_client.core
    except ImportError as error:
        raise InputError(
            "metrics need prometheus_client: pip install 'muninn-diffusion[metrics]'"
        ) from error
    return prometheus_client


def _registry(*sources: Source) -> Any:
    registry = _prometheus().CollectorRegistry()
    registry.register(Collector(*sources))
    return registry


def render(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' text exposition format; InputError without prometheus_client.

    >>> print(render([Sample("calls", "counter", 3, "Calls.", {"robot": "a"})]), end="")
    # HELP muninn_calls_total Calls.
    # TYPE muninn_calls_total counter
    muninn_calls_total{robot="a"} 3.0
    """
    listed = list(samples)  # a registry may ask more than once
    text: bytes = _prometheus().generate_latest(_registry(lambda: listed))
    return text.decode()


def serve_metrics(*sources: Source, port: int = 9464, host: str = "127.0.0.1") -> WSGIServer:
    """Answer Prometheus from a daemon thread; ``shutdown()`` stops it.

    Args:
        sources: what to show, say ``watched.samples``; if one raises, the answer is status 500.
        port: 0 picks a free one, then in ``server.server_port``.
        host: local only by default: the endpoint has no authentication.

    Raises:
        InputError: prometheus_client is not installed.
    """
    server: WSGIServer
    server, _ = _prometheus().start_http_server(port, host, _registry(*sources))
    return server


_COUNTERS = {
    "calls": "Planning calls.",
    "trajectories": "Trajectories planned.",
    "evaluations": "Denoiser evaluations.",
    "seconds": "Time spent planning.",
    "fallbacks": "Trajectories planned with full compute instead.",
    "clock_jumps": "Times the wall clock went backwards.",
    "lines_lost": "Log lines not written.",
}


@dataclass(eq=False)
class Telemetry:
    """Writes a line per planning call and keeps the counters of a process."""

    log: JsonLines | None = None  # where lines go, ordered by ``sequence``; None counts only
    _: KW_ONLY
    robot: str = "robot"
    clock: Callable[[], float] = time.time  # for people; jumps back are counted, nothing else

    def __post_init__(self) -> None:
        self._latest = -math.inf
        self._counts = dict.fromkeys(_COUNTERS, 0.0)

    def observe(self, record: Record, **more: Any) -> None:
        """Count a call and write its line; ``more`` is added to the line. Never raises."""
        now, counts = self.clock(), self._counts
        counts["clock_jumps"] += now < self._latest
        self._latest = now
        counts["calls"] += 1
        counts["trajectories"] += len(record.evaluations)
        counts["evaluations"] += int(record.evaluations.sum())
        counts["seconds"] += record.seconds
        counts["fallbacks"] += record.fallbacks
        if self.log is not None:
            names = ("seconds", "evaluations", "estimate", "bound", "rank", "fallback")
            line = {"kind": "call", "robot": self.robot, "sequence": int(counts["calls"])}
            known = {name: getattr(record, name) for name in names}
            self.log.append({**line, "time": now, **known, **more})

    def samples(self) -> list[Sample]:
        """Counters, a source of :class:`Collector`."""
        counts = {**self._counts, "lines_lost": 0 if self.log is None else self.log.lost}
        return [
            Sample(name, "counter", counts[name], explained, {"robot": self.robot})
            for name, explained in _COUNTERS.items()
        ]
