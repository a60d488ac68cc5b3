"""The machine that is timed: its name, waiting until it is done, and what memory a call takes."""

from __future__ import annotations

import gc
import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from muninn.errors import InputError

Result = TypeVar("Result")


def find_device(name: str) -> torch.device:
    """The device to compute on.

    Raises:
        InputError: it is neither ``cpu`` nor ``cuda``, or there is no CUDA device.
    """
    if name not in ("cpu", "cuda"):
        raise InputError(f"device is 'cpu' or 'cuda', got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("no CUDA device was found; use --device cpu")
    return torch.device(name)


def hardware(device: torch.device) -> str:
    """Processor, threads and versions, in words."""
    if device.type == "cuda":
        return (
            f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}, "
            f"CUDA {torch.version.cuda}"
        )
    told = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*: *(.+)", told.read_text() if told.is_file() else "", re.M)
    processor = named[1].strip() if named else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    plural = "" if threads == 1 else "s"
    return f"{processor}, {threads} thread{plural}, PyTorch {torch.__version__}"


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Give back the memory of methods that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def memory(device: torch.device) -> tuple[float, float, float]:
    """MB held by tensors, held by PyTorch (graphs' pools included), and resident in the process.

    On a CPU all three are the last one, which is 0 where the system does not tell.
    """
    statistics, resident = Path("/proc/self/statm"), 0.0
    if statistics.is_file():
        pages = int(statistics.read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    if device.type != "cuda":
        return resident, resident, resident
    allocated = torch.cuda.memory_allocated(device) / 2**20
    return allocated, torch.cuda.memory_reserved(device) / 2**20, resident


def peak_memory(work: Callable[[], Result], device: torch.device) -> tuple[Result, float | None]:
    """The result of some work, and the most MB that it held at a time beyond what was there.

    None on a CPU: resident memory of a process says nothing about one call.
    """
    if device.type != "cuda":
        return work(), None
    synchronise(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = work()
    synchronise(device)
    return result, (torch.cuda.max_memory_allocated(device) - before) / 2**20
