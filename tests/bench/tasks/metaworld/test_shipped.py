"""The policies and certificates that come with the project belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy.stats import binom

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")
pytest.importorskip("metaworld")

from muninn.adapters import disable_cache, enable_cache
from muninn.certify.cached import cache
from muninn.certify.certificate import Certificate
from muninn.certify.metrics import measure
from muninn.certify.paired import PairedCalls
from muninn_bench.measure.rollout import random_contexts, roll_out
from muninn_bench.task import Stream
from muninn_bench.tasks.metaworld.task import TASK

ROOT = Path(__file__).parents[4]
EPISODES = 24


@pytest.mark.parametrize("name", TASK.variants)
def test_a_shipped_certificate_holds_for_the_shipped_policy(name: str) -> None:
    """In fresh episodes, driven by the cached policy, deviations are as large as certified."""
    planner = TASK.planner(name)
    certificate = Certificate.load(ROOT / f"results/metaworld/{name}.muninn.safetensors")
    (found,) = (row for row in certificate.realised if row["member"] == certificate.member)
    fast = cache(planner, certificate)
    drives = roll_out(
        TASK, name, lambda c, noise: fast(c, noise=noise), Stream.TEST, EPISODES, seed=901
    )
    contexts = random_contexts(drives, 901)
    calls = list(range(EPISODES))
    paired = PairedCalls(planner, contexts, EPISODES, TASK.metric(name), 902)
    plans, record = fast(paired.contexts(calls), noise=paired.noise(calls))
    deviation = measure(paired.metric, paired.full(calls), plans)
    assert record.fallbacks == 0
    assert record.evaluations.mean() == pytest.approx(found["evaluations_mean"], rel=0.1)
    assert record.evaluations.max() <= 1.5 * found["evaluations_max"]
    # The promise, and the 95th percentile of the calls it was made from; each fails by chance in
    # fewer than one of a thousand draws of calls.
    assert certificate.tolerance is not None
    assert (deviation > certificate.tolerance).sum() <= binom.ppf(0.999, EPISODES, certificate.risk)
    assert (deviation > found["deviation_p95"]).sum() <= binom.ppf(0.999, EPISODES, 0.05)
    # It is the cached program that was measured, not full compute.
    assert deviation.min() > 0.0 and deviation.max() > 0.2 * found["deviation_p95"]


def test_the_shipped_policy_is_faster_after_one_line_and_itself_again_after_another() -> None:
    policy = TASK._load("ddim16")[0]
    context = torch.zeros(1, 20)

    def plan() -> torch.Tensor:
        torch.manual_seed(5)
        with torch.no_grad():
            found: torch.Tensor = policy.diffusion.conditional_sample(1, global_cond=context)
        return found

    before = plan()
    enable_cache(policy, ROOT / "results/metaworld/ddim16.muninn.safetensors")
    plan()
    assert policy.muninn.last.evaluations.tolist() == [5]
    disable_cache(policy)
    assert torch.equal(plan(), before)
