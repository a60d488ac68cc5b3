"""A new kind of plan or forecast: its class, and every engine runs it or refuses it by name."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from analytic import mixture_planner
from call_level_cases import certificate_for
from graph_cases import stand_in_for_cuda
from muninn import programs
from muninn.certify.certificate import Certificate
from muninn.engines.choose import runtime_for
from muninn.engines.graphs import RoundGraphRuntime
from muninn.engines.rounds import RoundRuntime
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.sampler import Kind, Sampler
from muninn.programs.forecast import AnyForecast, Forecast, Forecaster
from muninn.programs.plan import Everywhere, Family, Plan, Program, Static
from runtime_cases import contexts, samplers

MODEL = Path(__file__).parents[3] / "models"


@pytest.fixture(autouse=True)
def own_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kinds that a test registers are forgotten after it."""
    for part in (Plan, AnyForecast):
        monkeypatch.setattr(part, "kinds", dict(part.kinds))
    yield


def test_a_process_that_reads_a_certificate_knows_every_kind() -> None:
    """As `muninn inspect` is: it runs nothing, so that no engine has brought a kind along."""
    room = Path(programs.__file__).parent
    source = "".join(file.read_text() for file in room.glob("*.py"))
    kinds = re.findall(r'^class \w+\(AnyProgram, kind="(.+)"\):', source, re.MULTILINE)
    reader = "import muninn.certify.certificate; from muninn.programs.plan import AnyProgram"
    probe = f"{reader}; print(*AnyProgram.kinds, sep='\\n')"
    command = [sys.executable, "-c", probe]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert len(kinds) >= 3 and sorted(shown.splitlines()) == sorted(kinds)


def every_third() -> Any:
    @dataclass(frozen=True)
    class EveryThird(Plan, kind="every-third"):
        fixed: ClassVar[bool] = True
        offset: int = 0

        def next(self, step: int, steps: int, used: int, growth: Any, scale: float) -> int:
            return step + 3 - self.offset

    return EveryThird


def scaled() -> Any:
    class Scaled:
        """The last prediction, times a factor: what no polynomial does."""

        def __init__(self, factor: float, inner: Forecaster) -> None:
            self.factor, self.memory = factor, inner.memory
            self.difference, self.growth = inner.difference, inner.growth

        def extrapolate(self, nodes: tuple[int, ...], until: int) -> Any:
            return ((self.factor,),) * (until - nodes[-1] - 1)

        interpolate = extrapolate

    @dataclass(frozen=True)
    class ScaledHold(AnyForecast, kind="scaled-hold"):
        quantity: Kind
        factor: float = 1.0
        look_back: bool = False

        def bind(self, sampler: Sampler, emphasis: float = 0.0) -> Forecaster:
            return Scaled(self.factor, Forecast(self.quantity, 0).bind(sampler, emphasis))

    return ScaledHold


def test_a_new_kind_runs_on_the_eager_engine_as_what_it_is() -> None:
    sampler = samplers()["ddim"]
    planner = mixture_planner(sampler)
    noise = planner.draw_noise(seeds=[0, 1])
    plan, forecast = every_third()(), scaled()
    last = len(sampler) - 1
    anchors = (*range(0, last, 3), last)
    expected, record = Runtime(planner, Program(Forecast("sample", 0, False), Static(anchors)))(
        contexts(2), noise=noise
    )
    held, own = Runtime(planner, Program(forecast("sample"), plan))(contexts(2), noise=noise)
    assert (own.evaluated == record.evaluated).all()
    torch.testing.assert_close(held, expected)  # a factor of 1 holds, as order 0 does
    shrunk, _ = Runtime(planner, Program(forecast("sample", 0.5), plan))(contexts(2), noise=noise)
    assert float((shrunk - expected).abs().max()) > 1e-2


def test_a_new_kind_survives_a_certificate(tmp_path: Path) -> None:
    planner = mixture_planner(samplers()["ddim"])
    program = Program(scaled()("sample", 0.5), every_third()(1))
    certificate = certificate_for(planner, program)
    certificate.save(tmp_path / "own.muninn.safetensors")
    again = Certificate.load(tmp_path / "own.muninn.safetensors")
    assert again.program == program
    assert again.family.member(1).to_json() == {
        "program": "loop",
        "forecast": {
            "forecast": "scaled-hold",
            "quantity": "sample",
            "factor": 0.5,
            "look_back": False,
        },
        "plan": {"plan": "every-third", "offset": 1},
    }
    assert again.family.to_json() == certificate.family.to_json()
    shared = Family.of(program.forecast, (Everywhere(), program.plan), "own")
    assert shared.to_json() == {
        "name": "own",
        "forecast": again.family.member(1).to_json()["forecast"],
        "plans": [{"plan": "everywhere"}, {"plan": "every-third", "offset": 1}],
    }
    assert Family.from_json(shared.to_json()) == shared


def test_batched_engines_refuse_a_new_kind_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_cuda(monkeypatch)
    planner = mixture_planner(samplers()["ddim"])
    own_plan = Program(Forecast("sample"), every_third()())
    own_forecast = Program(scaled()("sample"), Static((0, 4)))
    for engine in (RoundRuntime, RoundGraphRuntime):
        with pytest.raises(InputError, match=r"batched engine runs .*plans, not .*'every-third'"):
            engine(planner, own_plan)
        with pytest.raises(InputError, match=r"batched .*polynomial .*'scaled-hold'.*eager"):
            engine(planner, own_forecast)


def test_a_graph_of_the_whole_call_runs_any_fixed_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """It captures the eager loop, so it has code for what the eager engine runs."""
    stand_in_for_cuda(monkeypatch)
    planner = mixture_planner(samplers()["ddim"])
    graph = dataclasses.replace(planner, engine="graph")
    program = Program(scaled()("sample", 0.5), every_third()())
    noise = planner.draw_noise(seeds=[0, 1])
    expected, _ = Runtime(planner, program)(contexts(2), noise=noise)
    found, record = runtime_for(graph, program)(contexts(2), noise=noise)
    assert torch.equal(found, expected) and record.fallbacks == 0


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"unknown kind of forecast 'spline'; .*are polynomial"):
        AnyForecast.from_json({"forecast": "spline", "quantity": "sample"})
    with pytest.raises(InputError, match=r"unknown kind of plan None; known are everywhere, sta"):
        Plan.from_json({"anchors": [0, 4]})
    with pytest.raises(InputError, match=r"malformed polynomial forecast .*'knots'"):
        AnyForecast.from_json({"quantity": "sample", "knots": 3})


def test_one_name_is_one_kind() -> None:
    every_third()
    with pytest.raises(InputError, match="there is a plan of kind 'every-third' already"):
        every_third()


def test_committed_families_are_read_and_written_as_they_were() -> None:
    """They name no kind of forecast, because there was only one."""
    data = json.loads((MODEL / "maze2d" / "family.json").read_text())
    family = Family.from_json(data["family"])
    full = family.member(0)
    assert isinstance(full, Program) and isinstance(full.plan, Everywhere)
    assert all(isinstance(program, Program) for program in family.programs)
    assert json.dumps(family.to_json()) == json.dumps(data["family"])
