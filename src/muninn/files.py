"""Files that are there whole or not at all: the one way in which Muninn replaces a file."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from muninn.errors import InputError

Content = bytes | str | Callable[[BinaryIO], object]
"""What a file will hold: bytes, text (UTF-8, line ends as they are), or a function that writes it.

The function gets a file that is open for writing and can seek, as ``numpy.savez`` and
``torch.save`` need it.
"""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def write_whole(path: str | Path, content: Content) -> Path:
    """Write a file so that every reader sees the old content or the new one, never a part.

    The content goes to the disk in a temporary file beside ``path`` and takes its place in one
    step: a power cut leaves the old content or the new one, and of several threads or processes
    that write one path at once each succeeds, and the last one stays. A new file gets the
    permissions that the umask allows, one that is replaced hands on its own. Missing folders are
    made. After an OSError, whatever ``content`` raised, or an interruption, the old file is
    untouched, and the temporary one is removed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Short, whatever the length of the name it stands for; hidden, and no ending that a glob wants.
    partial = path.with_name(f".muninn-{secrets.token_hex(16)}.partial")
    try:
        with os.fdopen(os.open(partial, _NEW, 0o666), "wb") as file:
            _take_permissions(partial, path)  # while it is empty: the content may be private
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    return path


def require_free(path: Path | None, force: bool, *read: Path | None) -> None:
    """Raise InputError where a file cannot be written, or stands where another would be lost.

    ``force`` gives up what is there, unless it is one of the files that are ``read`` meanwhile.
    """
    if path is None:
        return
    if path.exists():
        if any(other is not None and path.resolve() == other.resolve() for other in read):
            raise InputError(f"{path} exists; choose another name: it is read by this command")
        if not (force and path.is_file()):
            rest = ", delete it first, or pass --force" if path.is_file() else ": it is no file"
            raise InputError(f"{path} exists; choose another name{rest}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first")


def _take_permissions(new: Path, old: Path) -> None:
    """Give a new file the permission bits of the file that it will replace, if there is one."""
    try:
        wanted = stat.S_IMODE(old.stat().st_mode)
    except OSError:
        return
    # Some file systems have the same bits for all files, and refuse to be asked.
    if wanted != stat.S_IMODE(new.stat().st_mode):
        new.chmod(wanted)
