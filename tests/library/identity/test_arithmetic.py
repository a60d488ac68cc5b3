"""A certificate holds for the autocast and precisions it was made under; others run full."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import muninn.certify.cached
import muninn.certify.calibrate
import muninn.engines.runtime
from call_level_cases import SHAPE, Network, certificate_for, clamping_loop
from certify_cases import SHORT_FAMILY, STEPS, certificate, contexts, drive, planner
from muninn.adapters.call_level import intercept
from muninn.adapters.styles import diffuser_style
from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.certificate import Certificate
from muninn.certify.units import Episodes, PlanFunction
from muninn.engines.runtime import Runtime
from muninn.errors import CalibrationError, CertificateError, InputError
from muninn.identity.arithmetic import arithmetic
from muninn.loop.request import CertifiedPrograms, Request, accept_all
from muninn.model.planner import Planner
from muninn.model.schedule import Schedule
from muninn.model.solvers import ddim
from muninn.monitor.monitor import Monitor
from muninn.monitor.monitored import Monitored
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Program, Static
from muninn.record import Record
from muninn_bench.studies.coverage.mixture import mixture_planner
from precision_cases import CUDA, default_precisions

HALF = {"autocast": "bfloat16"}
FROM_HALF = "arithmetic: certificate {'autocast': 'bfloat16'}, call plain; call with the"
FROM_PLAIN = "arithmetic: certificate plain, call {'autocast': 'bfloat16'}; call with the"


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def plain_made() -> Certificate:
    return certificate()


@pytest.fixture(scope="module")
def half_made() -> Certificate:
    with half():
        return certificate()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def call(fast: CachedPlanner) -> tuple[Tensor, Record]:
    return fast(contexts(4), generator=generator())


def full() -> Tensor:
    return planner().sample(contexts(4), generator=generator())


def require_full(fast: CachedPlanner, words: str) -> None:
    trajectory, record = call(fast)
    assert torch.equal(trajectory, full())  # of the arithmetic in force
    assert record.evaluations.tolist() == [STEPS] * 4
    assert all(str(reason).startswith(words) for reason in (*record.fallback, fast.reason))
    assert record.bound is None and record.rank is None


def require_cached(fast: CachedPlanner, issued: Certificate) -> None:
    trajectory, record = call(fast)
    expected, _ = Runtime(planner(), issued.program)(contexts(4), generator=generator())
    assert torch.equal(trajectory, expected) and not torch.equal(trajectory, full())
    assert record.fallbacks == 0 and fast.reason is None
    assert record.evaluations.max() < STEPS and record.bound is not None


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    with default_precisions():
        yield


# -- deployment ------------------------------------------------------------------------------


def test_made_plain_it_is_cached_plain_and_full_compute_under_autocast(
    plain_made: Certificate,
) -> None:
    assert plain_made.arithmetic is None
    fast, plainly = cache(planner(), plain_made, on_mismatch="full"), full()
    require_cached(fast, plain_made)
    with half():
        assert not torch.equal(full(), plainly)
        require_full(fast, FROM_PLAIN)
        with torch.autocast("cpu", enabled=False):
            require_cached(fast, plain_made)
    require_cached(fast, plain_made)


def test_made_under_autocast_it_is_cached_there_and_full_compute_elsewhere(
    half_made: Certificate, tmp_path: Path
) -> None:
    path = half_made.save(tmp_path / "c.safetensors")
    assert Certificate.load(path).arithmetic == half_made.arithmetic == HALF
    fast = cache(planner(), path, on_mismatch="full")  # its questions are asked under autocast
    require_full(fast, FROM_HALF)
    with half():
        require_cached(fast, half_made)
    with torch.autocast("cpu", dtype=torch.float16):
        assert "call {'autocast': 'float16'}" in str(fast.reason)


def test_failures_that_raise_are_another_matter(plain_made: Certificate) -> None:
    strict = cache(planner(), plain_made, on_failure="error", on_mismatch="full")
    with half():
        require_full(strict, FROM_PLAIN)


def test_a_call_that_does_not_fit_raises_where_the_user_asked_for_errors(
    plain_made: Certificate,
) -> None:
    fast = cache(planner(), plain_made)
    with half(), pytest.raises(CertificateError, match=re.escape(FROM_PLAIN)):
        call(fast)
    require_cached(fast, plain_made)


def test_it_is_warned_of_once(plain_made: Certificate, caplog: pytest.LogCaptureFixture) -> None:
    muninn.engines.runtime.log_once.cache_clear()
    fast = cache(planner(), plain_made, on_mismatch="full")
    with caplog.at_level(logging.WARNING, logger="muninn"):
        call(fast)
        assert not caplog.messages
        for _ in range(3):
            with half():
                call(fast)
    assert [f"running full compute: {FROM_PLAIN}" in text for text in caplog.messages] == [True]


def test_products_of_the_cpu_are_followed_like_autocast(plain_made: Certificate) -> None:
    fast = cache(planner(), plain_made, on_mismatch="full")
    require_cached(fast, plain_made)
    torch.set_float32_matmul_precision("medium")
    require_full(fast, "arithmetic: certificate plain, call {'mkldnn_matmul': ")
    torch.set_float32_matmul_precision("highest")
    require_cached(fast, plain_made)


def test_tf32_is_followed_like_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        muninn.certify.cached,
        muninn.certify.calibrate,
    ):  # as if the planner were on a GPU
        monkeypatch.setattr(module, "arithmetic", lambda _: arithmetic(CUDA))
    torch.backends.cudnn.allow_tf32 = False
    issued = certificate()
    assert issued.arithmetic == {"cudnn_tf32": False}
    fast = cache(planner(), issued, on_mismatch="full")
    require_cached(fast, issued)
    torch.backends.cudnn.allow_tf32 = True
    require_full(fast, "arithmetic: certificate {'cudnn_tf32': False}, call plain")
    torch.backends.cudnn.allow_tf32 = False
    require_cached(fast, issued)


def test_full_compute_of_another_engine_is_the_eager_one(plain_made: Certificate) -> None:
    compiled = replace(planner(), engine="compile")
    made = replace(plain_made, identity=compiled.identity())
    fast = CachedPlanner(compiled, made, on_mismatch="full")
    with half():  # nothing is compiled
        require_full(fast, FROM_PLAIN)


# -- other ways to a certified program --------------------------------------------------------


def test_every_member_of_the_family_is_full_compute_under_autocast(plain_made: Certificate) -> None:
    programs = CertifiedPrograms(cache(planner(), plain_made, on_mismatch="full"), accept_all)
    job = Request(1, contexts(1), (5,))
    assert plain_made.member > 1 and programs.run(job).record.fallbacks == 0
    with half():
        plans = programs.run(job)
        own = planner().sample(contexts(1), noise=planner().draw_noise(seeds=[5]))
    assert torch.equal(plans.trajectories, own)
    assert str(plans.record.fallback[0]).startswith(FROM_PLAIN)


def test_calls_under_another_arithmetic_are_no_evidence_of_the_cache(
    plain_made: Certificate,
) -> None:
    watched = Monitored(
        cache(planner(), plain_made, on_mismatch="full"), Monitor(plain_made, seed=0), rate=1.0
    )
    with half():
        trajectory, record = watched(contexts(4), generator=generator())
        assert torch.equal(trajectory, full())
    assert str(record.fallback[0]).startswith(FROM_PLAIN)
    watched.audit()
    assert watched.monitor.audits == []
    watched(contexts(4), generator=generator())
    watched.audit()
    assert len(watched.monitor.audits) == 1


def test_an_interceptor_compares_with_the_certificate_at_every_step() -> None:
    network = Network().eval()
    own = Planner(diffuser_style(network), ddim(Schedule.cosine(40), kind="sample"), SHAPE)
    program = Program(Forecast("sample", 1, False), Static((0, 4, 12, 39)))
    issued = replace(certificate_for(own, program), arithmetic=HALF)
    noise = own.draw_noise(1, generator=generator())
    cached = intercept(network, own, issued, read=lambda x, cond, t: (x, t), on_mismatch="full")
    for _ in range(2):  # the first run proves the loop
        clamping_loop(network, own, torch.ones(1), noise)
        assert cached.last is not None and cached.last.evaluations[0] == 40
        assert str(cached.last.fallback[0]).startswith(FROM_HALF)
    cached.remove()
    with half():
        cached = intercept(network, own, issued, read=lambda x, cond, t: (x, t), on_mismatch="full")
        for expected in (40, 4):
            clamping_loop(network, own, torch.ones(1), noise)
            assert cached.last is not None and cached.last.evaluations[0] == expected
        assert cached.last.fallback == (None,)
        with torch.no_grad():
            x, steps = noise.initial, own.sampler.steps
            network(x, torch.ones(1), torch.tensor([int(steps[0].timestep)]))
            with torch.autocast("cpu", enabled=False):
                network(x, torch.ones(1), torch.tensor([int(steps[1].timestep)]))
    assert str(cached.last.fallback[0]).startswith(FROM_HALF)
    assert cached.last.evaluations[0] == 2


# -- calibration -----------------------------------------------------------------------------


def half_drive(plan: PlanFunction, seed: int) -> None:
    with half():
        drive(plan, seed)


@pytest.mark.parametrize("family", [SHORT_FAMILY, None])
def test_episodes_plan_in_the_arithmetic_that_is_recorded(family: Any) -> None:
    own = mixture_planner("ddim", steps=6)
    arguments = {"planner": own, "calls": Episodes(half_drive, 60), "risk": 0.2, "tolerance": 0.3}
    with pytest.raises(InputError, match=r"'bfloat16'}, calibration began with plain; put auto"):
        certificate(**arguments, family=family)
    with half():
        assert certificate(**arguments, family=family).arithmetic == HALF


def test_a_calibration_is_not_resumed_in_another_arithmetic(tmp_path: Path) -> None:
    certificate(resume=tmp_path / "journal")
    with half(), pytest.raises(CalibrationError, match="belongs to another calibration"):
        certificate(resume=tmp_path / "journal")


# -- files -----------------------------------------------------------------------------------


def test_a_plain_certificate_does_not_mention_it(
    tmp_path: Path, plain_made: Certificate, half_made: Certificate
) -> None:
    plainly = plain_made.save(tmp_path / "plain").read_bytes()
    assert b"arithmetic" not in plainly
    named = half_made.save(tmp_path / "half").read_bytes()
    assert named.count(b"arithmetic") == 1
    (tmp_path / "half").write_bytes(named.replace(b"bfloat16", b"afloat16"))
    with pytest.raises(CertificateError, match="field 'checksum'"):
        Certificate.load(tmp_path / "half")
