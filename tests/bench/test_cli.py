"""The command line of the benchmarks: every command explains itself."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from muninn_bench.cli import app


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "compare",
        "train",
        "data",
        "fly",
        "ablate",
        "tasks",
        "report",
        "monitor",
        "coverage",
        "latency",
        "soak",
        "few-steps",
    ],
)
def test_every_command_explains_itself(command: str) -> None:
    runner = CliRunner()
    assert command in runner.invoke(app, ["--help"]).output
    assert runner.invoke(app, [command, "--help"]).exit_code == 0
