"""One CUDA graph: what a function does, recorded, and nothing left behind, whatever happens."""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

WARM_UP = 3  # runs before a capture, in which libraries choose kernels and allocate workspaces
_CAPTURING = threading.RLock()  # captures on one stream of a device, whoever asks

Result = TypeVar("Result")


def capture(
    function: Callable[[], Result], device: torch.device, pool: Any = None
) -> tuple[Any, Result]:
    """A graph of what a function does on the device, and the result that replays overwrite.

    The function is run a few times before. Graphs that share a ``pool`` of memory must not be
    replayed at the same time. Under autocast the graph holds the casts of the weights: copies
    that autocast has cached are freed when the caller leaves it, and a graph would still read them.

    Raises:
        RuntimeError: what the function did cannot be captured; nothing is left behind. Whatever
            the function raises itself is passed on. Do not use the pool again then: its memory
            may be in use still, by what holds the error.
    """
    with _CAPTURING, torch.cuda.device(device):
        before = torch.cuda.current_stream(device)
        stream = _stream_on(before.device_index)
        stream.wait_stream(before)
        with _no_cached_casts(), torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function()
        before.wait_stream(stream)
        pool = pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        forget_workspaces()
        try:
            with _no_collection(), _no_cached_casts(), _recording(graph, stream, pool):
                result = function()
        except BaseException:
            _heal(before, stream, pool)
            raise
        finally:
            forget_workspaces()
    return graph, result


@functools.cache
def _stream_on(index: int) -> Any:
    """The stream on which work of a device is captured. Torch has one for all devices, and it is of
    the device that captured first: the graph of another would be empty."""
    return torch.cuda.Stream(torch.device("cuda", index))  # type: ignore[no-untyped-call]


@contextmanager
def _recording(graph: Any, stream: Any, pool: Any = None) -> Iterator[None]:
    """Records into a graph; what is raised meanwhile is passed on as it is."""
    # Other threads may allocate meanwhile; only this one must not.
    recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    recording.__enter__()
    try:
        yield
    except BaseException as error:
        with suppress(RuntimeError):  # torch's own, about a broken capture, says less
            recording.__exit__(type(error), error, error.__traceback__)
        raise
    recording.__exit__(None, None, None)


@contextmanager
def _no_cached_casts() -> Iterator[None]:
    """Switch off autocast's cache, which all threads share: what others cast is not used here, and
    they never see what is cast here, which holds no values before the graph is replayed."""
    enabled = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(enabled)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from collecting garbage: destroying an old graph would end a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _heal(before: Any, stream: Any, pool: Any) -> None:
    """Undo what torch leaves behind when a capture fails.

    The thread is left on the capture stream, on which others capture too; the allocator goes on
    serving the pool and frees no memory that was used on several streams; random generators are in
    capture mode, in which they draw nothing, until a capture succeeds. All that is so only where
    CUDA broke the capture off. An exception of Python leaves a capture that torch ends as usual;
    then the allocator no longer serves the pool, says so in an error, and the graph releases it.
    ``before`` is the stream that the thread was on, ``stream`` the one on which it captured.
    """
    torch.cuda.set_stream(before)
    with suppress(RuntimeError):
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            if hasattr(torch._C, name):
                getattr(torch._C, name)(before.device_index, pool)
    with (
        suppress(RuntimeError),  # there may be no memory left; the first error is the one to see
        torch.cuda.stream(before),  # come back to it even if the capture cannot begin
        _recording(torch.cuda.CUDAGraph(), stream),
    ):
        torch.zeros(1, device=before.device)


def forget_workspaces() -> None:
    """Have torch drop the scratch memory of matrix products that it keeps for every stream.

    Before a capture, so that the graph gets its own: graphs that share it could not run at the
    same time. After it, so that it goes when the graph goes: 32 MB a stream on a Hopper GPU.
    """
    forget = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if forget is not None:
        forget()


def shared_pool(device: torch.device) -> Any:
    """Memory for graphs that take turns; None without a CUDA device."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None
