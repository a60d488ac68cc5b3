"""The frontier study on a closed-form planner: every line is what the library says of its cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import muninn_bench.studies.frontier as study
from analytic import mixture_planner
from muninn.certify.frontier import Frontier
from muninn.certify.journal import Journal
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.certify.risk import choose_member, order_statistic
from muninn.errors import InputError
from muninn.model.solvers import euler
from muninn.parallel import Map
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Everywhere, Family, Static
from muninn.programs.spacing import spread_steps
from muninn.progress import bars
from muninn_bench.report.table import read_csv
from toy_task import Toy

SIZES = study.Sizes(tune=24, certify=400, test=40)  # of 120 only one may violate: a lottery
NAMES = (study.OURS, "fewsteps", "heun")


def run(folder: Path, task: Toy | None = None, **options: object) -> list[dict[str, object]]:
    given = {"sizes": SIZES, "tolerances": (0.1, 0.5), "names": NAMES, **options}
    return study.run_frontier(task or Toy(), "only", folder, progress=False, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("frontier")
    run(made)
    return made


def test_a_line_for_every_method_and_tolerance(folder: Path) -> None:
    lines = read_csv(folder / "cells.csv")
    assert list(lines[0]) == [
        "task", "variant", "sampler", "steps", "tolerance", "unit", "method", "certified",
        "evaluations_mean", "violation_rate", "calls", "certify_calls", "program",
    ]  # fmt: skip
    assert [(line["method"], line["tolerance"]) for line in lines] == [
        (name, tolerance) for name in NAMES for tolerance in (0.1, 0.5)
    ]
    for line in lines:
        assert (line["steps"], line["calls"], line["certify_calls"]) == (24, 40, 400)
        assert 0.0 <= line["violation_rate"] <= 1.0
        assert line["certified"] == (line["evaluations_mean"] < 24)
    spent = {(line["method"], line["tolerance"]): line["evaluations_mean"] for line in lines}
    assert spent[study.OURS, 0.1] <= spent["fewsteps", 0.1]


def test_a_cell_is_what_the_library_certifies_and_what_fresh_calls_show() -> None:
    planner, tolerance = Toy().planner("only"), 0.05
    certify, test = (PairedCalls(planner, None, 120, rms_step, seed) for seed in (1, 2))
    anchors = [spread_steps(24, count) for count in (18, 14, 11, 9, 7, 5)]
    plans = (Everywhere(), *map(Static, anchors))
    family = Family.of(Forecast("sample", 1), plans, "static")
    excess, beyond = (
        np.stack([own.measure_in_batches(p, list(range(120))).deviation for p in family.programs])
        / tolerance
        for own in (certify, test)
    )
    member = choose_member(excess.T, study.RISK, study.CONFIDENCE)
    assert 0 < member < len(family) - 1
    allowed = order_statistic(120, study.RISK, study.CONFIDENCE) - 1
    with bars(False) as bar:
        line = study._line(certify, test, family, tolerance, allowed, bar)
    assert line["certified"] and line["program"] == str(family.member(member))
    assert line["evaluations_mean"] == len(anchors[member - 1])
    assert line["violation_rate"] == np.mean(beyond[member] > 1.0)


def test_started_again_nothing_is_measured_twice_and_a_lost_line_comes_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "cells.csv").read_text()
    lines = before.splitlines(keepends=True)
    (folder / "cells.csv").write_text("".join(lines[:-1]))
    made: list[object] = []
    monkeypatch.setattr(Toy, "begin", lambda *given: pytest.fail("contexts are in their file"))
    real = study._line
    monkeypatch.setattr(study, "_line", lambda *given: made.append(given) or real(*given))
    run(folder)
    assert (folder / "cells.csv").read_text() == before
    assert len(made) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": 1}, "other seed;"),
        ({"sampler": "ddpm"}, "other planner;"),
        ({"sizes": study.Sizes(tune=24, certify=400, test=41)}, "other sizes;"),
    ],
)
def test_lines_of_another_run_are_not_taken_for_this_one(
    folder: Path, options: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        run(folder, **options)


def test_one_search_serves_all_tolerances() -> None:
    """Scores do not depend on a tolerance that is a number; whether it is kept does."""
    paired = PairedCalls(Toy().planner(""), None, 32, rms_step, 5)
    frontier = study.Rescaled(paired, 0.05, Journal(), lambda count: None, Map(), "fewsteps", None)
    for tolerance in (0.02, 0.2, 2.0):
        own = Frontier(paired, tolerance, 0.05, groups={"fewsteps"})
        frontier.limit = tolerance
        for count in (4, 8, 20):
            found, expected = frontier.best(count), own.best(count)
            assert found.program == expected.program
            assert found.excess == pytest.approx(tolerance * expected.excess)
            assert found.kept == expected.kept


def test_heun_gets_one_more_than_an_even_number() -> None:
    planner = mixture_planner(euler(12), (8, 2))
    paired = PairedCalls(planner, None, 16, rms_step, 5)
    frontier = study.Rescaled(paired, 0.05, Journal(), lambda count: None, Map(), "heun", None)
    assert [frontier.best(count).evaluations for count in (4, 5, 2)] == [5, 5, 3]


def test_a_task_that_replans_gives_one_random_call_of_each_episode(tmp_path: Path) -> None:
    task = Toy(3)
    sizes = study.Sizes(tune=4, certify=3, test=2)
    found = study.contexts_of(task, "only", sizes, tmp_path, seed=0)
    stored = safetensors.torch.load_file(tmp_path / "contexts.safetensors")
    assert [len(rows) for rows in found] == [4, 3, 2] and set(stored) == set(study.PARTS)
    for rows, stream in zip(found, study.PARTS.values(), strict=True):
        asked = rows[:, 0] - 1000 * stream
        assert (asked % 100).tolist() == list(range(len(rows)))  # of every episode, in order
        assert set((asked // 100).tolist()) <= {1.0, 2.0, 3.0}
    fewer = study.contexts_of(task, "only", study.Sizes(2, 2, 2), tmp_path, seed=0)
    assert all(torch.equal(few, rows[:2]) for few, rows in zip(fewer, found, strict=True))


def test_contexts_are_driven_on_the_device_and_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, devices = study.Sizes(tune=5, certify=4, test=3), list[str]()
    whole = study.contexts_of(Toy(3), "only", sizes, tmp_path / "whole", seed=0)
    real, begin = study.moved, Toy.begin
    monkeypatch.setattr(study, "LANES", 2)
    monkeypatch.setattr(
        study, "moved", lambda planner, device: devices.append(device) or real(planner, device)
    )
    begun: list[tuple[object, ...]] = []

    def stopped(task: Toy, *given: object) -> object:
        begun.append(given)
        if len(begun) == 8:
            raise KeyboardInterrupt
        return begin(task, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Toy, "begin", stopped)
    with pytest.raises(KeyboardInterrupt):
        study.contexts_of(Toy(3), "only", sizes, tmp_path, 0, "cpu")
    found = study.contexts_of(Toy(3), "only", sizes, tmp_path, 0, "cpu")
    # Seven were kept; of the eighth, the first of a lockstep, nothing was.
    assert len(begun) == 8 + 12 - 7 and devices == ["cpu", "cpu"]
    for one, other in zip(found, whole, strict=True):
        assert torch.equal(one, other)


def test_samplers() -> None:
    task = Toy()
    found = study.planner_of(task, "only", "ddpm", "cpu").sampler
    assert found.stochastic and len(found) == 24 and found.kind == "sample"
    assert study.planner_of(task, "only", None, "cpu").sampler.name == "ddim"
    with pytest.raises(InputError, match="ddpm"):
        study.planner_of(task, "only", "euler", "cpu")
    task.planner = lambda variant: mixture_planner(euler(4), (8, 2))  # type: ignore[method-assign]
    with pytest.raises(InputError, match="no noise schedule"):
        study.planner_of(task, "only", "ddpm", "cpu")


def test_merged_cells_are_compared_with_the_best_alternative(tmp_path: Path) -> None:
    cells = {"a": (5.0, 10.0, 8.0), "b": (6.0, 12.0, 3.0)}
    for name, spent in cells.items():
        common = {"task": name, "variant": "v", "sampler": "ddim", "steps": 20, "tolerance": 0.1}
        lines = [
            {**common, "method": method, "evaluations_mean": own}
            for method, own in zip((study.OURS, "fewsteps", "unipc"), spent, strict=True)
        ]
        study.write_csv(tmp_path / name / "cells.csv", lines)
    said = study.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert len(read_csv(tmp_path / "out" / "cells.csv")) == 6
    assert said[0] == "a v ddim 20 0.1: 5.00 against 8.00 (unipc), ratio 0.625"
    mean = np.sqrt(5 / 8 * 2)
    assert said[-1] == f"2 cells: geometric mean {mean:.3f}, ours needs more in 1"
    with pytest.raises(InputError, match="nothing to write"):
        study.merge([], tmp_path)
