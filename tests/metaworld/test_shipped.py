"""The policies and certificates that come with the project belong together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from muninn.adapters import disable_cache, enable_cache
from muninn.bench.metaworld.subjects import VARIANTS, Subject
from muninn.cached import cache
from muninn.certificate import Certificate

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

ROOT = Path(__file__).parents[2]
EVALUATIONS = {"ddpm100": 18, "ddim100": 12, "ddim16": 5, "flow10": 4}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_shipped_certificate_holds_for_the_shipped_policy(name: str) -> None:
    subject = Subject.load(ROOT / "models/metaworld", name)
    certificate = Certificate.load(ROOT / f"results/metaworld/{name}.muninn.safetensors")
    context = torch.zeros(1, 20)
    fast = cache(subject.planner, certificate)
    found, record = fast(context, noise=subject.planner.draw_noise(seeds=[3]))
    assert record.fallbacks == 0
    assert 2 <= record.evaluations[0] <= 1.5 * EVALUATIONS[name] < len(subject.planner.sampler)
    full = subject.planner.sample(context, noise=subject.planner.draw_noise(seeds=[3]))
    assert np.isfinite(found.numpy()).all() and found.shape == full.shape


def test_the_shipped_policy_is_faster_after_one_line_and_itself_again_after_another() -> None:
    policy = Subject.load(ROOT / "models/metaworld", "ddim16").policy
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
