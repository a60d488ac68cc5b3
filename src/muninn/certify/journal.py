"""A journal on disk, so that an interrupted calibration goes on where it stopped.

JSON lines: a header that names the calibration, then one entry per finished piece of work. An
entry is either whole or ignored; a truncated last line (power loss, full disk) costs that entry.
A lock beside it keeps others away; it goes with the process that holds it, however that ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from muninn.errors import CalibrationError
from muninn.files import write_whole


def code_digest() -> str:
    """Hash of Muninn's own source: measurements of other code are not resumed."""
    state = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        state.update(path.read_bytes())
    return state.hexdigest()[:16]


class Journal(AbstractContextManager["Journal"]):
    """Finished pieces of one calibration by key; in memory only when ``path`` is None.

    ``identity`` is a JSON-ready description of the calibration. Nobody else can open the file until
    the ``with`` block, or the journal's life, ends.

    Raises:
        CalibrationError: the file belongs to another calibration, is in use or cannot be written.
    """

    def __init__(
        self, path: str | Path | None = None, identity: dict[str, Any] | None = None
    ) -> None:
        self._path = None if path is None else Path(path)
        self._entries: dict[str, Any] = {}
        if self._path is None:
            return
        with self._writing():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self._path)
        self._unlock = weakref.finalize(self, _release, self._lock)
        try:
            self._read(self._path, identity or {})
        except BaseException:
            self._unlock()
            raise

    def __exit__(self, *rest: object) -> None:
        """Let others open it."""
        if self._path is not None:
            self._unlock()

    def _read(self, path: Path, now: dict[str, Any]) -> None:
        """What was finished before, if it belongs to the same calibration."""
        header = json.dumps(now, sort_keys=True)
        lines = _whole_lines(path) or [header]
        if lines[0] != header:
            was = json.loads(lines[0])
            old = was if isinstance(was, dict) else {}
            other = [name for name in now if old.get(name) != json.loads(header)[name]]
            raise CalibrationError(
                f"{path} belongs to another calibration: other "
                f"{', '.join(other or ['parts'])}. Delete it, or resume with what it was started "
                "with"
            )
        for line in lines[1:]:
            entry = json.loads(line)
            if isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str):
                self._entries[entry[0]] = entry[1]  # other lines are nobody's work
        with self._writing():  # without a truncated tail
            write_whole(path, "".join(line + "\n" for line in lines))

    @property
    def kept(self) -> bool:
        """Whether it is on disk."""
        return self._path is not None

    def get(self, key: str) -> Any:
        """A finished piece, or None."""
        return self._entries.get(key)

    def put(self, key: str, value: Any) -> None:
        """Record a finished piece; on disk before this returns."""
        self.put_all({key: value})

    def put_all(self, pieces: dict[str, Any]) -> None:
        """Record some finished pieces; on disk before this returns."""
        self._entries |= pieces
        if self._path is None:
            return
        with self._writing(), self._path.open("a") as file:
            file.write("".join(json.dumps(piece) + "\n" for piece in pieces.items()))
            file.flush()
            os.fsync(file.fileno())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CalibrationError(
                f"cannot write the calibration journal {self._path} ({error.strerror}). What was "
                "measured before is kept there: free space and run the same command again to resume"
            ) from error


def _locked(path: Path) -> FileLock:
    lock = FileLock(path.with_name(f".{path.name}.lock"), blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise CalibrationError(
            f"{path} is in use: another calibration writes to it now. Wait until it has ended, or "
            "give this one a journal of its own"
        ) from error
    return lock


def _release(lock: FileLock) -> None:
    """End a lock; its file goes first, while nobody else can hold it."""
    with suppress(OSError):  # where a file that is open cannot be deleted
        os.unlink(lock.lock_file)
    lock.release()


def _whole_lines(path: Path) -> list[str]:
    """The lines of a journal before a truncated tail; none of a file that is not there."""
    if not path.exists():
        return []
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise CalibrationError(
            f"the calibration journal {path} cannot be read ({error.strerror}); give the path of a "
            "file"
        ) from error
    whole: list[str] = []
    for line in text.split("\n"):
        try:
            json.loads(line)
        except json.JSONDecodeError:
            break
        whole.append(line)
    if text and not whole:
        # The header is written in one piece, so this is some other file: never overwrite it.
        raise CalibrationError(
            f"{path} is not a calibration journal; choose a path of its own for resume"
        )
    return whole
