"""The network compiled by ``torch.compile``, for ``Planner(engine="compile")``."""

from __future__ import annotations

import torch
from torch import Tensor

from muninn.context import Context
from muninn.errors import DenoiserError
from muninn.model.denoiser import Denoiser, at_timestep


class CompiledDenoiser:
    """A denoiser whose operations the compiler fuses at its first call.

    What it does must not depend on Python state that changes. Kernels come from the cache of
    ``torch.compile``, so that several runtimes of one denoiser compile it once.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self._compiled: Denoiser = torch.compile(denoiser)

    def __call__(self, x: Tensor, timestep: Tensor, context: Context, /) -> Tensor:
        """The prediction; DenoiserError where the network cannot be compiled."""
        try:
            with at_timestep(None):  # a compiler takes what it reads once for a constant
                return self._compiled(x, timestep, context)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException  # loads the compiler: seconds

            if not isinstance(error, TorchDynamoException):
                raise
            reason = str(error).strip().partition("\n")[0]
            raise DenoiserError(
                f"the network cannot be compiled ({reason}); use engine='eager', or 'graph' on a "
                "GPU"
            ) from error
