"""The file of a certificate: safetensors with one JSON document and a checksum; never a pickle."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from muninn.errors import CertificateError
from muninn.files import write_whole

SCHEMA = 5
OLDEST = 1
"""Schema 1 has no questions, no form of contexts and no digest of the sampler's table: such a
certificate is compared by what it holds."""

_KEY = "muninn_certificate"


def write(path: Path, data: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write plain fields and arrays; the file appears whole or not at all.

    Raises:
        CertificateError: it cannot be written.
    """
    document = {"certificate": data, "checksum": _checksum(data, arrays)}
    # One key: safetensors writes several in random order, and equal files should be equal.
    payload = safetensors.numpy.save(arrays, {_KEY: json.dumps(document, sort_keys=True)})
    try:
        return write_whole(path, payload)
    except OSError as error:
        raise CertificateError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another path"
        ) from error


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plain fields and arrays of a file.

    Raises:
        CertificateError: names the field that is missing, damaged or too new.
    """
    again = "Calibrate again or restore a copy"

    def refusal(field: str, words: str) -> CertificateError:
        return CertificateError(f"{path}: field {field!r} {words}")

    if not path.is_file():
        raise CertificateError(f"{path}: no such file; calibrate first or check the path")
    try:
        with safetensors.safe_open(str(path), "numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        words = f"cannot be read ({error}); it is truncated or not a certificate. {again}"
        raise refusal("file", words) from error
    if _KEY not in header:
        raise refusal(_KEY, "is missing; this is a safetensors file, but not a Muninn certificate")
    try:
        document = json.loads(header[_KEY])
        data, checksum = dict(document["certificate"]), str(document["checksum"])
    except (ValueError, KeyError, TypeError) as error:
        raise refusal(_KEY, f"is damaged ({error}). {again}") from error
    schema = data.get("schema")
    if schema not in range(OLDEST, SCHEMA + 1):
        words = f"is {schema}, this version of Muninn reads {OLDEST} to {SCHEMA}; upgrade"
        raise refusal("schema", f"{words} muninn-diffusion or calibrate again")
    if checksum != _checksum(data, arrays):
        words = f"does not match the content; the file was damaged or edited. {again}"
        raise refusal("checksum", words)
    return data, arrays


def _checksum(data: dict[str, Any], arrays: dict[str, Any]) -> str:
    state = hashlib.sha256(json.dumps(data, sort_keys=True).encode())
    for name in sorted(arrays):
        state.update(f"{name}{arrays[name].dtype}{arrays[name].shape}".encode())
        state.update(np.ascontiguousarray(arrays[name]).tobytes())
    return state.hexdigest()
