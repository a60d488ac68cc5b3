"""What a motion prior learns: from which data, with which loss, and that guidance then helps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import motion_cases as cases
from muninn.errors import InputError
from muninn_bench.networks.agent import load_agent
from muninn_bench.networks.half import halve
from muninn_bench.networks.trainer import train
from muninn_bench.planners.edmp import EDMP
from muninn_bench.planners.motion_choice import Chooser, choose
from muninn_bench.planners.motion_cost import between
from muninn_bench.planners.motion_prior import MotionPrior, boxes_of
from muninn_bench.planners.mpd import MPD

LEARNED = MotionPrior(cases.JOINTS, horizon=32, widths=(16, 32, 64), blocks=1, time_width=64)


def test_the_ends_are_told_written_and_not_asked_about() -> None:
    lesson = cases.lesson()
    clean, noise, t = lesson.batch(6, torch.Generator().manual_seed(0))
    seen: dict[str, torch.Tensor] = {}

    def network(noisy: torch.Tensor, t: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        seen.update(noisy=noisy, told=told)
        wrong = torch.zeros_like(noise)
        wrong[:, 0], wrong[:, -1] = 9.0, -9.0
        return noise + wrong

    assert lesson.loss({"plan": network}, clean, noise, t) == 0.0
    assert torch.equal(seen["told"], torch.cat([clean[:, 0], clean[:, -1]], dim=1))
    assert torch.equal(seen["noisy"][:, [0, -1]], clean[:, [0, -1]])
    kept = torch.from_numpy(cases.PRIOR.schedule.alpha_bar)[t].float()[:, None, None]
    hidden = kept.sqrt() * clean + (1.0 - kept).sqrt() * noise
    torch.testing.assert_close(seen["noisy"][:, 1:-1], hidden[:, 1:-1])


def test_motions_are_learned_both_ways() -> None:
    runs = cases.motions(40, 16)
    plans = cases.coordinates().normalise(torch.from_numpy(runs.frames)).view(40, 16, 7)
    clean, _, _ = cases.lesson(runs).batch(64, torch.Generator().manual_seed(0))
    there = (clean[:, None] == plans).all(dim=(2, 3)).any(dim=1)
    back = (clean[:, None] == plans.flip(1)).all(dim=(2, 3)).any(dim=1)
    assert (there | back).all() and 16 < there.sum() < 48


def test_motions_kept_out_of_training_judge_it() -> None:
    runs = cases.motions(100, 16)
    lesson = cases.lesson(runs)
    last = cases.coordinates().normalise(torch.from_numpy(runs.frames)).view(100, 16, 7)[-2:]
    generator = torch.Generator()
    clean = lesson.validation(generator.manual_seed(0))[0]
    assert len(clean) == 2048
    assert (clean[:, None] == last).all(dim=(2, 3)).any(dim=1).all()
    drawn = lesson.batch(500, generator)[0]
    assert not (drawn[:, None] == last).all(dim=(2, 3)).any()


def test_data_of_another_arm_or_horizon_is_refused() -> None:
    with pytest.raises(InputError, match=r"16 frames of 7 joints, the data has \[12\] frames of 7"):
        cases.lesson(cases.motions(10, 12))
    runs = cases.motions(10, 16)
    with pytest.raises(InputError, match="frames of 6"):
        cases.lesson(replace(runs, frames=runs.frames[:, :6]))
    ragged = replace(runs, offsets=np.array([0, 8, 32, *range(48, 161, 16)]))
    with pytest.raises(InputError, match=r"the data has \[8, 16, 24\] frames"):
        cases.lesson(ragged)
    for wrong in (2.1, np.nan):
        frames = runs.frames.copy()
        frames[5, 4] = wrong
        with pytest.raises(InputError, match=r"joint 4 of the data leaves its limits"):
            cases.lesson(replace(runs, frames=frames))


def test_a_prior_is_trained_saved_and_serves_both_planners(tmp_path: Path) -> None:
    path = train(cases.lesson(), cases.settings(tmp_path))
    agent = load_agent(path, "point", "motion-prior", cases.PRIOR.networks())
    for recipe in cases.PLANNERS.values():
        planner = recipe.planner(agent, cases.Point())
        assert torch.isfinite(planner.sample(cases.problems(1))).all()
    with pytest.raises(InputError, match="of motion-prior on point, not of motion-prior on panda"):
        load_agent(path, "panda", "motion-prior", cases.PRIOR.networks())
    with pytest.raises(InputError, match="is of motion-prior on point"):
        other = MotionPrior(cases.JOINTS, horizon=16, widths=(16, 16), blocks=1, time_width=16)
        train(cases.lesson(recipe=other), cases.settings(tmp_path))


def test_the_arm_s_prior_is_a_file_of_less_than_10_mb() -> None:
    numbers = sum(each.numel() for each in MotionPrior().networks().parameters())
    assert numbers > 3e6 and 2 * numbers < 10e6


def test_what_is_told_stays_in_full_precision() -> None:
    network = cases.agent().networks["plan"]
    x, t, told = torch.randn(3, 16, 7), torch.tensor([0, 7, 24]), torch.rand(3, 14)
    whole: Any = network(x, t, told)
    half: Any = halve(network)  # type: ignore[arg-type]
    assert half.time.told[0].weight.dtype == torch.float32
    assert half.project_in.weight.dtype == torch.float16
    found = half(x, t, told)
    assert found.dtype == torch.float32 and not torch.equal(found, whole)
    torch.testing.assert_close(found, whole, atol=2e-2, rtol=0.0)
    assert torch.equal(half.core(half.stem(x, t, told=told), x, t, told=told), found)


@pytest.mark.slow
def test_it_learns_and_guidance_leads_round_the_boxes(tmp_path: Path) -> None:
    lesson = cases.lesson(cases.motions(2000, 32), LEARNED)
    given = cases.settings(
        tmp_path, steps=800, batch=128, learning_rate=2e-3, warmup=50, averaging=0.99, report=400
    )
    agent = load_agent(train(lesson, given), "point", "motion-prior", LEARNED.networks())
    generator = torch.Generator().manual_seed(0)
    assert lesson.loss(agent.networks, *lesson.validation(generator)) < 0.05
    contexts, arm = cases.problems(32, seed=5), cases.Point()
    chooser, free = Chooser(arm, agent.coordinates), {}
    recipes: dict[str, Any] = {
        "unguided": MPD(LEARNED, rows=9, size=0.0),
        "mpd": MPD(LEARNED, rows=9),
        "edmp": EDMP(LEARNED),
    }
    for name, recipe in recipes.items():
        planner = recipe.planner(agent, arm)
        plans = planner.sample(contexts, noise=planner.draw_noise(seeds=range(32)))
        poses = between(agent.coordinates.unnormalise(plans.clamp(-1.0, 1.0)), 4)
        clear = arm(poses, boxes_of(contexts, 7)[:, None, None]).amin(dim=(2, 3))
        free[name] = float((clear >= chooser.margin).float().mean())
        if name != "unguided":
            assert choose(chooser, plans, contexts).free.float().mean() > 0.95
    # Seen: .68 unguided, .91 MPD, .93 EDMP.
    assert free["unguided"] < 0.75
    # Of the plans that collide without guidance, most are led round the boxes with it.
    assert 1.0 - min(free["mpd"], free["edmp"]) < 0.4 * (1.0 - free["unguided"]), free
