"""The command line on small things: help, errors in one line, inspect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import muninn
from analytic import mixture_planner
from muninn.certify.unchecked import UNCHECKED
from muninn.cli import app
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    planner = mixture_planner(ddim(Schedule.cosine(10), kind="sample"), (8, 2))
    family = Family(Forecast("sample", 1), (Everywhere(), Static((0, 1, 3, 6, 9))), "static")
    made = muninn.calibrate(planner, 60, tolerance=0.5, risk=0.1, family=family, progress=False)
    return made.save(tmp_path / "toy.muninn.safetensors")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "muninn.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_command_explains_itself() -> None:
    runner = CliRunner()
    listing = runner.invoke(app, ["--help"]).output
    for command in ("inspect",):
        assert command in listing
        assert runner.invoke(app, [command, "--help"]).exit_code == 0


def test_inspect_prints_the_promise_and_its_limits(certificate: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(certificate)])
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    assert "At most 10.0% of new calls deviate" in words
    assert "Not promised" in words and "ddim" in words and "member 1" in words
    for unchecked in UNCHECKED:
        assert " ".join(unchecked.split()) in words


def test_the_page_on_certificates_has_the_same_list_of_what_is_not_checked() -> None:
    page = (Path(__file__).parents[2] / "docs" / "certificate.md").read_text()
    _, _, section = page.partition("## What is not checked\n")
    listed = [line.removeprefix("- ") for line in section.splitlines() if line.startswith("- ")]
    assert listed == list(UNCHECKED)


def test_an_error_is_one_clear_line_and_exit_code_2(tmp_path: Path) -> None:
    result = run("inspect", str(tmp_path / "missing.safetensors"))
    assert result.returncode == 2
    assert "no such file; calibrate first" in " ".join(result.stdout.split())
    assert "Traceback" not in result.stdout + result.stderr


def test_importing_muninn_needs_no_extra() -> None:
    probe = (
        "import sys, muninn; muninn.calibrate, muninn.cache, muninn.tune, muninn.ddim;"
        "extras = {'gymnasium', 'mujoco', 'matplotlib', 'diffusers', 'gymnasium_robotics'};"
        "print(sorted(extras & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=120, check=True
    )
    assert result.stdout.strip() == "[]"
