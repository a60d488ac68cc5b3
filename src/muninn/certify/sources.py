"""Contexts to calibrate on, from an iterator or from files: whatever yields rows of them.

For LeRobot's policies :mod:`muninn.adapters.lerobot.recorded` makes contexts from observations,
and :mod:`muninn.adapters.lerobot.driven` rolls them out in an environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from muninn.context import Context, batch_size, concatenate, require_row_dimension, select, tensors
from muninn.errors import InputError

SUFFIXES = (".npz", ".safetensors", ".pt")
"""Files that are read: arrays or tensors by name; never a pickled object."""


def gather(contexts: Iterable[Context], count: int | None = None) -> Context:
    """One batched context from many: what :func:`muninn.calibrate` takes.

    >>> gather(({"goal": torch.full((2, 3), float(i))} for i in range(9)), count=5)["goal"].shape
    torch.Size([5, 3])

    Args:
        contexts: each a nest of tensors of one structure, (rows, ...), one row per call. Rows must
            be independent: of calls that were recorded in episodes, one random call of each.
        count: rows to take; None takes all. An iterator that never ends needs it.

    Raises:
        InputError: there is no row, or fewer than ``count``; one item differs from the first in
            structure, shape or dtype; a number is NaN or infinite. Names the item.
    """
    if count is not None and count < 1:
        raise InputError(f"count must be at least 1, got {count}")
    if isinstance(contexts, Tensor):
        raise InputError(
            f"contexts is one tensor {tuple(contexts.shape)}; pass it to calibrate as it is, or "
            "give an iterator of contexts with a row dimension"
        )
    found: list[Context] = []
    rows, form = 0, dict[str, str]()
    for number, context in enumerate(contexts):
        size = batch_size(context)
        if size is None:
            raise InputError(
                f"context {number} holds no tensor but is {type(context).__name__}; give tensors "
                "(rows, ...) or nests of them"
            )
        require_row_dimension(context, f"context {number}")
        own = {}
        for path, value in tensors(context):
            own[path] = f"(rows, {', '.join(map(str, value.shape[1:]))}) {value.dtype}"
            if not torch.isfinite(value).all():
                raise InputError(
                    f"{path} of context {number} is not finite; leave out or mend that call"
                )
        form = form or own
        if own != form:
            path = next(p for p in (*form, *own) if form.get(p) != own.get(p))
            raise InputError(
                f"{path} of context {number} is {own.get(path, 'absent')}, of the first "
                f"{form.get(path, 'absent')}; all rows need one form (pad what varies in length)"
            )
        found.append(context)
        rows += size
        if count is not None and rows >= count:
            break
    if rows < (count or 1):
        raise InputError(f"there are {rows} calls; {count or 1} are needed")
    whole = concatenate(found)
    return whole if count is None else select(whole, slice(count))


def files_in(folder: str | Path) -> list[Path]:
    """The files of a folder that :func:`read_file` reads, in the order of their names.

    Raises:
        InputError: no such folder, or none in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give one with {', '.join(SUFFIXES)} files")
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise InputError(
            f"{folder} holds no {', '.join(SUFFIXES)} file; each is to hold arrays (rows, ...)"
        )
    return found


def read_file(path: str | Path) -> dict[str, Tensor]:
    """Named tensors of one file, each (rows, ...), of one length. Nothing in it is executed.

    Raises:
        InputError: the file is truncated, damaged, of another kind, or its arrays differ in
            length; names it.
    """
    path = Path(path)
    try:
        content = _load(path)
    except Exception as error:  # three formats fail in many ways; all mean this
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{path} cannot be read ({reason}); no file was changed: copy it again or take it away"
        ) from error
    arrays = isinstance(content, dict) and all(
        isinstance(value, Tensor) and value.ndim > 0 for value in content.values()
    )
    lengths = {name: len(value) for name, value in content.items()} if arrays else {}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        seen = lengths if arrays and lengths else f"{type(content).__name__} {content!r}"[:120]
        raise InputError(
            f"{path} must hold named arrays of one length (rows, ...), got {seen}; write one row "
            "per step of the recording"
        )
    return dict(content)


def _load(path: Path) -> Any:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as stored:
            return {name: torch.from_numpy(stored[name]) for name in stored.files}
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)
    if path.suffix == ".pt":
        return torch.load(path, map_location="cpu", weights_only=True)
    raise InputError(f"{path.suffix or 'no suffix'}: only {', '.join(SUFFIXES)} are read")
