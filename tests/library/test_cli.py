"""The command line: help, errors in one line, and every command on a file of a new user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from typer.testing import CliRunner

import muninn
from analytic import mixture_planner
from muninn.certify.scan import Scan
from muninn.certify.target import load
from muninn.certify.tune import tune_family
from muninn.certify.unchecked import UNCHECKED
from muninn.cli import app, main
from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    planner = mixture_planner(ddim(Schedule.cosine(10), kind="sample"), (8, 2))
    family = Family.of(Forecast("sample", 1), (Everywhere(), Static((0, 1, 3, 6, 9))), "static")
    made = muninn.calibrate(planner, 60, tolerance=0.5, risk=0.1, family=family, progress=False)
    return made.save(tmp_path / "toy.muninn.safetensors")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "muninn.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_command_explains_itself() -> None:
    runner = CliRunner()
    listing = runner.invoke(app, ["--help"]).output
    for command in ("new", "survey", "inspect", "calibrate", "evaluate", "report"):
        assert command in listing
        assert runner.invoke(app, [command, "--help"]).exit_code == 0


def test_inspect_prints_the_promise_and_its_limits(certificate: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(certificate)])
    assert result.exit_code == 0
    words = " ".join(result.output.split())
    assert "evaluations a call, at most 10.0% of new calls deviate" in words
    assert "Not promised" in words and "ddim" in words and "number 1 of the programs" in words
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


# -- a file as a new user writes it --------------------------------------------------------------

POLICY = """
import torch
import muninn


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8 * 2 + 3 + 1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8 * 2)
        )

    def forward(self, x, timestep, context):
        inputs = torch.cat([x.flatten(1), context, timestep[:, None] / 10], dim=1)
        return self.layers(inputs).view_as(x)


def planner(train=False):
    torch.manual_seed(0)
    network = Network().train(train)
    sampler = muninn.ddim(muninn.Schedule.cosine(10), kind="sample")
    return muninn.Planner(network, sampler, shape=(8, 2))


def policy():
    return planner(), torch.randn(150, 3, generator=torch.Generator().manual_seed(1))


def held_out():
    return planner(), torch.randn(60, 3, generator=torch.Generator().manual_seed(2))


def endless():
    generator = torch.Generator().manual_seed(3)
    return planner(), iter(lambda: torch.randn(7, 3, generator=generator), None)


def training():
    return planner(train=True), torch.randn(150, 3)


def unbatched():
    return planner(), torch.randn(150)


def few():
    return planner(), torch.randn(20, 3)


def other_size():
    return planner(), torch.randn(150, 4)


def alone():
    return planner()


def broken():
    return planner(), torch.randn(150, 3) @ torch.zeros(4)


def near(plan, seed):
    drawn = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed))
    return bool(plan(drawn)[0, -1].abs().max() < 2.0)


