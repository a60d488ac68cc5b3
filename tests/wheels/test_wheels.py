"""Both wheels, built and installed outside the checkout, offer every documented command.

The environment is new and holds the two wheels; what they need comes from the environment of the
tests, so that nothing is downloaded. Editable installations there are not seen.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from muninn.adapters.lerobot.commands import COMMANDS

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "models").rglob("CARD.md")),
    *sorted((ROOT / "benchmarks").rglob("CARD.md")),
]
COMMAND = re.compile(
    r"(?:^    |`)(?:\.venv(?:-lerobot)?/bin/)?(muninn(?:-bench)? [a-z][^`\n#]*)", re.M
)

START = (ROOT / "docs" / "getting_started.md").read_text()
"""A new user's first page. Its `pip install .` is what the fixture below does, from a wheel."""


def documented() -> list[str]:
    """Every command that a page shows, once."""
    found = [match[1].strip() for page in PAGES for match in COMMAND.finditer(page.read_text())]
    return sorted(set(found))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the checkout with an environment that holds the two wheels."""
    folder = tmp_path_factory.mktemp("outside")
    for project in (ROOT, ROOT / "benchmarks"):
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(folder)]
        subprocess.run([*build, str(project)], check=True, capture_output=True)
    venv.create(folder / "env", with_pip=True, symlinks=True)
    python = folder / "env/bin/python"
    wheels = [str(path) for path in folder.glob("*.whl")]
    pip = [str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", *wheels]
    subprocess.run(pip, check=True, capture_output=True)
    (own,) = (folder / "env").glob("lib/python*/site-packages")
    # A line in a .pth file adds a folder, but does not read the .pth files inside it.
    (own / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(place: Path, *command: str) -> subprocess.CompletedProcess[str]:
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        surroundings.pop(name, None)
    program = str(place / "env/bin" / command[0])
    return subprocess.run(
        [program, *command[1:]], cwd=place, env=surroundings, capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip


def succeeds(place: Path, line: str) -> str:
    found = run(place, *shlex.split(line))
    assert found.returncode == 0, f"{line}\n{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
    return found.stdout


def test_the_wheels_are_what_is_imported(place: Path) -> None:
    for package in ("muninn", "muninn_bench"):
        shown = run(place, "python", "-c", f"import {package}; print({package}.__file__)").stdout
        assert shown.startswith(str(place)), shown


def test_the_library_needs_nothing_of_the_bench(place: Path) -> None:
    probe = (
        "import sys, muninn, muninn.cli; muninn.calibrate, muninn.cache, muninn.evaluate;"
        "extras = {'muninn_bench', 'gymnasium', 'mujoco', 'matplotlib', 'diffusers'};"
        "print(sorted(extras & set(sys.modules)))"
    )
    assert run(place, "python", "-c", probe).stdout.strip() == "[]"


def test_the_getting_started_page_runs_as_printed(place: Path) -> None:
    (use,) = re.findall(r"```python\n(.*?)```", START, re.DOTALL)
    (place / "use.py").write_text(use)
    new, survey, calibrate, judge = re.findall(r"^    (muninn .*)$", START, re.MULTILINE)
    assert "wrote my_policy.py" in succeeds(place, new)
    assert "A tolerance of 0.05 needs about" in succeeds(place, survey)
    made = succeeds(place, calibrate)
    assert "at most 5.0% of new calls" in " ".join(made.split())
    assert "of 100 evaluations" in succeeds(place, "python use.py")
    assert "Kept" in succeeds(place, judge)
    (inspect,) = re.findall(r"`(muninn inspect .*?)`", START)
    assert "Not promised" in succeeds(place, inspect)
    succeeds(place, f"{judge} --out run.json")
    assert "Is the promise kept?" in succeeds(place, "muninn report run.json")


SMOKE = [
    "muninn-bench tasks",
    "muninn-bench demo --smoke",
    "muninn-bench compare --task maze2d --smoke",
    "muninn-bench few-steps --task maze2d --smoke",
    "muninn-bench report runs/demo",
    "muninn-bench coverage --smoke",
    "muninn-bench outcome-coverage --smoke",
    "muninn-bench outcomes --task discs --smoke",
    "muninn-bench checks --smoke",
    "muninn-bench soak --smoke",
    "muninn-bench data --task discs --count 40",
    "muninn-bench train --task discs --steps 3",
    "muninn-bench score --task discs --episodes 4",
]


MINUTES = [
    "muninn-bench monitor --smoke",
    "muninn-bench latency --smoke",
    "muninn-bench fly --task maze2d --smoke",
    "muninn-bench ablate --smoke",
    "muninn-bench frontier --task maze2d --smoke",
]
"""Miniatures that take minutes even so; CI leaves them to `make test-wheels`."""


@pytest.mark.parametrize(
    "line", [*SMOKE, *(pytest.param(line, marks=pytest.mark.slow) for line in MINUTES)]
)
def test_a_command_runs_outside_the_checkout(place: Path, line: str) -> None:
    succeeds(place, line)


def test_every_documented_command_is_among_those_run(place: Path) -> None:
    tried = {tuple(line.split()[:2]) for line in [*SMOKE, *MINUTES]}
    verbs = ("new", "survey", "calibrate", "evaluate", "inspect", "report")
    tried |= {("muninn", verb) for verb in verbs}
    tried.add(("muninn", "lerobot"))  # where LeRobot is: tests/library/adapters/lerobot
    unknown = [line for line in documented() if tuple(line.split()[:2]) not in tried]
    assert len(documented()) > 10 and unknown == []


@pytest.mark.parametrize("line", documented())
def test_documented_options_exist(place: Path, line: str) -> None:
    program, command, *rest = shlex.split(line)
    listing = succeeds(place, f"{program} {command} --help")
    if command == "lerobot":  # what follows its command is LeRobot's
        rest = rest[: next(at for at, word in enumerate(rest) if word in COMMANDS)]
    for option in (word.split("=")[0] for word in rest if word.startswith("--")):
        assert option in listing, f"{line}: {command} has no {option}"
