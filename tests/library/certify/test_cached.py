"""Deployment: the certified program runs, its records say what happened, and mismatches do not."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import muninn
import muninn.engines.runtime
from certify_cases import CHANGES, FAMILY, STEPS, Interrupting, certificate, contexts, planner
from muninn.certify.cached import CachedPlanner, cache
from muninn.certify.certificate import Certificate
from muninn.engines.runtime import Runtime
from muninn.errors import CertificateError, DenoiserError, InputError
from muninn.programs.forecast import Forecast
from muninn.programs.plan import Adaptive, Everywhere, Family, Program


@pytest.fixture(scope="module")
def issued() -> Certificate:
    return certificate()


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_certified_program_runs_and_nothing_else(issued: Certificate) -> None:
    fast, own, context = cache(planner(), issued), planner(), contexts(6, seed=4)
    trajectory, record = fast(context, generator=generator())
    expected, plain = Runtime(own, issued.program)(context, generator=generator())
    assert torch.equal(trajectory, expected)
    np.testing.assert_array_equal(record.evaluated, plain.evaluated)
    assert record.evaluations.tolist() == [len(issued.program.plan.anchors)] * 6  # type: ignore
    assert record.fallbacks == 0
    assert (fast.certificate, fast.reason) == (issued, None)


def test_it_takes_what_the_planner_takes(issued: Certificate) -> None:
    fast, own, context = cache(planner(), issued), planner(), contexts(5)
    noise = own.draw_noise(5, generator=generator())
    by_noise, _ = fast(context, noise=noise)
    by_generator, _ = fast(context, generator=generator())
    assert torch.equal(by_noise, by_generator)
    full = own.sample(context, noise=noise)
    assert full.shape == by_noise.shape and not torch.equal(full, by_noise)
    with pytest.raises(InputError, match="noise has 5 rows but the context has 4"):
        fast(contexts(4), noise=noise)


def test_bound_and_rank_come_from_the_certificate_row_by_row(issued: Certificate) -> None:
    _, record = cache(planner(), issued)(contexts(40, seed=6), generator=generator())
    assert record.bound is not None and record.rank is not None
    np.testing.assert_array_equal(record.bound, issued.bound(record.estimate))
    np.testing.assert_array_equal(record.rank, issued.rank(record.estimate))
    order = np.argsort(record.estimate)
    assert (np.diff(record.rank[order]) >= 0).all() and (np.diff(record.bound[order]) >= 0).all()
    assert record.rank.min() < 0.3 and record.rank.max() > 0.7  # spread over the calibration
    assert len(set(record.bound.tolist())) > 1


def test_a_certificate_for_full_compute_bounds_by_nothing() -> None:
    strict = certificate(tolerance=1e-9)
    trajectory, record = cache(planner(), strict)(contexts(3), generator=generator())
    assert torch.equal(trajectory, planner().sample(contexts(3), generator=generator()))
    assert record.bound is not None and record.bound.tolist() == [0.0] * 3
    assert record.evaluations.tolist() == [STEPS] * 3


def test_a_path_is_as_good_as_a_certificate(tmp_path: Path, issued: Certificate) -> None:
    path = issued.save(tmp_path / "c.safetensors")
    for given in (path, str(path), issued):
        trajectory, _ = cache(planner(), given)(contexts(2), generator=generator())
        assert torch.equal(
            trajectory, cache(planner(), issued)(contexts(2), generator=generator())[0]
        )


def test_adaptive_rows_each_get_their_own_record() -> None:
    plans = tuple(Adaptive(threshold, dense=2) for threshold in (0.01, 0.03, 0.08))
    family = Family.of(Forecast("sample", 1), (Everywhere(), *plans), "adaptive")
    fast = cache(planner(), certificate(family=family, calls=contexts(120)))
    noise = planner().draw_noise(12, generator=generator())
    together, record = fast(contexts(12), noise=noise)
    assert len(set(record.evaluations.tolist())) > 1
    for row in range(12):
        part = torch.tensor([row])
        alone, single = fast(contexts(12)[part], noise=noise.select(part))
        assert torch.allclose(alone[0], together[row], atol=1e-5)
        assert single.evaluations[0] == record.evaluations[row]
        assert single.bound[0] == pytest.approx(record.bound[row], rel=1e-3)  # type: ignore


# -- rows that fail --------------------------------------------------------------------------


class Fragile(torch.nn.Module):
    """NaN for rows whose context starts above 5, whenever the state was forecast before."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last: float | None = None
        self.eval()

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        now = float(timestep[0])
        skipped = self.last is not None and self.last - now > 1
        self.last = now
        result: Tensor = self.inner(x, timestep, context)
        bad = (context[:, 0] > 5.0) & skipped
        return torch.where(bad[:, None, None], torch.nan, result)


