"""The command line of the benchmarks: every command explains itself."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from muninn.cli import app as library
from muninn.errors import InputError
from muninn_bench.cli import app

COMMANDS = (
    "tasks", "demo", "compare", "few-steps", "report", "data", "train", "fly", "monitor",
    "coverage", "latency", "checks", "soak", "ablate", "suite",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    runner = CliRunner()
    assert command in runner.invoke(app, ["--help"]).output
    assert runner.invoke(app, [command, "--help"]).exit_code == 0


def test_it_says_its_versions_as_the_library_does() -> None:
    said = CliRunner().invoke(app, ["--version"]).output
    assert said.startswith("muninn ") and "torch " in said
    assert said == CliRunner().invoke(library, ["--version"]).output


def test_a_task_that_lacks_an_extra_is_listed_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        raise InputError(f"{name} needs 'muninn-bench[fly]'")

    monkeypatch.setattr("muninn_bench.registry.find_task", refuse)
    said = CliRunner().invoke(app, ["tasks"], env={"COLUMNS": "200"}).output
    assert "asv needs 'muninn-bench[fly]'" in " ".join(said.split())
