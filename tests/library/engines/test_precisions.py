"""Which arithmetic is in force: autocast, and precisions that are not torch's defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from muninn.identity.arithmetic import Arithmetic, arithmetic
from precision_cases import CPU, CUDA, HALVES, NEW, default_precisions, set_switch


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    with default_precisions():
        yield


def test_autocast_is_of_its_own_kind_of_device() -> None:
    assert [arithmetic(torch.device(kind)) for kind in ("cpu", "cuda", "meta")] == [None] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert arithmetic(CPU) == {"autocast": "bfloat16"} and arithmetic(CUDA) is None
        with torch.autocast("cpu", enabled=False):
            assert arithmetic(CPU) is None
        with torch.autocast("cpu", dtype=torch.float16):
            assert arithmetic(CPU) == {"autocast": "float16"}
    assert arithmetic(CPU) is None


SWITCHES: list[tuple[str, Any, Arithmetic]] = [
    ("cuda.matmul.allow_tf32", True, {"matmul_tf32": True}),
    ("cuda.matmul.allow_tf32", False, None),
    ("cudnn.allow_tf32", False, {"cudnn_tf32": False}),
    ("cudnn.allow_tf32", True, None),
    # Set so, torch's own ``allow_tf32`` cannot be read any more.
    ("cuda.matmul.fp32_precision", "tf32", {"matmul_tf32": True}),
    ("cudnn.conv.fp32_precision", "ieee", {"cudnn_tf32": False}),
    ("cuda.matmul.allow_fp16_accumulation", True, {"allow_fp16_accumulation": True}),
    *(
        (f"cuda.matmul.{name}", False, {name: False})
        for name in (f"allow_{half}_reduced_precision_reduction" for half in HALVES)
    ),
    *(
        (f"cuda.matmul.{name}", (False, False), {name: False, f"{name}_split_k": False})
        for name in (f"allow_{half}_reduced_precision_reduction" for half in HALVES if NEW)
    ),
]


@pytest.mark.parametrize(("name", "value", "expected"), SWITCHES)
def test_reduced_precision_counts_on_cuda_where_it_is_not_the_default(
    name: str, value: Any, expected: Arithmetic
) -> None:
    set_switch(name, value)
    assert arithmetic(CUDA) == expected
    assert arithmetic(CPU) is None


@pytest.mark.parametrize("kind", ["matmul", "conv"])
@pytest.mark.parametrize("precision", ["bf16", "tf32", "ieee"])
def test_reduced_precision_counts_on_the_cpu_too(kind: str, precision: str) -> None:
    set_switch(f"mkldnn.{kind}.fp32_precision", precision)
    assert arithmetic(CPU) == (None if precision == "ieee" else {f"mkldnn_{kind}": precision})
    assert arithmetic(CUDA) is None


@pytest.mark.parametrize(("setting", "precision"), [("medium", "bf16"), ("high", "tf32")])
def test_the_precision_of_products_is_one_of_both(setting: str, precision: str) -> None:
    torch.set_float32_matmul_precision(setting)
    assert arithmetic(CPU) == {"mkldnn_matmul": precision if NEW else setting}
    assert arithmetic(CUDA) == {"matmul_tf32": True}


def test_what_is_set_for_everything_counts_where_nothing_else_was_set() -> None:
    if not NEW:
        pytest.skip("torch has no fp32_precision")
    torch.set_float32_matmul_precision("highest")  # sets products to ieee, which stays
    torch.backends.fp32_precision = "bf16"  # type: ignore[attr-defined]
    assert arithmetic(CPU) == {"mkldnn_conv": "bf16"}
    torch.backends.mkldnn.matmul.fp32_precision = "none"  # type: ignore[attr-defined]
    assert arithmetic(CPU) == {"mkldnn_conv": "bf16", "mkldnn_matmul": "bf16"}


def test_everything_is_told_at_once() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = False
    expected = {"matmul_tf32": True, "cudnn_tf32": False}
    assert arithmetic(CUDA) == expected
    torch.set_autocast_enabled("cuda", True)  # without a GPU the context manager would not
    try:
        assert arithmetic(CUDA) == {"autocast": "float16", **expected}
    finally:
        torch.set_autocast_enabled("cuda", False)
