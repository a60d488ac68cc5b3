"""The latency benchmark on tiny networks: methods, and what is measured of them; never times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import muninn.engines.graphs
import muninn_bench.studies.latency.ways
from analytic import mixture_planner
from graph_cases import Replayed
from latency_cases import DEVICE, TINY, row, tiny
from muninn.certify.frontier import Frontier
from muninn.certify.metrics import rms_step
from muninn.certify.paired import PairedCalls
from muninn.engines.choose import runtime_for
from muninn.engines.runtime import Runtime
from muninn.errors import InputError
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.programs.table import Table
from muninn.progress import bars
from muninn_bench.measure import machine
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.networks.unet import TemporalUnet, UnetConfig
from muninn_bench.studies.latency.measure import (
    add_ratios,
    measure_batch,
    measure_growth,
    measure_variant,
    prepare,
)
from muninn_bench.studies.latency.programs import (
    OWN_TUNING_CALLS,
    SHARE,
    TunedPrograms,
    bisect,
)
from muninn_bench.studies.latency.variants import CPU, CUDA, SEED, WIDE, sizes, variant_names
from muninn_bench.studies.latency.ways import (
    EVERY,
    Way,
    by_hand,
    ways_for,
)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    made: list[Replayed] = []

    def capture(
        function: Callable[[], Any], device: torch.device, pool: Any = None
    ) -> tuple[Replayed, Any]:
        made.append(Replayed(function))
        return made[-1], made[-1].result

    for module in (muninn.engines.graphs, muninn_bench.studies.latency.ways):
        monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(muninn.engines.graphs, "require_cuda", lambda planner: None)
    return made


# -- subjects, programs, methods ---------------------------------------------------------------


def test_the_wide_unets_have_63_million_parameters() -> None:
    for horizon, dim in ((256, 6), (16, 10)):
        config = UnetConfig(channels=dim, widths=WIDE, heads=8)
        with torch.device("meta"):
            network = TemporalUnet(config, Schedule.cosine(100), horizon)
        count = sum(parameter.numel() for parameter in network.parameters())
        assert count == pytest.approx(63e6, rel=0.005)


def test_random_networks_have_no_dead_branches_and_calls_are_reproducible() -> None:
    subject = tiny()
    assert all(parameter.any() for parameter in subject.network.parameters() if parameter.ndim > 1)
    context, noise = subject.call(1)
    again, same = tiny().batch(2)
    assert torch.equal(again[1:], context)
    assert torch.equal(same.initial[1:], noise.initial)


def test_bisection_finds_the_largest_threshold_that_still_asks_for_the_evaluations() -> None:
    def evaluations(threshold: float) -> float:
        return 20.0 if threshold <= 0.37 else 19.0

    found = bisect(evaluations, 20.0, trials=40)
    assert evaluations(found) == 20.0
    assert found == pytest.approx(0.37, rel=1e-6)
    tried: list[float] = []
    bisect(lambda threshold: tried.append(threshold) or 20.4, 20.0, slack=0.5)
    assert len(tried) == 1  # near enough: stop


def test_programs_spend_what_they_are_given() -> None:
    programs = TunedPrograms(tiny(), 5)
    context, noise = programs.variant.batch(4)
    for program in (programs.static, programs.gated):
        runtime = runtime_for(programs.planner, program, on_failure="error")
        _, record = runtime(context, noise=noise)
        assert record.evaluations.tolist() == [5] * 4
    assert programs.capped(2.0).plan.cap == 10  # type: ignore[attr-defined]
    assert programs.gated_own.plan.cap == 8  # type: ignore[attr-defined]
    context, noise = programs.variant.batch(OWN_TUNING_CALLS)
    _, record = Runtime(programs.planner, programs.gated_own)(context, noise=noise)
    assert 5.0 <= record.evaluations.mean() <= 6.5
    _, record = programs.paper(context, noise=noise)
    assert 5 <= record.evaluations.mean() <= 16


def test_methods_on_a_cpu_and_in_graphs(captures: list[Replayed]) -> None:
    programs = TunedPrograms(replace(tiny(), trained=True), 5)
    cpu = ways_for(programs, graphed=False, compiled=True)
    cuda = ways_for(programs, graphed=True, compiled=True)
    for methods in (cpu, cuda):
        assert methods[0].name == "full-eager"
        assert len({method.name for method in methods}) == len(methods)
    assert {method.name for method in [*cpu, *cuda]} == set(EVERY)
    assert not any("graph" in method.engine for method in cpu)
    untrained = ways_for(TunedPrograms(tiny(), 5), graphed=True, compiled=True)
    assert {m.name for m in cuda} - {m.name for m in untrained} == {
        "gated-own-eager",
        "gated-own-graph",
    }


def test_a_method_in_a_graph_gives_the_plans_of_the_eager_one(captures: list[Replayed]) -> None:
    programs = TunedPrograms(replace(tiny(), trained=True), 5)
    graphed = {m.name: m for m in ways_for(programs, graphed=True, compiled=False)}
    eager = {m.name: m for m in ways_for(programs, graphed=False, compiled=False)}
    for name, own in graphed.items():
        if own.engine != "graph":
            continue
        run = own.make()
        reference = eager[name.replace("-graph", "-eager")].make()
        for call in (0, 1):  # the second replays what the first captured
            found, record = run(*programs.variant.call(call))
            expected, twin = reference(*programs.variant.call(call))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0.0)
            assert record.evaluations.tolist() == twin.evaluations.tolist()
    assert captures


@pytest.mark.slow
def test_a_compiled_method_gives_the_plans_of_the_eager_one() -> None:
    """Alternatives too: they run on every engine, and in the layout, that the static plan has."""
    programs = TunedPrograms(tiny(), 5)
    methods = {m.name: m for m in ways_for(programs, graphed=False, compiled=True)}
    for way in ("full", "few", "dpm", "hand", "static"):
        expected, _ = methods[f"{way}-eager"].make()(*programs.variant.call(0))
        for engine in ("compiled", "last"):
            found, record = methods[f"{way}-{engine}"].make()(*programs.variant.call(0))
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0.0)
            assert record.evaluations.tolist() == [16 if way == "full" else 5]


def test_alternatives_have_every_engine_of_the_static_plan(captures: list[Replayed]) -> None:
    for graphed in (False, True):
        methods = ways_for(TunedPrograms(tiny(), 5), graphed=graphed, compiled=True)
        engines: dict[str, set[str]] = {}
        for method in methods:
            way, _, engine = method.name.partition("-")
            engines.setdefault(way, set()).add(engine)
        offered = engines["static"] - ({"eager"} if graphed else set())  # a graph covers it
        assert engines["few"] == engines["dpm"] == engines["hand"] == offered
        assert {"last"} < offered


@pytest.mark.parametrize("kind", ["sample", "epsilon"])
def test_by_hand_is_the_table_of_dpm_solver_of_second_order(kind: Any) -> None:
    sampler = ddim(Schedule.cosine(40), kind=kind, clip=1.2)
    planner = replace(mixture_planner(sampler, (8, 2)), condition=lambda x, _: x.clamp_(max=3.0))
    noise = planner.draw_noise(seeds=range(3))
    for count in (2, 3, 6):
        table = Alternative.untuned("dpmsolver", planner, count).table
        assert table.method == "DPM-Solver++ 2M"
        found = by_hand(planner, table)(None, noise=noise)
        expected, _ = runtime_for(planner, table)(noise=noise)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_trained_network_gets_the_best_table_of_the_frontier() -> None:
    subject = tiny()
    contexts = subject.batch(12)[0]
    programs = TunedPrograms(replace(subject, trained=True, tuning=contexts), 4, tuning=10)
    paired = PairedCalls(programs.planner, contexts[:10], 10, rms_step, SEED + 1)
    best = Frontier(paired, 1.0, SHARE).best(4)
    assert programs.static == best.program and isinstance(programs.static, Table)
    few = programs.alternative("fewsteps")
    assert few.calls == 10 and best.excess <= few.excess


def test_full_and_static_plans_are_one_graph_each(captures: list[Replayed]) -> None:
    methods = {m.name: m for m in ways_for(TunedPrograms(tiny(), 5), graphed=True, compiled=False)}
    for place, name in enumerate(("full-graph", "static-graph")):
        run = methods[name].make()
        for call in (0, 1):
            run(*tiny().call(call))
        assert len(captures) == place + 1


# -- measuring ---------------------------------------------------------------------------------


def test_a_subject_is_measured_with_every_method(captures: list[Replayed]) -> None:
    subject = tiny()
    methods = ways_for(TunedPrograms(subject, 5), graphed=True, compiled=False)
    with bars(False) as task:
        rows, calls = measure_variant(subject, methods, TINY, task)
    assert [row["method"] for row in rows] == [method.name for method in methods]
    assert all(row["note"] == "" and row["calls"] == TINY.timed for row in rows)
    by_name = {row["method"]: row for row in rows}
    full, static = by_name["full-eager"], by_name["static-graph"]
    assert full["evaluations"] == 16.0
    assert full["deviation_p95"] == 0.0 == by_name["full-graph"]["deviation_p95"]
    assert full["warm_up"] == TINY.warm_up + TINY.calls
    assert static["warm_up"] == TINY.warm_up
    assert static["evaluations"] == by_name["gated-graph"]["evaluations"] == 5.0
    assert static["deviation_p95"] > 0.0
    assert by_name["network-graph"]["deviation_p95"] is None  # no plan
    assert static["memory_mb"] is None  # a CPU says nothing about it
    own = [call for call in calls if call["method"] == "static-graph"]
    assert [call["call"] for call in own] == [0, 1, 0, 1]
    assert static["p50_ms"] == pytest.approx(np.median([call["ms"] for call in own]))
    assert static["deviation_p95"] == pytest.approx(
        np.quantile([call["deviation"] for call in own], 0.95)
    )


def test_graphs_are_warmed_up_in_every_round_and_slow_eager_calls_in_some(
    captures: list[Replayed],
) -> None:
    settings = replace(TINY, warm_up=8, turn_seconds=1e-9, longest_stride=4)  # all calls are long
    subject = tiny()
    methods = ways_for(TunedPrograms(subject, 5), graphed=True, compiled=False)
    methods = [m for m in methods if m.name in ("full-eager", "static-eager", "static-graph")]
    with bars(False) as task:
        full, eager, graph = measure_variant(subject, methods, settings, task)[0]
    assert (full["warm_up"], eager["warm_up"], graph["warm_up"]) == (2 + settings.calls, 2, 8)
    assert (full["calls"], eager["calls"], graph["calls"]) == (1, 1, 1)  # of four timed rounds


def test_ratios_by_hand() -> None:
    rows = [row("full-eager", 600.0), row("full-graph", 180.0), row("static-graph", 40.0)]
    rows = add_ratios([*rows, row("dpm-graph", None)])
    assert [found["over_eager"] for found in rows] == [1.0, pytest.approx(600 / 180), 15.0, None]
    assert [found["over_graph"] for found in rows] == [pytest.approx(0.3), 1.0, 4.5, None]
    assert add_ratios([row("full-eager", 5.0)])[0]["over_graph"] is None


def test_a_method_that_cannot_run_is_noted_and_the_others_are_measured() -> None:
    def refuse() -> Any:
        raise RuntimeError("no compiler was found\nand much more")

    subject = tiny()
    methods = ways_for(TunedPrograms(subject, 5), graphed=False, compiled=False)[:1]
    methods.append(Way("full-compiled", "Full", "compiled", refuse))
    with bars(False) as task:
        rows, calls = measure_variant(subject, methods, TINY, task)
    assert rows[1]["note"] == "skipped (RuntimeError: no compiler was found)"
    assert rows[1]["p50_ms"] is None
    assert {call["method"] for call in calls} == {"full-eager"}
    assert prepare(methods[1], subject.call(0), DEVICE).run is None


@pytest.mark.parametrize("graphed", [False, True])
def test_batches_and_growth(captures: list[Replayed], graphed: bool) -> None:
    with bars(False) as task:
        batches = measure_batch(TunedPrograms(tiny(), 5), 3, TINY, task, graphed=graphed)
        cells = measure_growth(TINY, DEVICE, task, graphed=graphed)
    fulls = [found["p50_ms"] for found in batches if found["method"] == "full"]
    assert len(fulls) == 1 + graphed
    for found in batches:
        assert found["plans_per_second"] == pytest.approx(1e3 * 3 / found["p50_ms"])
        assert found["over_full"] == pytest.approx(min(fulls) / found["p50_ms"])
        assert found["ideal"] == pytest.approx(16 / found["evaluations"])
    assert [found["evaluations"] for found in batches if found["method"] == "static"] == [5.0]
    assert [(cell["axis"], cell["value"], cell["evaluations"]) for cell in cells] == [
        ("base", 0, 2),
        ("steps", 20, 4),
    ]
    assert bool(captures) == graphed


def test_what_cannot_be_captured_is_not_timed_as_full_compute(
    captures: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("not permitted")

    for module in (muninn.engines.graphs, muninn_bench.studies.latency.ways):
        monkeypatch.setattr(module, "capture", refuse)
    subject = tiny()
    methods = ways_for(TunedPrograms(subject, 5), graphed=True, compiled=False)
    graphed = [method for method in methods if method.engine == "graph"]
    assert graphed
    for method in graphed:
        assert "not permitted" in prepare(method, subject.call(0), DEVICE).note


def test_devices_and_settings() -> None:
    assert machine.find_device("cpu") == DEVICE
    with pytest.raises(InputError, match="'cpu' or 'cuda'"):
        machine.find_device("tpu")
    assert "thread" in machine.hardware(DEVICE)
    assert "PyTorch" in machine.hardware(DEVICE)
    assert CPU.stride(100.0) == 1
    assert (CUDA.warm_up, CUDA.evaluations, CUDA.batches) == (50, 20, (16, 256, 1024))
    assert not CUDA.lighter().compile
    assert CUDA.lighter().warm_up == 50
    assert min(CUDA.batch_timed, CPU.batch_timed) >= 10
    assert sizes("cuda", smoke=True).timed < sizes("cpu", smoke=False).timed
    assert variant_names("cpu", None) == ("maze2d-fp32", "transformer-fp32")
    assert variant_names("cuda", ("maze2d-fp16", "unet63m-fp16"))[0] == "unet63m-fp16"
    with pytest.raises(InputError, match="choose from maze2d-fp32"):
        variant_names("cpu", ("unet63m-fp16",))
