"""Graphs give the eager reference's trajectory and record: orders, quantities, dtypes, batches.

On the CPU graphs are stood in for, which tests the rounds and these bounds; on a CUDA device they
are real. The bounds are those of docs/engines.md.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import muninn
import muninn.engines.graphs
from analytic import mixture_denoiser
from graph_cases import stand_in_for_cuda
from muninn.certify.metrics import rms_step
from muninn.engines.choose import runtime_for
from muninn.engines.layout import channels_last
from muninn.engines.runtime import Runtime
from muninn.model.planner import Planner
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family, Program, Static
from muninn.record import Record
from runtime_cases import ANCHORS, SHAPE, contexts, gate, pin_start, programs, samplers

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

BOUNDS = {
    "float32": ((2e-5, 1e-6), (2e-5, 1e-6), (1e-4, 4e-6), (1e-3, 2e-5)),
    "float16": ((5e-4, 1e-5), (5e-4, 1e-5), (5e-4, 1e-5), (5e-3, 1e-4)),
    "bfloat16 autocast": ((4e-3, 1e-4), (4e-3, 1e-4), (4e-3, 1e-4), (2e-2, 1e-3)),
}
"""Largest difference of trajectories of size one, and of charges and estimates, by order.

A round serves other numbers of rows than the reference does, so a sum rounds differently, and in
half precision a prediction of the network may be another half: 2 ** -11 or 2 ** -8. Cubic forecasts
over five steps magnify that; alone and in a batch, the reference differs from itself as much.
Largest seen, on a CPU and an H200: 3.0e-6, 1.4e-5 (order 2) and 5.5e-4 (order 3) in float32, and
1.2e-4, 1.2e-4 and 5.9e-3 at most in half precision.
"""

SHARE_OF_TOLERANCE = 0.02
"""Largest difference of engines in float32, in parts of the tolerance that a program could have.

A certificate promises a tolerance to nine calls of ten; no smaller one than the deviation from full
compute that nine rows of ten of this program keep. Largest seen on a CPU: 0.003.
"""

HALF_SHARE = 0.85
"""Rows of an adaptive plan in half precision that must agree.

A decision that is close to its threshold may fall the other way, and the row is another one from
there on. Seen on a CPU and an H200: none did.
"""


def planner_of(precision: str, device: torch.device) -> Planner:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(9, 64), nn.Mish(), nn.Linear(64, 8)).eval().to(device)
    if precision == "float16":
        layers.half()
    dtype = layers[0].weight.dtype

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        told = torch.cat([x.flatten(1), timestep[:, None] / 100.0], dim=1).to(dtype)
        found: Tensor = layers(told).view_as(x)
        return found

    return Planner(denoise, samplers()["clipped ddim"], SHAPE, condition=pin_start, device=device)


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    wanted = "autocast" in precision
    return torch.autocast(device.type, torch.bfloat16) if wanted else nullcontext()


def agreeing(
    found: Tensor,
    record: Record,
    expected: Tensor,
    reference: Record,
    precision: str = "float32",
    order: int = 1,
) -> list[bool]:
    """Whether each row took the same decisions, and has the same numbers within the bounds."""
    state, charge = BOUNDS[precision][order]
    assert record.charged is not None
    assert reference.charged is not None
    same = (record.evaluated == reference.evaluated).all(axis=1)
    same &= record.evaluations == reference.evaluations
    same &= (found - expected).float().abs().flatten(1).amax(dim=1).cpu().numpy() <= state
    same &= np.abs(record.charged - reference.charged).max(axis=1) <= charge
    same &= np.abs(record.estimate - reference.estimate) <= charge
    assert record.fallback == reference.fallback == (None,) * len(found)
    agreed: list[bool] = same.tolist()
    return agreed


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("precision", list(BOUNDS))
@pytest.mark.parametrize("quantity", ["sample", "epsilon", "v"])
@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_every_field_of_the_record(
    order: int, quantity: Any, precision: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device(where)
    if device == CPU:
        stand_in_for_cuda(monkeypatch)
    # Fewer captures than usual: one row, some of them, and all.
    monkeypatch.setattr(
        muninn.engines.graphs, "_sizes", lambda count: [count // 3, count][count < 3 :]
    )
    planner = planner_of(precision, device)
    plans = (Static(ANCHORS), Adaptive(0.02, dense=order + 2, longest=5))
    for plan in plans:
        program = Program(Forecast(quantity, order), plan)
        graph = runtime_for(replace(planner, engine="graph"), program, on_failure="error")
        eager, agreed = Runtime(planner, program), []
        for rows in (1, 17):
            noise, context = planner.draw_noise(seeds=range(rows)), contexts(rows).to(device)
            with autocast(precision, device):
                found, record = graph(context, noise=noise)
                expected, reference = eager(context, noise=noise)
                full = planner.sample(context, noise=noise)
            agreed += agreeing(found, record, expected, reference, precision, order)
        if precision == "float32":
            tolerance = float(rms_step(full, expected).quantile(0.9))
            assert float(rms_step(expected, found).max()) <= SHARE_OF_TOLERANCE * tolerance
        exact = plan.fixed or precision == "float32"
        assert sum(agreed) >= (1.0 if exact else HALF_SHARE) * len(agreed), agreed


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_bound_and_rank(kind: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a certificate says about a call is a function of its estimate, on every engine."""
    device = torch.device(where)
    if device == CPU:
        stand_in_for_cuda(monkeypatch)
    sampler = samplers()["ddim"]
    denoiser = mixture_denoiser(sampler, SHAPE).to(device)
    eager = Planner(denoiser, sampler, SHAPE, condition=pin_start, device=device)
    graph = replace(eager, engine="graph")
    program = programs(sampler)[kind]
    family = Family.of(program.forecast, (Everywhere(), program.plan), "one plan")
    certificate = muninn.calibrate(
        eager, contexts(120).to(device), tolerance=1.0, family=family, progress=False
    )
    promised = replace(certificate, identity=graph.identity())
    assert certificate.program == program
    noise, context = eager.draw_noise(seeds=range(1000, 1006)), contexts(6).to(device)
    expected, reference = muninn.cache(eager, certificate)(context, noise=noise)
    found, record = muninn.cache(graph, promised)(context, noise=noise)
    assert (reference.estimate > 0.0).all()
    assert all(agreeing(found, record, expected, reference))
    assert record.bound is not None
    assert record.rank is not None
    assert np.array_equal(record.bound, certificate.bound(record.estimate))
    assert np.array_equal(record.rank, certificate.rank(record.estimate))
    assert record.bound == pytest.approx(reference.bound, abs=1e-6)
    assert record.rank == pytest.approx(reference.rank, abs=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["static", "adaptive"])
def test_channels_last_in_compiled_graphs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # keeps 10 bits of 23
    device = torch.device("cuda")
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv1d(2, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Mish(), nn.Conv1d(16, 2, 1)
    )
    layers.eval().to(device)

    def planner(network: nn.Module, engine: Any) -> Planner:
        def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
            found: Tensor = network(x.transpose(1, 2)).transpose(1, 2)
            return found

        return Planner(denoise, samplers()["ddim"], SHAPE, device=device, engine=engine)

    plain, changed = planner(layers, "eager"), planner(channels_last(layers), "compile")
    program = gate(plain.sampler) if kind == "adaptive" else programs(plain.sampler)[kind]
    runtime = runtime_for(changed, program, on_failure="error")
    for seed in (0, 1):
        noise = plain.draw_noise(seeds=[seed])
        expected, reference = Runtime(plain, program)(noise=noise)
        assert all(agreeing(*runtime(noise=noise), expected, reference))
