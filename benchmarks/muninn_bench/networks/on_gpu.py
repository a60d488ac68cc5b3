"""Let a GPU evaluate the network of a planner that stays on the CPU.

A study needs millions of evaluations for plans whose latencies are not measured but drawn from a
trace. Everything but the network (sampler, cache, decisions, screen) still runs where the robot's
would, in float32; the network's float32 results differ by rounding alone. Launching its kernels
one by one would take longer than they do, so they are in CUDA graphs.
"""

from __future__ import annotations

import copy
import functools
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from muninn.context import Context
from muninn.engines.capture import capture
from muninn.model.denoiser import GradientGuidance, at_timestep
from muninn.model.planner import Planner
from muninn_bench.measure.machine import find_device


class MatrixConv1d(nn.Module):
    """The same map as an ``nn.Conv1d`` (no groups, no dilation), by gathered windows.

    cuDNN's float32 kernels for these shapes (one short axis, few channels) took 265 ms for a batch
    of 256 plans on an H200, and its default rounds to ten bits. Gathering the windows and
    multiplying once costs memory, not time: full float32, and fast.
    """

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self.kernel, self.stride = convolution.kernel_size[0], convolution.stride[0]
        self.padding = int(convolution.padding[0])
        self.train(convolution.training)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width_in, time) to (batch, width_out, time)."""
        frames = functional.pad(x.transpose(1, 2), (0, 0, self.padding, self.padding))
        windows = frames.unfold(1, self.kernel, self.stride)
        batch, length = windows.shape[:2]
        gathered = windows.reshape(batch * length, -1)
        out = functional.linear(gathered, self.weight.flatten(1), self.bias)
        return out.view(batch, length, -1).transpose(1, 2)


def use_matrix_products(network: nn.Module) -> None:
    """Replace every plain convolution over time inside a network, in place."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            plain = isinstance(child, nn.Conv1d) and child.groups == 1 and child.dilation == (1,)
            if plain:
                setattr(parent, name, MatrixConv1d(child))  # type: ignore[arg-type]


def moved(planner: Planner, device: str, *, graphs: bool = True) -> Planner:
    """The planner on a device, with a copy of its network there; itself on its own device.

    On a GPU convolutions are matrix products in CUDA graphs, and nothing rounds to ten bits;
    without ``graphs`` the network is as it is, for whoever looks into it or captures it whole.

    Raises:
        InputError: the device is neither ``cpu`` nor ``cuda``, or there is no CUDA device.
    """
    if find_device(device).type == planner.device.type:
        return planner
    denoiser = copy.deepcopy(planner.denoiser)
    _move(denoiser, device, graphs)
    return replace(planner, denoiser=denoiser, device=torch.device(device))


def _move(denoiser: Any, device: str, graphs: bool) -> None:
    """Move the networks of a denoiser, and of the one that guidance wraps, in place."""
    for name, part in list(vars(denoiser).items()):
        if isinstance(part, nn.Module):
            if graphs and name != "objective":  # that is differentiated: see below
                part.forward = InGraphs(copy.deepcopy(part).to(device))
            else:
                _in_full_precision(part)
            part.to(device)
        elif name == "denoiser":
            _move(part, device, graphs)
    if graphs and isinstance(denoiser, GradientGuidance):
        setattr(denoiser, "guide", InGraphs(_Guide(denoiser)))  # noqa: B010


class _Guide(nn.Module):
    """The gradient of a guidance as a module; it is captured with its backward pass."""

    def __init__(self, guidance: GradientGuidance) -> None:
        super().__init__()
        self._guidance = copy.copy(guidance)

    def forward(self, prediction: Tensor, x: Tensor, timestep: Tensor, context: Context) -> Tensor:
        """:meth:`muninn.model.denoiser.GradientGuidance.guide`."""
        return self._guidance.guide(prediction, x, timestep, context)


def _in_full_precision(network: nn.Module) -> None:
    """Have a network compute in full float32 on a GPU, and fast."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    use_matrix_products(network)


def evaluate_on_gpu(planner: Planner) -> bool:
    """Do so from now on, if there is a GPU; returns whether there is.

    The planner keeps its identity: its own weights stay as they are, unused.
    """
    network = getattr(planner.denoiser, "network", None)
    if network is None or not torch.cuda.is_available():
        return False
    network.forward = InGraphs(copy.deepcopy(network).to("cuda"))
    return True


class InGraphs:
    """The forward of a network on a GPU, in full precision, captured once per number of rows.

    Another process that is sent one captures for itself.
    """

    def __init__(self, network: nn.Module) -> None:
        _in_full_precision(network)
        self._network = network
        # Unlike a dictionary not looked into by certificates: buffers always change.
        self._captured = functools.cache(self._capture)

    def __reduce__(self) -> tuple[type[InGraphs], tuple[nn.Module]]:
        return InGraphs, (self._network,)

    def _capture(
        self, *inputs: tuple[tuple[int, ...], torch.dtype]
    ) -> tuple[Any, Tensor, list[Tensor]] | None:
        buffers = [torch.zeros(shape, dtype=dtype, device="cuda") for shape, dtype in inputs]
        try:
            with at_timestep(None):  # replayed at others
                graph, found = capture(lambda: self._network(*buffers), torch.device("cuda"))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            name = type(self._network).__name__
            warnings.warn(f"{name} is run without a CUDA graph, slower: {error}", stacklevel=2)
            return None
        return graph, found, buffers

    @torch.no_grad()
    def __call__(self, *given: Tensor) -> Tensor:
        """Rows are filled up to a power of two, so that a few graphs do for all batches."""
        rows = len(given[0])
        size = 1 << (rows - 1).bit_length()
        shapes = (((size, *one.shape[1:]), one.dtype) for one in given)
        captured = self._captured(*shapes)
        if captured is None:
            plain: Tensor = self._network(*(one.to("cuda") for one in given))
            return plain.to(given[0].device)
        graph, found, buffers = captured
        for buffer, one in zip(buffers, given, strict=True):
            buffer[:rows].copy_(one)
        graph.replay()
        return found[:rows].to(given[0].device, copy=True)
