"""The command line of the benchmarks: every command explains itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
@pytest.mark.parametrize("command", ["score", "frontier", "outcomes", "suite", "train"])
@pytest.mark.parametrize(
    ("device", "said"), [("cuda", "no CUDA device was found"), ("gpu", "device is 'cpu' or 'cuda'")]
)
def test_a_device_that_is_not_there_is_an_error_in_words(
    command: str, device: str, said: str, tmp_path: Path
) -> None:
    given = [command, "--task", "discs", "--device", device, "--out", str(tmp_path / "out")]
    if command == "train":
        (tmp_path / "data.npz").touch()
        given += ["--data", str(tmp_path / "data.npz")]
    with pytest.raises(InputError, match=said):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_a_task_that_lacks_an_extra_is_listed_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        raise InputError(f"{name} needs 'muninn-bench[fly]'")

    monkeypatch.setattr("muninn_bench.registry.find_task", refuse)
    said = CliRunner().invoke(app, ["tasks"], env={"COLUMNS": "200"}).output
    assert "asv needs 'muninn-bench[fly]'" in " ".join(said.split())
