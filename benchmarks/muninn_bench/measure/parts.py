"""Where the time of a call goes: clocks at the seams of code on the host, kernels on a GPU."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from muninn.context import Context
from muninn.model.planner import Noise
from muninn_bench.measure.machine import synchronise
from muninn_bench.measure.protocol import Run
from muninn_bench.measure.turns import time_call

Parts = dict[str, tuple[float, float]]
"""Milliseconds a call, and how often the part was entered or launched."""

Seams = Mapping[str, Sequence[tuple[Any, str]]]
"""Functions of each part, as owner and attribute; a part inside another counts for itself only."""

REPEATS = 5
TRACED = 2  # calls; one of full compute is some 20,000 kernels
REST, IDLE = "the rest", "no kernel running"
KERNELS = (
    (r"_gap", "gap kernel"),
    (r"nchwToNhwc|nhwcToNchw", "changes of layout around convolutions"),
    (r"triton", "fused by the compiler"),
    (r"memcpy|memset", "copies and fills"),
    (r"norm|welford|RowwiseMoments", "normalisation"),
    (r"flash|fmha|attention|softmax", "attention"),
    (r"conv|cudnn|nchw|nhwc|xmma|cutlass|gemm|gemv|sm\d\d_|splitK", "convolutions and products"),
    (r"reduce", "reductions"),
    (r"elementwise|CatArray|index|gather|scatter|fill|copy", "element-wise and indexing"),
)
"""Pattern in a kernel's name and its group, the first that fits."""


class Clock:
    """Wall-clock time by part, each moment counted for the innermost part only."""

    stands_in = True  # is no part of the network that it times

    def __init__(self) -> None:
        self._inside = [REST]
        self.start()

    def start(self) -> None:
        """Begin; time counts for the rest until a part is entered."""
        self.seconds: dict[str, float] = defaultdict(float)
        self.entries = Counter[str]()
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Count the time since then for the part that is entered."""
        now = time.perf_counter()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    def timed(self, inner: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, its time counted for a part."""

        @functools.wraps(inner)
        def outer(*arguments: Any, **named: Any) -> Any:
            self.stop()
            self._inside.append(part)
            self.entries[part] += 1
            try:
                return inner(*arguments, **named)
            finally:
                self.stop()
                self._inside.pop()

        return outer

    @contextmanager
    def at(self, seams: Seams) -> Iterator[None]:
        """Time the seams until the block ends.

        Raises:
            AttributeError: an owner has no such attribute.
        """
        with ExitStack() as stack:
            for part, functions in seams.items():
                for owner, name in functions:
                    timed = self.timed(getattr(owner, name), part)
                    stack.enter_context(mock.patch.object(owner, name, timed))
            yield


def host_parts(
    make: Callable[[], Run],
    call: tuple[Context, Noise],
    device: torch.device,
    seams: Seams,
    repeats: int = REPEATS,
) -> Parts:
    """Mean wall-clock time of each part of a call.

    On a GPU the host does not wait for kernels, except where it reads: a part's time is that of
    launching it. The run is made with the clocks on: to one made before, they would be another
    network.
    """
    clock = Clock()
    with clock.at(seams):
        run = make()
        run(*call)
        synchronise(device)
        clock.start()
        for _ in range(repeats):
            run(*call)
            synchronise(device)
        clock.stop()
    return {
        part: (1e3 * seconds / repeats, clock.entries[part] / repeats)
        for part, seconds in clock.seconds.items()
    }


def kernel_group(name: str) -> str:
    """The group of a kernel, by its name.

    >>> kernel_group("void at::native::vectorized_elementwise_kernel<4>")
    'element-wise and indexing'
    """
    fitting = (group for pattern, group in KERNELS if re.search(pattern, name, re.IGNORECASE))
    return next(fitting, "other kernels")


def group_kernels(kernels: Iterable[tuple[str, float, float]], wall_ms: float) -> Parts:
    """Groups of kernels (name, milliseconds and launches per call), and the time in which none ran.

    ``wall_ms`` is that of a call that was not traced.
    """
    spent: Parts = defaultdict(lambda: (0.0, 0.0))
    for name, milliseconds, count in kernels:
        before = spent[kernel_group(name)]
        spent[kernel_group(name)] = before[0] + milliseconds, before[1] + count
    busy = sum(milliseconds for milliseconds, _ in spent.values())
    spent[IDLE] = max(wall_ms - busy, 0.0), 0.0
    return spent


def device_parts(run: Run, call: tuple[Context, Noise], device: torch.device) -> tuple[Parts, str]:
    """Time of each group of kernels in a call, and the table of all kernels."""
    run(*call)
    wall = float(np.median([time_call(lambda: run(*call), device)[0] for _ in range(REPEATS)]))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        for _ in range(TRACED):
            run(*call)
        synchronise(device)
    averages = trace.key_averages()
    kernels = [
        (event.key, 1e-3 * event.self_device_time_total / TRACED, event.count / TRACED)
        for event in averages
        if event.device_type.name != "CPU"
    ]
    table = averages.table(sort_by="self_device_time_total", row_limit=25, max_name_column_width=90)
    return group_kernels(kernels, 1e3 * wall), str(table)
