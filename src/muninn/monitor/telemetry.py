"""Telemetry: one JSON line per planning call, and counters in Prometheus' text format.

Nothing here may disturb a control loop. A disk that is full or gone costs lines, never a call: the
log counts lost lines, says so once it can be written again, and exports the count as a metric.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    """One value in Prometheus' text format; ``muninn_`` is put before its name."""

    name: str
    kind: str
    value: float
    help: str
    labels: dict[str, str] = field(default_factory=dict)


def render(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' text exposition format, version 0.0.4.

    >>> print(render([Sample("calls", "counter", 3, "Calls.", {"robot": "a"})]), end="")
    # HELP muninn_calls_total Calls.
    # TYPE muninn_calls_total counter
    muninn_calls_total{robot="a"} 3
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        suffix = "_total" if sample.kind == "counter" else ""
        groups.setdefault(f"muninn_{sample.name}{suffix}", []).append(sample)
    lines = []
    for name, group in groups.items():
        lines += [f"# HELP {name} {_escape(group[0].help)}", f"# TYPE {name} {group[0].kind}"]
        for sample in group:
            quoted = {key: _escape(text).replace('"', r"\"") for key, text in sample.labels.items()}
            inside = ",".join(f'{key}="{text}"' for key, text in quoted.items())
            lines.append(f"{name}{f'{{{inside}}}' if inside else ''} {_number(sample.value)}")
    return "".join(line + "\n" for line in lines)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(int(value)) if float(value).is_integer() else repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def serve_metrics(
    text: Callable[[], str], port: int = 9464, host: str = "127.0.0.1"
) -> ThreadingHTTPServer:
    """Answer GET /metrics with ``text()`` from a daemon thread; ``shutdown()`` stops it.

    Args:
        text: renders the metrics, see :func:`render`; if it raises, the answer is status 500.
        port: 0 picks a free one, then in ``server.server_address``.
        host: local only by default: the endpoint has no authentication.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is here")
                return
            try:
                body = text().encode()
            except Exception as error:
                self.send_error(500, f"metrics could not be rendered: {type(error).__name__}")
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent: a scrape every few seconds is no news."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, name="muninn-metrics").start()
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
        """Counters for :func:`render`."""
        counts = {**self._counts, "lines_lost": 0 if self.log is None else self.log.lost}
        return [
            Sample(name, "counter", counts[name], explained, {"robot": self.robot})
            for name, explained in _COUNTERS.items()
        ]
