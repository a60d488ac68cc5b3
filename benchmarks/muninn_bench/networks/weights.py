"""Weights with their description: a safetensors file whose metadata is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from muninn.errors import InputError
from muninn.files import write_whole


def write_weights(
    path: Path | str,
    description: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype,
) -> None:
    """Write tensors in a precision; the description's ``format`` says what the file is."""
    stored = {name: value.detach().to("cpu", dtype).contiguous() for name, value in weights.items()}
    write_whole(path, save(stored, metadata={"muninn": json.dumps(description)}))


def read_weights(path: Path | str, form: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and float32 weights of a file of that format.

    Raises:
        InputError: the file is cut short, or of another format.
    """
    try:
        with safe_open(path, framework="pt") as stored:
            metadata = stored.metadata() or {}
            weights = {name: stored.get_tensor(name).float() for name in stored.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(
            f"{path} cannot be read as weights ({error}); it may have been cut short: copy it "
            "again, or train it"
        ) from error
    description: dict[str, Any] = json.loads(metadata.get("muninn", "{}"))
    if description.get("format") != form:
        raise InputError(f"{path} is not a {form} file: format {description.get('format')!r}")
    return description, weights
