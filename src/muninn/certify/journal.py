"""A journal on disk, so that an interrupted calibration goes on where it stopped.

JSON lines: a header that names the calibration, then one entry per finished piece of work. An
entry is either whole or ignored; a truncated last line (power loss, full disk) costs that entry.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from muninn.errors import CalibrationError
from muninn.files import write_whole


def code_digest() -> str:
    """Hash of Muninn's own source: measurements of other code are not resumed."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


class Journal:
    """Finished pieces of one calibration by key; in memory only when ``path`` is None.

    Args:
        path: file to create or to resume from.
        identity: JSON-ready description of the calibration; a journal of another one is refused.

    Raises:
        CalibrationError: the file belongs to another calibration or cannot be written.
    """

    def __init__(
        self, path: str | Path | None = None, identity: dict[str, Any] | None = None
    ) -> None:
        self._path = None if path is None else Path(path)
        self._entries: dict[str, Any] = {}
        if self._path is None:
            return
        header = json.dumps(identity, sort_keys=True)
        lines = self._whole_lines()
        if lines:
            if lines[0] != header:
                raise CalibrationError(
                    f"{self._path} belongs to another calibration: other "
                    f"{', '.join(_other_parts(json.loads(lines[0]), json.loads(header)))}. Delete "
                    "it, or resume with what it was started with"
                )
            for line in lines[1:]:
                entry = json.loads(line)
                if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
                    self._entries[entry[0]] = entry[1]  # other lines are nobody's work
        self._rewrite([header, *lines[1:]])

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def kept(self) -> bool:
        """Whether it is on disk."""
        return self._path is not None

    def get(self, key: str) -> Any | None:
        """A finished piece, or None."""
        return self._entries.get(key)

    def put(self, key: str, value: Any) -> None:
        """Record a finished piece; on disk before this returns."""
        self._entries[key] = value
        if self._path is None:
            return
        line = json.dumps([key, value]) + "\n"
        try:
            with self._path.open("a") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CalibrationError:
        return CalibrationError(
            f"cannot write the calibration journal {self._path} ({error.strerror}). What was "
            "measured before is kept there: free space and run the same command again to resume"
        )

    def _whole_lines(self) -> list[str]:
        assert self._path is not None
        if not self._path.exists():
            return []
        try:
            text = self._path.read_text(errors="replace")
        except OSError as error:
            raise CalibrationError(
                f"the calibration journal {self._path} cannot be read ({error.strerror}); give the "
                "path of a file"
            ) from error
        whole = []
        for line in text.split("\n"):
            try:
                json.loads(line)
            except json.JSONDecodeError:
                break  # a truncated tail: everything before it is whole
            whole.append(line)
        if text and not whole:
            # The header is written in one piece, so this is some other file: never overwrite it.
            raise CalibrationError(
                f"{self._path} is not a calibration journal; choose a path of its own for resume"
            )
        return whole

    def _rewrite(self, lines: list[str]) -> None:
        """Drop a truncated tail, atomically."""
        assert self._path is not None
        try:
            write_whole(self._path, "".join(line + "\n" for line in lines))
        except OSError as error:
            raise self._unwritable(error) from error


def _other_parts(was: Any, now: dict[str, Any]) -> list[str]:
    """Names of the parts in which two calibrations differ."""
    old = was if isinstance(was, dict) else {}
    return [name for name in now if old.get(name) != now[name]] or ["parts"]