def fragile() -> tuple[CachedPlanner, Any, Tensor]:
    own = replace(planner(), denoiser=Fragile(planner().denoiser))  # type: ignore[arg-type]
    context = contexts(4)
    context[2, 0] = 6.0
    return cache(own, certificate(planner=own)), own, context


def test_a_row_that_fails_falls_back_to_full_compute_and_is_bounded_by_zero() -> None:
    fast, own, context = fragile()
    noise = own.draw_noise(4, generator=generator())
    trajectory, record = fast(context, noise=noise)
    assert torch.isfinite(trajectory).all()
    assert torch.allclose(trajectory[2], own.sample(context, noise=noise)[2], atol=1e-6)
    assert [reason is None for reason in record.fallback] == [True, True, False, True]
    assert "NaN or Inf at step" in str(record.fallback[2])
    assert record.bound is not None
    assert record.bound[2] == 0.0 and (record.bound[[0, 1, 3]] > 0.0).all()
    assert record.evaluations[2] > STEPS  # what was spent before is counted too


def test_failures_raise_where_the_user_asked_for_it() -> None:
    fast, own, context = fragile()
    strict = cache(own, fast.certificate, on_failure="error")  # type: ignore[arg-type]
    with pytest.raises(DenoiserError, match=r"rows \[2\]\); pass on_failure='full'"):
        strict(context, generator=generator())
    trajectory, _ = strict(context[:2], generator=generator())
    assert torch.isfinite(trajectory).all()


# -- certificates for something else ---------------------------------------------------------


@pytest.mark.parametrize("field", [name for name in CHANGES if name != "shape"])
def test_a_mismatch_is_an_error_or_full_compute_bit_for_bit(
    issued: Certificate, field: str
) -> None:
    other = CHANGES[field](planner())
    with pytest.raises(
        CertificateError, match=r"made for another planner.*Calibrate this"
    ) as error:
        cache(other, issued)
    assert field in str(error.value)
    safe = cache(other, issued, on_mismatch="full")
    assert safe.certificate is None and field in str(safe.reason)
    context = contexts(3)
    for _ in range(2):
        trajectory, record = safe(context, generator=generator())
        assert torch.equal(trajectory, other.sample(context, generator=generator()))
        assert all(field in str(reason) for reason in record.fallback)
        assert record.fallbacks == 3
        assert record.bound is None and record.rank is None
        assert record.evaluations.tolist() == [len(other.sampler)] * 3


def test_another_shape_is_a_mismatch(issued: Certificate) -> None:
    with pytest.raises(CertificateError, match=r"shape: certificate \[8, 2\], planner \[16, 2\]"):
        cache(CHANGES["shape"](planner()), issued)


def test_another_library_generation_is_a_mismatch(issued: Certificate) -> None:
    old = replace(issued, versions={**issued.versions, "torch": "1.13.1"})
    with pytest.raises(CertificateError, match=r"versions.torch: certificate 1.13.1, here"):
        cache(planner(), old)
    assert "versions.torch" in str(cache(planner(), old, on_mismatch="full").reason)


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_a_file_that_cannot_be_used_runs_full_compute_if_asked(
    tmp_path: Path, issued: Certificate, damage: str
) -> None:
    path = tmp_path / "c.safetensors"
    if damage != "missing":
        content = issued.save(path).read_bytes()
        path.write_bytes(content[:100] if damage == "truncated" else b"plain text")
    with pytest.raises(CertificateError):
        cache(planner(), path)
    safe = cache(planner(), path, on_mismatch="full")
    trajectory, record = safe(contexts(2), generator=generator())
    assert torch.equal(trajectory, planner().sample(contexts(2), generator=generator()))
    assert str(path) in str(record.fallback[0])


