"""What a .rrd file holds, read back with rerun's own reader, without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SHOWN = ("Scalars:scalars", "LineStrips2D:strips", "LineStrips3D:strips", "Points2D:positions")


def read_rerun(path: Path, timeline: str) -> dict[str, list[tuple[float | None, Any]]]:
    """Moment (seconds, or a number; None for what always holds) and value, by name, in order."""
    from rerun.chunk import RrdReader

    found: dict[str, list[tuple[float | None, Any]]] = {}
    for chunk in RrdReader(str(path)).stream().to_chunks():
        table = chunk.to_record_batch()
        for name in set(_SHOWN).intersection(table.schema.names):
            times: list[Any] = [None] * chunk.num_rows
            if not chunk.is_static:
                ticks = table[timeline].cast("int64").to_pylist()
                times = ticks if timeline == "episode" else [1e-9 * tick for tick in ticks]
            rows = zip(times, table[name].to_pylist(), strict=True)
            found.setdefault(chunk.entity_path.removeprefix("/"), []).extend(rows)
    return {
        name: sorted(rows, key=lambda row: -1 if row[0] is None else row[0])
        for name, rows in found.items()
    }
