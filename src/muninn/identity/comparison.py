"""Where two identities differ, in words."""

from __future__ import annotations

from typing import Any


def generation(version: str) -> list[str]:
    """The part of a version within which nothing that matters changes; 0.x counts x."""
    parts = version.split(".")
    return parts[:2] if parts[0] == "0" else parts[:1]


def differences(prefix: str, was: Any, now: Any, whose: str = "planner") -> list[str]:
    """Places in which two nests of plain values differ, in words."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for key in sorted(was.keys() | now.keys()):
            found += differences(f"{prefix}.{key}".lstrip("."), was.get(key), now.get(key), whose)
        return found
    return [] if was == now else [f"{prefix}: certificate {was}, {whose} {now}"]


def older(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as schema 1 knew it: samplers without the digest of their table."""
    return {
        key: older(value) if isinstance(value, dict) else value
        for key, value in identity.items()
        if key not in ("table", "condition_table", "left_out")
    }
