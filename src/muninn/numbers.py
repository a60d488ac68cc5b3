"""Numbers that users give: plain ones, from whatever kind they come in."""

from __future__ import annotations

import operator
from typing import Any

from muninn.errors import InputError


def number(name: str, value: Any) -> float:
    """A plain float; numpy's and torch's scalars are taken.

    Raises:
        InputError: it is no number.
    """
    if not isinstance(value, str | bytes):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise InputError(f"{name} must be a number, got {value!r:.60}")


def whole(name: str, value: Any, at_least: int = 0) -> int:
    """A plain int; numpy's integers are taken.

    Raises:
        InputError: it is no whole number, or too small.
    """
    try:
        found = operator.index(value)
    except TypeError as error:
        raise InputError(f"{name} must be a whole number, got {value!r:.60}") from error
    if found < at_least:
        raise InputError(f"{name} must be at least {at_least}, got {found}")
    return found
