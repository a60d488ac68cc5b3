"""The order of rooms: every import in both packages, read from the source, goes downwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY, BENCH = ROOT / "src" / "muninn", ROOT / "benchmarks" / "muninn_bench"

ROOMS = ("identity", "model", "programs", "engines", "certify", "loop")
"""Lowest first; each imports the ones before it, and the files at the root."""

TOP = ("monitor", "adapters", "paper")
"""Side by side: they import every room, and not each other."""

VERBS = ("__init__", "cli")
"""Files at the root that may import everything; the others import the root alone."""

BENCH_ROOMS = ("report", "networks", "planners", "measure", "tasks", "studies")
"""Lowest first: a study imports tasks, never the reverse."""


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno} imports relatively"
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def room(name: str, package: Path) -> str:
    """The room of a dotted name inside a package; empty for its root."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (package / parts[1]).is_dir() else ""


def allowed(own: str, other: str, rooms: tuple[str, ...], top: tuple[str, ...]) -> bool:
    """May a file of the room ``own`` import from the room ``other``?"""
    if other in ("", own):
        return True
    if own in top:
        return other in rooms
    return own in rooms and other in rooms and rooms.index(other) < rooms.index(own)


LIBRARY_FILES = sorted(path.relative_to(LIBRARY) for path in LIBRARY.rglob("*.py"))
BENCH_FILES = sorted(path.relative_to(BENCH) for path in BENCH.rglob("*.py"))


@pytest.mark.parametrize("file", LIBRARY_FILES, ids=str)
def test_the_library_imports_downwards_and_never_the_bench(file: Path) -> None:
    own = file.parts[0] if len(file.parts) > 1 else ""
    for line, name in imported(LIBRARY / file):
        package = name.split(".")[0]
        assert package != "muninn_bench", f"{file}:{line}: the library imports {name}"
        if package == "muninn" and not (own == "" and file.stem in VERBS):
            other = room(name, LIBRARY)
            assert allowed(own, other, ROOMS, TOP), (
                f"{file}:{line}: {own or 'the root'} may not import {name}; the order is "
                f"root, {', '.join(ROOMS)}, then {', '.join(TOP)} side by side"
            )


@pytest.mark.parametrize("file", BENCH_FILES, ids=str)
def test_the_bench_imports_downwards_and_a_task_no_other_task(file: Path) -> None:
    own = file.parts[0] if len(file.parts) > 1 else ""
    for line, name in imported(BENCH / file):
        parts = name.split(".")
        if parts[0] != "muninn_bench" or own == "":
            continue
        other = room(name, BENCH)
        assert allowed(own, other, BENCH_ROOMS, ()), (
            f"{file}:{line}: {own} may not import {name}; the order is {', '.join(BENCH_ROOMS)}"
        )
        if own == other == "tasks" and len(parts) > 2 and len(file.parts) > 2:
            beside = not (BENCH / "tasks" / parts[2]).is_dir()
            assert beside or parts[2] == file.parts[1], f"{file}:{line}: imports another task"


def test_no_file_is_longer_than_300_lines() -> None:
    files = [*LIBRARY.rglob("*.py"), *BENCH.rglob("*.py")]
    long = {
        str(path): count for path in files if (count := len(path.read_text().splitlines())) > 300
    }
    assert not long