def episodes():
    import muninn
    return planner(), muninn.Outcomes(near, 100, "mean", 0.1, together=20, tune=16)
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def muninn_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command line in a folder with the user's file: exit code, and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("my_policy.py").write_text(POLICY)

    def command(*arguments: str) -> tuple[int, str]:
        for module in ("my_policy", "route"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setattr(sys, "argv", ["muninn", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), capsys.readouterr().out

    return command


SETTINGS = ("--tolerance", "0.02", "--risk", "0.1")


def test_a_users_policy_is_calibrated_evaluated_and_reported(muninn_command: Command) -> None:
    code, said = muninn_command("calibrate", "my_policy.py:policy", "a.muninn", *SETTINGS)
    assert code == 0 and "evaluations a call, at most 10.0% of new calls deviate" in " ".join(
        said.split()
    )
    made = muninn.Certificate.load("a.muninn")
    assert made.member > 0
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == [
        "a.muninn", "my_policy.py",
    ]  # fmt: skip
    code, said = muninn_command("inspect", "a.muninn")
    assert code == 0 and "ddim" in said
    code, said = muninn_command("evaluate", "my_policy.py:held_out", "a.muninn", "--out", "r.json")
    assert code == 0 and "Kept: " in said and "of 60 new calls" in said
    assert json.loads(Path("r.json").read_text())["kept"] is True
    code, again = muninn_command("report", "r.json")
    assert code == 0 and again == said and made.promise() in again
    assert muninn_command("report", "r.json", "--out", "r.md")[0] == 0
    assert Path("r.md").read_text().strip() == said.strip()
    code, said = muninn_command("evaluate", "my_policy.py:policy", "a.muninn")
    assert code == 2 and "contexts were calibrated or tuned on" in said
    assert "Here the last" not in said  # all of them were


def test_contexts_that_were_not_calibrated_are_pointed_out(muninn_command: Command) -> None:
    asked = ("calibrate", "my_policy.py:policy", "a.muninn", *SETTINGS, "--calls", "90")
    assert muninn_command(*asked)[0] == 0
    judge = ("evaluate", "my_policy.py:policy", "a.muninn")
    code, said = muninn_command(*judge)
    assert code == 2 and "Here the last 60 are new: --calls 60" in said
    assert muninn_command(*judge, "--calls", "60")[0] == 0
    code, said = muninn_command(*judge, "--calls", "100")
    assert code == 2 and "Here the last" not in said
    code, said = muninn_command("evaluate", "my_policy.py:few", "a.muninn")
    assert code == 2 and "cannot judge" in said and "Here the last" not in said


def test_an_outcome_is_promised_judged_and_reported_without_a_tolerance(
    muninn_command: Command,
) -> None:
    code, said = muninn_command("calibrate", "my_policy.py:episodes", "o.muninn")
    words = " ".join(said.split())
    assert code == 0 and "the mean score of new episodes is at most 0.1 below" in words, said
    assert "an outcome is promised" in words and "mean score" in words
    made = muninn.Certificate.load("o.muninn")
    assert made.outcome is not None and made.member > 0
    code, said = muninn_command(
        "evaluate", "my_policy.py:episodes", "o.muninn", "--calls", "60", "--out", "o.json"
    )
    assert code == 0 and "Kept: the mean score of 60 new episodes" in said
    assert "its own mean is promised to be" in said
    code, again = muninn_command("report", "o.json")
    assert code == 0 and again == said
    code, said = muninn_command("evaluate", "my_policy.py:policy", "o.muninn")
    assert code == 2 and "promises an outcome" in said


def test_other_methods_run_beside_a_certificate_on_contexts_that_do_not_judge(
    muninn_command: Command,
) -> None:
    asked = ("calibrate", "my_policy.py:policy", "a.muninn", *SETTINGS, "--calls", "90")
    assert muninn_command(*asked)[0] == 0
    judge = ("evaluate", "my_policy.py:policy", "a.muninn", "--compare")
    code, said = muninn_command(*judge, "--calls", "60", "--out", "r.json")
    assert code == 0 and "tuned on 64 other calls" in said
    rows = [row["method"] for row in json.loads(Path("r.json").read_text())["alternatives"]]
    assert rows[:3] == ["full compute", "fewer steps", "DPM-Solver++"]
    assert all(f"| {name} |" in said for name in rows) and "| Muninn, certified |" in said
    assert muninn_command("report", "r.json")[1] == said
    code, said = muninn_command(*judge)
    assert code == 2 and "all 150 judge: say --calls N with fewer" in said
    muninn_command("calibrate", "my_policy.py:episodes", "o.muninn")
    code, said = muninn_command("evaluate", "my_policy.py:episodes", "o.muninn", "--compare")
    assert code == 2 and "a comparison needs a certificate of calls" in said


def test_force_overwrites_what_is_there_but_nothing_that_is_read(
    muninn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate = ("calibrate", "my_policy.py:policy", "a", *SETTINGS)
    evaluate = ("evaluate", "my_policy.py:held_out", "a", "--out")
    assert muninn_command(*calibrate)[0] == 0
    made = Path("a").read_bytes()
    for name in ("r.json", "r.md", "s.json"):
        Path(name).write_text("old")
    commands = [
        calibrate, (*evaluate, "r.json"), ("report", "r.json", "--out", "r.md"),
        ("survey", "my_policy.py:policy", "--risk", "0.1", "--out", "s.json"), ("new",),
    ]  # fmt: skip
    for command in commands:
        code, said = muninn_command(*command)
        assert code == 2 and "exists; choose another name, delete it first, or pass --force" in said
    for command in commands[:-1]:
        assert muninn_command(*command, "--force")[0] == 0, command
    assert Path("a").read_bytes() == made
    assert json.loads(Path("r.json").read_text())["kept"] and "old" not in Path("r.md").read_text()
    assert json.loads(Path("s.json").read_text())["rows"]
    for command in (
        (*evaluate, "a"), (*evaluate, "my_policy.py"), ("report", "r.json", "--out", "r.json"),
        (*calibrate[:2], "my_policy.py", *SETTINGS),
    ):  # fmt: skip
        code, said = muninn_command(*command, "--force")
        assert code == 2 and "it is read by this command" in said
    assert Path("my_policy.py").read_text() == POLICY and Path("a").read_bytes() == made

    def interrupted(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(Scan, "bound", interrupted)
        assert muninn_command(*calibrate, "--force")[0] == 130
    assert Path("a").read_bytes() == made and "certify/1/" in Path("a.journal").read_text()
    assert muninn_command(*calibrate, "--seed", "1", "--force")[0] == 2  # another's journal stays
    assert muninn_command(*calibrate, "--force")[0] == 0
    assert Path("a").read_bytes() == made and not Path("a.journal").exists()
    assert (
        muninn_command("new", "--force")[0] == 0
        and "class Network" in Path("my_policy.py").read_text()
    )


def test_the_next_command_that_is_printed_runs(muninn_command: Command) -> None:
    asked = ("calibrate", "my_policy.py:policy", "a.muninn", "--tolerance", "50", "--risk", "0.1")
    code, said = muninn_command(*asked, "--calls", "105")
    judge = ("evaluate", "my_policy.py:policy", "a.muninn", "--calls", "45")
    assert code == 0 and f"Next: muninn {' '.join(judge)} " in said
    assert muninn_command(*judge)[0] == 0
    said = " ".join(said.split())  # the tolerance is in no unit of these plans
    assert "No program deviated by more than" in said and "Is it in the unit of the metric?" in said
    asked = ("calibrate", "my_policy.py:policy", "b.muninn", "--tolerance", "1e-6", "--risk", "0.1")
    code, said = muninn_command(*asked)
    assert code == 0 and "--calls" not in said.partition("Next: ")[2]
    said = " ".join(said.split())
    assert "left the tolerance in" in said and "Do not keep the best of several seeds" in said


def test_a_network_of_another_file_is_named_with_its_line(muninn_command: Command) -> None:
    text = POLICY.replace("class Network", "class Other").replace("Network()", "route.Network()")
    Path("my_policy.py").write_text(text.replace("import torch", "import torch, route", 1))
    Path("route.py").write_text(POLICY)
    code, said = muninn_command("calibrate", "my_policy.py:other_size", "out", *SETTINGS)
    assert code == 2 and "route.py, line 15: RuntimeError: mat1 and mat2 shapes" in said
    assert not Path("out.journal").exists()


def test_a_broken_promise_ends_with_code_1(muninn_command: Command) -> None:
    assert muninn_command("calibrate", "my_policy.py:policy", "a.muninn", *SETTINGS)[0] == 0
    made = muninn.Certificate.load("a.muninn")
    replace(made, tolerance=1e-6).save("false.muninn")
    code, said = muninn_command("evaluate", "my_policy.py:held_out", "false.muninn")
    assert code == 1 and "Not kept: " in said


def test_options_reach_the_verb_and_a_family_is_certified_again(muninn_command: Command) -> None:
    wanted = ("--metric", "executed:4", "--calls", "120", "--seed", "3", "--confidence", "0.9")
    code, _ = muninn_command(
        "calibrate", "my_policy.py:endless", "a", *SETTINGS, *wanted, "--save-family", "f.json"
    )
    made = muninn.Certificate.load("a")
    assert code == 0 and sum(made.counts.values()) == 120
    assert (made.metric, made.seed, made.confidence) == ("executed:4:max_step", 3, 0.9)
    again = ("calibrate", "my_policy.py:policy", "b", *SETTINGS, "--family", "f.json")
    assert muninn_command(*again, "--workers", "2")[0] == 0
    assert muninn.Certificate.load("b").family == made.family
    assert muninn.Certificate.load("b").counts["tune"] == 0


def test_the_objective_reaches_tuning(
    muninn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def spied(*arguments: Any, objective: Any, **rest: Any) -> Family:
        seen.append(objective)
        return tune_family(*arguments, objective=objective, **rest)

    monkeypatch.setattr("muninn.certify.calibrate.tune_family", spied)
    for wanted in ((), ("--objective", "worst")):
        name = wanted[-1] if wanted else "mean"
        assert muninn_command("calibrate", "my_policy.py:policy", name, *SETTINGS, *wanted)[0] == 0
    assert seen == ["evaluations", "worst"]


def test_a_worker_that_is_refused_late_costs_nothing_that_was_measured(
    muninn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> NoReturn:
        raise InputError("a worker process computes otherwise")

    monkeypatch.setattr(Scan, "bound", refused)
    assert muninn_command("calibrate", "my_policy.py:policy", "a", *SETTINGS)[0] == 2
    assert "certify/1/" in Path("a.journal").read_text()


def test_an_interrupted_calibration_goes_on_when_the_command_is_run_again(
    muninn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("calibrate", "my_policy.py:policy", "a", *SETTINGS)
    assert muninn_command(*command[:2], "straight", *SETTINGS)[0] == 0

    def interrupted(*arguments: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr(Scan, "bound", interrupted)
        code, said = muninn_command(*command)
    assert code == 130 and "run the same command to go on (a.journal)" in said
    assert "certify/1/" in Path("a.journal").read_text() and not Path("a").exists()
    code, said = muninn_command(*command, "--seed", "1")
    assert code == 2 and "a.journal belongs to another calibration: other settings" in said
    assert muninn_command(*command)[0] == 0
    assert Path("a").read_bytes() == Path("straight").read_bytes()
    assert not Path("a.journal").exists()


CALIBRATE = ("calibrate", "my_policy.py:policy", "out")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibrate", "nowhere.py:policy", "out", *SETTINGS), "nowhere.py: no such file"),
        (("calibrate", "my_policy.py", "out", *SETTINGS), "write my_policy.py:function"),
        (("evaluate", "a.safetensors", "my_policy.py:policy"),
         "write my_policy.py:function; a certificate comes after it"),
        (("calibrate", "my_policy.py:polcy", "out", *SETTINGS),
         "no function 'polcy'; it has planner, policy, held_out"),
        (("calibrate", "my_policy.py:broken", "out", *SETTINGS),
         "my_policy.py, line 59: RuntimeError: size mismatch"),
        (("calibrate", "my_policy.py:other_size", "out", *SETTINGS),
         "my_policy.py, line 15: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (("calibrate", "my_policy.py:alone", "out", *SETTINGS), "must return (planner, contexts)"),
        (("calibrate", "my_policy.py:unbatched", "out", *SETTINGS),
         "have one dimension; the first counts calls: give context[None]"),
        (("calibrate", "my_policy.py:few", "out", *SETTINGS), "too few for risk 0.1 at confidence"),
        (("calibrate", "my_policy.py:training", "out", *SETTINGS), "call .eval() on it first"),
        (("calibrate", "my_policy.py:endless", "out", *SETTINGS), "say --calls N"),
        ((*CALIBRATE, *SETTINGS, "--calls", "151"), "--calls 151: the function returned 150"),
        ((*CALIBRATE, *SETTINGS, "--metric", "l2"), "unknown metric 'l2'; choose from rms_step"),
        ((*CALIBRATE, "--tolerance", "0"), "tolerance must be a finite number above 0"),
        (CALIBRATE, "--tolerance is missing"),
        ((*CALIBRATE[:2], "my_policy.py", *SETTINGS), "my_policy.py exists; choose another name"),
        ((*CALIBRATE[:2], "no/out", *SETTINGS), "no/out: its folder does not exist; make it"),
        ((*CALIBRATE, *SETTINGS, "--family", "my_policy.py"), "my_policy.py holds no family"),
        (("evaluate", "my_policy.py:policy", "none.muninn"), "no such file; calibrate first"),
        (("report", "my_policy.py"), "holds no evaluation"),
        (("report", "none.json"), "none.json: no such file; `muninn evaluate --out` writes it"),
        ((*CALIBRATE, *SETTINGS, "--family", "none.json"),
         "none.json: no such file; `muninn calibrate --save-family` writes it"),
        ((*CALIBRATE, *SETTINGS, "--objective", "best"),
         "objective is 'evaluations', 'time' or 'worst', got 'best'"),
    ],
)  # fmt: skip
def test_mistakes_of_a_new_user_are_one_line_that_says_what_to_do(
    muninn_command: Command, arguments: tuple[str, ...], message: str
) -> None:
    code, said = muninn_command(*arguments)
    assert code == 2
    assert message in said
    assert len(said.splitlines()) == 1
    assert not Path("out").exists() and not Path("out.journal").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def policy(:\n", "my_policy.py, line 1: SyntaxError"),
        ("import nothing_like_it\n", "my_policy.py, line 1: ModuleNotFoundError"),
        ("x = 1\n", "has no function 'policy'; it has no function"),
    ],
)
def test_a_file_that_does_not_load_is_named_with_its_line(
    muninn_command: Command, text: str, message: str
) -> None:
    Path("my_policy.py").write_text(text)
    code, said = muninn_command(*CALIBRATE, *SETTINGS)
    assert code == 2 and message in said and len(said.splitlines()) == 1


def test_a_file_named_like_a_module_is_refused(muninn_command: Command) -> None:
    Path("json.py").write_text(POLICY)
    code, said = muninn_command("calibrate", "json.py:policy", "out", *SETTINGS)
    assert code == 2 and "json.py has the name of another module, json; rename it" in said


# -- a file to begin with -------------------------------------------------------------------------


def test_the_template_runs_as_it_is(muninn_command: Command) -> None:
    code, said = muninn_command("new", "route.py")
    assert code == 0 and "muninn survey route.py:planner" in said
    assert "muninn calibrate route.py:planner" in Path("route.py").read_text()
    faster = Path("route.py").read_text().replace("cosine(100)", "cosine(12)")
    Path("route.py").write_text(faster)  # so that this takes seconds
    settings = ("--tolerance", "0.5", "--risk", "0.1", "--calls", "150")
    code, said = muninn_command("calibrate", "route.py:planner", "r.muninn", *settings)
    assert code == 0 and "of 12 evaluations a call" in " ".join(said.split()), said
    code, said = muninn_command("evaluate", "route.py:planner", "r.muninn", "--calls", "100")
    assert code == 0 and said.startswith("# Is the promise kept?"), said


@pytest.mark.parametrize(
    ("name", "words"),
    [("my_policy.py", "my_policy.py exists"), ("1st.py", "cannot be imported"),
     ("policy.txt", "cannot be imported"), ("nowhere/p.py", "its folder does not exist")],
)  # fmt: skip
def test_a_template_overwrites_nothing_and_can_be_imported(
    name: str, words: str, muninn_command: Command
) -> None:
    code, said = muninn_command("new", name)
    assert code == 2 and words in " ".join(said.split())


def test_the_guides_file_for_diffusers_returns_a_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("diffusers")
    monkeypatch.setattr(sys, "path", list(sys.path))
    guide = (Path(__file__).parents[2] / "docs/guides/command_line.md").read_text()
    path = tmp_path / "unet.py"
    path.write_text(re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0])
    monkeypatch.setitem(sys.modules, "unet", None)  # what load() puts there goes afterwards
    monkeypatch.delitem(sys.modules, "unet")
    planner, calls, _ = load(f"{path}:planner")
    assert calls == 120 and planner.sample(noise=planner.draw_noise(2)).shape == (2, 2, 32)


def test_the_guides_image_policy_encodes_once_and_is_calibrated(muninn_command: Command) -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/command_line.md").read_text()
    code = re.findall(r"```python\n(.*?)```", guide.partition("## Image policies")[2], re.DOTALL)[0]
    Path("route.py").write_text(code.replace("cosine(100)", "cosine(10)"))  # so that it is quick
    settings = ("--tolerance", "0.5", "--risk", "0.1", "--calls", "120")
    ended, said = muninn_command("calibrate", "route.py:planner", "i.muninn", *settings)
    assert ended == 0, said
    ended, said = muninn_command("evaluate", "route.py:planner", "i.muninn", "--calls", "100")
    assert said.startswith("# Is the promise kept?"), said
    route = sys.modules["route"]
    encoded: list[object] = []
    route.encoder.register_forward_hook(lambda *ran: encoded.append(ran))
    made, features = route.planner()
    assert features.shape == (600, 16) and len(encoded) == 1
    plan, record = muninn.cache(made, "i.muninn")(route.encode(torch.rand(1, 3, 32, 32)))
    assert plan.shape == (1, 8, 2) and record.evaluations[0] <= 10
    assert len(encoded) == 2  # once for this call, however many evaluations it takes


def test_versions_are_said(muninn_command: Command) -> None:
    code, said = muninn_command("--version")
    assert code == 0 and said.startswith("muninn ") and f"torch {torch.__version__}" in said


def test_lerobot_takes_its_options_first_and_hands_the_rest_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[object] = []

    def run(command: str, arguments: list[str], **rest: object) -> None:
        rest.pop("tell")
        given.extend([command, arguments, rest])

    monkeypatch.setattr("muninn.adapters.lerobot.commands.run", run)
    own = ["--policy.path=checkpoint", "--help", "--certificate"]  # that one is LeRobot's, too
    result = CliRunner().invoke(app, ["lerobot", "--on-mismatch", "full", "eval", *own])
    assert result.exit_code == 0, result.output
    assert given == ["eval", own, {"certificate": None, "on_mismatch": "full"}]
    result = CliRunner().invoke(app, ["lerobot", "--help"])
    assert "rollout" in result.output and "muninn.safetensors" in result.output
