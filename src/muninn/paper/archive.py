"""Arrays and a few plain fields in one safetensors file, which appears whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from muninn.errors import InputError
from muninn.files import write_whole

Arrays = dict[str, npt.NDArray[Any]]
_KEY = "muninn_paper"


def write(path: str | Path, kind: str, fields: dict[str, Any], arrays: Arrays) -> Path:
    """Write a file of the given kind.

    Args:
        path: where to; missing folders are made.
        kind: what the file holds, with its version; :func:`read` asks for the same.
        fields: JSON-ready values.
        arrays: by name.

    Raises:
        InputError: the file cannot be written.
    """
    path = Path(path)
    # One key: safetensors writes several in random order, and equal content should be equal files.
    header = {_KEY: json.dumps({"kind": kind, **fields}, sort_keys=True)}
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        return write_whole(path, safetensors.numpy.save(whole, header))
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another path"
        ) from error


def read(path: str | Path, kind: str) -> tuple[dict[str, Any], Arrays]:
    """Fields and arrays of a file that was written as ``kind``.

    Raises:
        InputError: there is no such file, or it is damaged, or it holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; calibrate first or check the path")
    try:
        with safetensors.safe_open(str(path), "numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        fields = json.loads(header.get(_KEY, "{}"))
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}); it is damaged or not a safetensors file. "
            "Calibrate again or restore a copy"
        ) from error
    seen = fields.pop("kind", None) if isinstance(fields, dict) else None
    if seen != kind:
        what = "is a safetensors file of something else" if seen is None else f"holds {seen!r}"
        raise InputError(f"{path}: {what}; expected {kind!r}. Check the path")
    return fields, arrays
