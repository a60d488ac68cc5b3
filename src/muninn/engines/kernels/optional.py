"""A Triton kernel that is used where it can be built, beside operations that do the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

_log = logging.getLogger("muninn")


class OptionalKernel:
    """Runs a kernel, unless there is no Triton, or it cannot be built here (no C compiler, ...).

    ``name`` launches it, a function of a ``module`` of this package that is imported when used.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = f"{__package__}.{module}", name
        self._launch: Callable[..., Any] | None = None
        self.usable = find_spec("triton") is not None and torch.cuda.is_available()

    def run(self, *arguments: Any) -> Any:
        """What the kernel returned; None if it did not run, and the operations must."""
        if not self.usable:
            return None
        try:
            if self._launch is None:
                self._launch = getattr(import_module(self.module), self.name)
            return self._launch(*arguments)
        except torch.OutOfMemoryError:
            raise  # says nothing about the kernel: there may be room the next time
        except Exception as error:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                raise  # something else broke the capture: the kernel ran while warming up
            # Where the device is at fault, the operations will fail as well, and say so.
            self.usable = False
            _log.warning("%s cannot run here, slower operations do: %s", self.name, error)
            return None