def test_running_uncached_is_logged_once(
    issued: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    muninn.engines.runtime.log_once.cache_clear()
    other = CHANGES["model.weights"](planner())
    with caplog.at_level(logging.WARNING, logger="muninn"):
        for _ in range(3):
            cache(other, issued, on_mismatch="full")(contexts(2), generator=generator())
    assert [record.message for record in caplog.records if "running full" in record.message] == [
        caplog.records[0].message
    ]


def test_unknown_choices_are_refused(issued: Certificate) -> None:
    with pytest.raises(InputError, match="on_mismatch is 'error' or 'full', got 'ignore'"):
        cache(planner(), issued, on_mismatch="ignore")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="on_failure is 'full' or 'error', got 'retry'"):
        cache(planner(), issued, on_failure="retry")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, 3, b"c.safetensors", {"member": 1}])
@pytest.mark.parametrize("on_mismatch", ["error", "full"])
def test_what_is_no_certificate_is_refused(given: Any, on_mismatch: Any) -> None:
    words = f"a Certificate or the path of its file, got {type(given).__name__}; the order is"
    with pytest.raises(InputError, match=re.escape(words)):
        cache(planner(), given, on_mismatch=on_mismatch)


# -- state -----------------------------------------------------------------------------------


def test_two_threads_plan_as_if_they_were_alone(issued: Certificate) -> None:
    fast = cache(planner(), issued)
    expected = [fast(contexts(3, seed), generator=generator(seed)) for seed in range(8)]
    found: dict[int, tuple[Tensor, Any]] = {}

    def work(seeds: range) -> None:
        for seed in seeds:
            found[seed] = fast(contexts(3, seed), generator=generator(seed))

    threads = [threading.Thread(target=work, args=(range(first, 8, 2),)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, (trajectory, record) in enumerate(expected):
        assert torch.equal(found[seed][0], trajectory)
        np.testing.assert_array_equal(found[seed][1].evaluations, record.evaluations)
        np.testing.assert_array_equal(found[seed][1].estimate, record.estimate)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_ctrl_c_inside_a_call_leaves_the_planner_usable(at: int) -> None:
    denoiser = Interrupting(planner().denoiser)  # type: ignore[arg-type]
    own = replace(planner(), denoiser=denoiser)
    fast = cache(own, certificate(planner=own))
    expected, before = fast(contexts(3), generator=generator())
    denoiser.left = at
    with pytest.raises(KeyboardInterrupt):
        fast(contexts(3), generator=generator())
    trajectory, record = fast(contexts(3), generator=generator())
    assert torch.equal(trajectory, expected)
    np.testing.assert_array_equal(record.evaluations, before.evaluations)


def test_a_planner_is_not_changed_by_caching_it(issued: Certificate) -> None:
    own = planner()
    before = own.identity()
    cache(own, issued)(contexts(2), generator=generator())
    assert own.identity() == before
    assert FAMILY.member(issued.member) == issued.program != Program.full("sample")


def test_swapped_arguments_are_told_the_order_and_no_numbers(issued: Certificate) -> None:
    swapped: Any = muninn
    calls = contexts(60)
    wanted = {
        "muninn.cache(planner, certificate)": lambda: swapped.cache(issued, planner()),
        "muninn.evaluate(planner, certificate, contexts)": lambda: swapped.evaluate(
            issued, planner(), calls
        ),
        "muninn.survey(planner, contexts)": lambda: swapped.survey(calls, planner()),
        "muninn.tune(planner, calls)": lambda: swapped.tune(calls, planner(), tolerance=0.1),
    }
    for order, call in wanted.items():
        with pytest.raises(InputError, match=r"planner is a muninn\.Planner, got") as told:
            call()
        assert str(told.value).endswith(f"the order is {order}")
    for call in (
        lambda: swapped.cache(planner(), calls),
        lambda: swapped.evaluate(planner(), calls, issued),
    ):
        with pytest.raises(InputError, match="path of its file, got Tensor; the order is") as told:
            call()
        assert "tensor(" not in str(told.value)


def test_a_call_without_its_row_is_told_so_where_full_compute_was_wished(
    issued: Certificate,
) -> None:
    def wants_rows(x: Tensor, timestep: Tensor, context: Tensor) -> Tensor:
        return x * context[:, :1, None]

    fast = CachedPlanner(replace(planner(), denoiser=wants_rows), None)
    with pytest.raises(InputError, match=re.escape("give context[None] for one call")):
        fast(contexts(1)[0])
    with pytest.raises(CertificateError, match=re.escape("context[None].to(torch.float32)")):
        cache(planner(), issued)(contexts(1)[0].double())
