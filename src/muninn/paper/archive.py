"""Dataclasses of arrays and plain fields, each saved as one safetensors file."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
import torch
from torch import Tensor

from muninn.errors import InputError
from muninn.files import write_whole

_KEY = "muninn_paper"
_Own = TypeVar("_Own", bound="Archived")


@dataclass(frozen=True, eq=False)
class Archived:
    """Saves and loads the fields that a dataclass is made from."""

    kind: ClassVar[str]  # what a file holds, with its version

    def save(self, path: str | Path) -> Path:
        """Write a file that appears whole or not at all; missing folders are made.

        Raises:
            InputError: the file cannot be written.
        """
        plain: dict[str, Any] = {"kind": self.kind}
        arrays = {}
        for name in (field.name for field in fields(self) if field.init):
            value = getattr(self, name)
            if isinstance(value, Tensor | np.ndarray):
                array = value.cpu().numpy() if isinstance(value, Tensor) else value
                arrays[name] = np.ascontiguousarray(array)
            else:
                plain[name] = value
        # One key: safetensors writes several in random order; equal content gives equal files.
        header = {_KEY: json.dumps(plain, sort_keys=True)}
        try:
            return write_whole(path, safetensors.numpy.save(arrays, header))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be written ({error.strerror}); free space or choose another path"
            ) from error

    @classmethod
    def load(cls: type[_Own], path: str | Path) -> _Own:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: the file is missing, damaged, or holds something else.
        """
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file; calibrate first or check the path")
        try:
            with safetensors.safe_open(str(path), "numpy") as file:
                header = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            stored = json.loads(header.get(_KEY, "{}"))
        except (safetensors.SafetensorError, OSError, ValueError) as error:
            raise InputError(
                f"{path}: cannot be read ({error}); it is damaged or not a safetensors file. "
                "Calibrate again or restore a copy"
            ) from error
        kind = stored.get("kind") if isinstance(stored, dict) else None
        if kind != cls.kind:
            what = "is a safetensors file of something else" if kind is None else f"holds {kind!r}"
            raise InputError(f"{path}: {what}; expected {cls.kind!r}. Check the path")
        try:
            values = {}
            for field in (field for field in fields(cls) if field.init):
                value = (arrays if field.name in arrays else stored)[field.name]
                if field.type == "Tensor":
                    value = torch.from_numpy(value)
                values[field.name] = tuple(value) if isinstance(value, list) else value
            return cls(**values)
        except (KeyError, TypeError, InputError) as error:
            what = cls.kind.rpartition("-")[0]
            raise InputError(f"{path}: damaged {what} ({error}); make it again") from error
