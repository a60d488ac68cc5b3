"""A second look runs its first table on all rows and its second on those in doubt, no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from analytic import mixture_denoiser, mixture_planner
from graph_cases import stand_in_for_cuda
from muninn.engines.choose import runtime_for
from muninn.engines.graphs import SecondLookGraphRuntime
from muninn.engines.second_look import SecondLookRuntime
from muninn.engines.tables import TableRuntime
from muninn.errors import DenoiserError, InputError
from muninn.model.planner import Planner
from muninn.programs.caches import forecast
from muninn.programs.plan import Program
from muninn.programs.second_look import TINY, SecondLook, judged_steps
from muninn.programs.spacing import sampler_states
from muninn.programs.table import Table
from runtime_cases import NAMES, SHAPE, contexts, pin_start, samplers

ROWS = 6


def planner_for(name: str = "ddim", **fields: Any) -> Planner:
    return mixture_planner(samplers()[name], SHAPE, condition=pin_start, **fields)


def tables(planner: Planner) -> tuple[Table, Table]:
    own = sampler_states(planner.sampler)
    last = len(own) - 1
    found = ([0, last // 2, last], [0, last // 4, last // 2, last - 1, last])
    first, second = (forecast(planner.sampler, [own[a] for a in at], "sample", 1) for at in found)
    return first, second


def doubts(planner: Planner, noise: Any, rows: int = ROWS) -> np.ndarray:
    """Of the first table, with weights of 1."""
    first = tables(planner)[0]
    _, record = TableRuntime(planner, first)(contexts(rows), noise=noise)
    assert record.charged is not None
    return np.log(record.charged[:, judged_steps(planner.sampler, first)] + TINY).sum(axis=1)


def look_at(planner: Planner, limit: float) -> SecondLook:
    return SecondLook(*tables(planner), weights=(1.0, 1.0), limit=limit)


@pytest.mark.parametrize("name", NAMES)
def test_rows_in_doubt_are_the_second_tables_and_the_others_the_firsts(name: str) -> None:
    planner = planner_for(name)
    noise = planner.draw_noise(seeds=range(ROWS))
    doubt = doubts(planner, noise)
    limit = float(np.sort(doubt)[2:4].mean())
    found, record = runtime_for(planner, look_at(planner, limit))(contexts(ROWS), noise=noise)
    short, long = (TableRuntime(planner, t)(contexts(ROWS), noise=noise) for t in tables(planner))
    for row in range(ROWS):
        one = torch.tensor([row])
        again = doubt[row] > limit
        alone = runtime_for(planner, look_at(planner, limit))(
            contexts(ROWS)[one], noise=noise.select(one)
        )
        expected, told = long if again else short
        torch.testing.assert_close(found[row], expected[row], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(alone[0][0], found[row], atol=1e-6, rtol=1e-6)
        assert record.estimate[row] == pytest.approx(told.estimate[row], abs=1e-6)
        assert record.evaluations[row] == alone[1].evaluations[0] == (8 if again else 3)
        steps = short[1].evaluated[row] | (long[1].evaluated[row] & again)
        assert np.array_equal(record.evaluated[row], steps)
    assert record.fallbacks == 0 and 0 < (record.evaluations == 8).sum() < ROWS


@pytest.mark.parametrize(("limit", "which"), [(1e6, 0), (-1e6, 1)])
def test_all_or_none_in_doubt_is_one_of_its_tables(limit: float, which: int) -> None:
    planner = planner_for()
    noise = planner.draw_noise(seeds=range(ROWS))
    found, record = runtime_for(planner, look_at(planner, limit))(contexts(ROWS), noise=noise)
    expected, _ = TableRuntime(planner, tables(planner)[which])(contexts(ROWS), noise=noise)
    assert torch.equal(found, expected)
    assert record.evaluations.tolist() == [(3, 8)[which]] * ROWS


@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_full_compute_as_the_second_is_full_compute(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = planner_for()
    noise = planner.draw_noise(seeds=range(ROWS))
    full = planner.sample(contexts(ROWS), noise=noise)
    steps, second = len(planner.sampler), Program.full(planner.sampler.kind)
    if engine == "graph":
        stand_in_for_cuda(monkeypatch)
    program = replace(look_at(planner, -1e6), second=second)
    runtime = runtime_for(replace(planner, engine=engine), program)  # type: ignore[arg-type]
    found, record = runtime(contexts(ROWS), noise=noise)
    torch.testing.assert_close(found, full, atol=1e-6, rtol=1e-6)
    assert record.evaluations.tolist() == [3 + steps] * ROWS and record.evaluated.all()
    assert record.estimate.tolist() == [0.0] * ROWS


def poisoned(planner: Planner, evaluation: int, row: int, rows: int = ROWS) -> Planner:
    """NaN in one row, at one evaluation of a call, as they are counted from the first."""
    seen = 0

    def denoise(x: Any, told: Any, context: Any) -> Any:
        nonlocal seen
        seen += 1
        prediction = planner.denoiser(x, told, context)
        if seen == evaluation:
            prediction[(context == contexts(rows)[row]).all(dim=1)] = float("nan")
        return prediction

    return replace(planner, denoiser=denoise)


@pytest.mark.parametrize("evaluation", [2, 5])
def test_a_row_that_fails_in_either_look_gets_full_compute(evaluation: int) -> None:
    planner, bad = planner_for(), 4
    noise = planner.draw_noise(seeds=range(ROWS))
    program = look_at(planner, -1e6)
    clean, _ = runtime_for(planner, program)(contexts(ROWS), noise=noise)
    found, record = runtime_for(poisoned(planner, evaluation, bad), program)(
        contexts(ROWS), noise=noise
    )
    one = torch.tensor([bad])
    assert torch.equal(found[one], planner.sample(contexts(ROWS)[one], noise=noise.select(one)))
    others = [row for row in range(ROWS) if row != bad]
    torch.testing.assert_close(found[others], clean[others], atol=1e-6, rtol=1e-6)
    assert [reason is not None for reason in record.fallback] == [r == bad for r in range(ROWS)]
    assert np.isnan(record.estimate[bad]) and np.isfinite(record.estimate[others]).all()
    broken = poisoned(planner, evaluation, bad)
    with pytest.raises(DenoiserError, match="NaN or Inf"):
        runtime_for(broken, program, on_failure="error")(contexts(ROWS), noise=noise)


def test_a_first_table_with_other_gaps_is_refused() -> None:
    planner = planner_for()
    program = SecondLook(*tables(planner), weights=(1.0, 1.0, 1.0), limit=0.0)
    with pytest.raises(InputError, match=r"weighs 3 gaps .* which has 2"):
        runtime_for(planner, program)


# -- graphs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddim", "ddpm", "euler"])
def test_graphs_give_the_eager_rows_and_are_captured_for_few_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captures = stand_in_for_cuda(monkeypatch)
    planner = planner_for(name)
    noise = planner.draw_noise(seeds=range(ROWS))
    sorted_doubt = np.sort(doubts(planner, noise))
    for again in range(ROWS + 1):
        edges = np.concatenate([[-1e6], sorted_doubt, [1e6]])
        limit = float(edges[ROWS - again : ROWS - again + 2].mean())
        program = look_at(planner, limit)
        expected, reference = SecondLookRuntime(planner, program)(contexts(ROWS), noise=noise)
        graph = runtime_for(replace(planner, engine="graph"), program)
        assert type(graph) is SecondLookGraphRuntime
        captures.clear()
        for _ in (1, 2):
            found, record = graph(contexts(ROWS), noise=noise)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
            assert np.array_equal(record.evaluations, reference.evaluations)
        assert (record.evaluations == 8).sum() == again
        assert len(captures) == 1 + (again > 0)
        graph.forget()
        graph(contexts(ROWS), noise=noise)
        assert len(captures) == 2 * (1 + (again > 0))


def test_numbers_of_rows_are_rounded_up_to_few(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_cuda(monkeypatch)
    planner = planner_for(engine="graph")
    graph = SecondLookGraphRuntime(planner, look_at(planner, 0.0))
    sizes = {len(graph._served(list(range(rows)), 32)) for rows in range(1, 33)}
    assert sizes == {1, 2, 3, 4, 6, 8, 12, 16, 24, 32}
    assert graph._served([3, 9, 11, 30, 31], 32) == [3, 9, 11, 30, 31, 31]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ddim", "ddpm", "euler"])
def test_cuda_graphs_are_the_eager_second_look(name: str) -> None:
    device = torch.device("cuda")
    sampler = samplers()[name]
    denoiser = mixture_denoiser(sampler, SHAPE).to(device)
    planner = Planner(denoiser, sampler, SHAPE, condition=pin_start, device=device)
    for rows, limit in ((1, -1e6), (1, 1e6), (ROWS, -12.0)):
        program = look_at(planner, limit)
        eager = runtime_for(planner, program, on_failure="error")
        graph = runtime_for(replace(planner, engine="graph"), program, on_failure="error")
        for first in (0, 10):
            noise = planner.draw_noise(seeds=range(first, first + rows))
            context = contexts(rows).to(device)
            found, record = graph(context, noise=noise)
            expected, reference = eager(context, noise=noise)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert np.array_equal(record.evaluations, reference.evaluations)
