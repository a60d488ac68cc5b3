"""An audit measures under the arithmetic of the certificate, wherever and whenever it runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from certify_cases import certificate, contexts, planner
from muninn.certify.cached import CachedPlanner
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import rms_step
from muninn.certify.units import ClosedLoop, Episodes
from muninn.identity.arithmetic import Arithmetic, arithmetic
from muninn.model.planner import Planner
from muninn.monitor.monitor import Monitor
from muninn.monitor.monitored import Monitored
from muninn.monitor.shadow import HeldCall, excess_of

CPU = torch.device("cpu")
HALF = {"autocast": "bfloat16"}

Mode = Callable[[], AbstractContextManager[Any]]


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.fixture(scope="module", params=[None, HALF], ids=["plain", "half"])
def made(request: pytest.FixtureRequest) -> Certificate:
    with half() if request.param else nullcontext():
        issued = certificate()
    assert issued.arithmetic == request.param
    return issued


def audits(issued: Certificate, around: Mode, executor: Executor | None = None) -> list[Any]:
    """Excesses of some calls, made as certified, audited in some surroundings."""
    own = Monitored(
        CachedPlanner(planner(), issued, "full"),
        Monitor(issued, seed=0),
        rate=1.0,
        seed=1,
        executor=executor,
    )
    with half() if issued.arithmetic else nullcontext():
        for seed in range(4):
            _, record = own(contexts(1), generator=torch.Generator().manual_seed(seed))
            assert record.fallbacks == 0
    with around():
        own.close()
    return [audit.excess for audit in own.monitor.audits]


def test_every_surrounding_gives_the_same_audits(made: Certificate) -> None:
    """On the planner's thread inside and outside of autocast, and on a thread of its own."""
    inside, outside = audits(made, half), audits(made, nullcontext)
    with ThreadPoolExecutor(1) as executor:
        elsewhere = audits(made, nullcontext, executor)
    assert len(inside) == 4
    assert inside == outside == elsewhere


@pytest.mark.parametrize("around", [nullcontext, half], ids=["plain", "half"])
@pytest.mark.parametrize("of_certificate", [None, HALF, {"autocast": "float16"}, {"other": True}])
def test_full_compute_runs_under_the_certificates_autocast(
    of_certificate: Arithmetic, around: Mode
) -> None:
    seen = []

    def metric(full: Tensor, cached: Tensor) -> Tensor:
        seen.append(arithmetic(CPU))
        return rms_step(full, cached)

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        seen.append(arithmetic(CPU))
        return 0.5 * x

    own = Planner(denoise, planner().sampler, (4, 2))
    noise = own.draw_noise(seeds=[0])
    call = HeldCall(None, noise, noise.initial)
    with around():
        before, cached = arithmetic(CPU), torch.is_autocast_cache_enabled()
        excess_of([call], own, metric, 1.0, of_certificate)
        assert (arithmetic(CPU), torch.is_autocast_cache_enabled()) == (before, cached)
    name = (of_certificate or {}).get("autocast")
    assert seen == [{"autocast": name} if name else None] * (len(own.sampler) + 1)


def test_a_default_device_matters_neither_to_a_certificate_nor_to_its_audits() -> None:
    """On ``meta`` tensors hold nothing: whatever were made there would be noticed."""
    own, calls, start = planner(), contexts(72), contexts(1)
    expected = certificate(planner=own, calls=calls)
    episodes = Episodes(lambda plan, seed: plan(start), 4)

    with torch.device("meta"):
        issued = certificate(planner=own, calls=calls)
        watched = Monitored(CachedPlanner(own, issued, "full"), Monitor(issued), rate=1.0)
        assert watched(start)[0].device == CPU
        watched.close()
        met = ClosedLoop(own, episodes, rms_step, 0.5, "call", 0, own).for_tuning([0, 1])
    assert (issued.member, issued.realised) == (expected.member, expected.realised)
    (audit,) = watched.monitor.audits
    assert audit.excess is not None
    assert met.contexts([0, 1]).tolist() == [*start.tolist()] * 2


def test_an_audit_keeps_its_casts_to_itself() -> None:
    """All threads share autocast's cache; what one stream cast, another may not read."""
    layer = torch.nn.Linear(2, 2, bias=False)
    enabled = []

    def denoise(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        enabled.append(torch.is_autocast_cache_enabled())
        found: Tensor = layer(x)
        return found

    own = Planner(denoise, planner().sampler, (4, 2))
    noise = own.draw_noise(seeds=[0])
    excess_of([HeldCall(None, noise, noise.initial)], own, rms_step, 1.0, HALF)
    assert enabled == [False] * len(own.sampler)
