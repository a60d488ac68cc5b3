"""Lessons of planners that act: what they learn from, that they learn, resume and refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import control_cases as cases
from muninn.errors import InputError
from muninn_bench.networks.agent import load_agent, save_agent
from muninn_bench.networks.coordinates import Coordinates, range_coordinates
from muninn_bench.networks.experience import Experience, discounted
from muninn_bench.networks.runs import Runs, load_runs, save_runs
from muninn_bench.networks.trainer import train
from muninn_bench.planners.agent_lesson import Hidden
from muninn_bench.planners.diffusion_ql import DiffusionQL, vp_schedule
from muninn_bench.planners.diffusion_ql_lesson import DiffusionQLLesson, draw_actions

CPU = torch.device("cpu")
NAMES = list(cases.RECIPES)


def experience() -> tuple[Experience, Runs, torch.Tensor]:
    """Windows of five frames; the runs, and their frames in the same coordinates."""
    runs, ones = cases.walks(), torch.ones(cases.OBSERVATION + cases.ACTION)
    coordinates, frames = Coordinates(-ones, ones), torch.from_numpy(runs.frames)
    frames = torch.cat([coordinates.normalise(frames[:, :-1]), frames[:, -1:]], dim=1)
    return Experience(runs, coordinates, 5, cases.LIMIT, 0.9, CPU), runs, frames


def test_returns_are_discounted_sums_and_go_on_past_the_clock() -> None:
    rewards, offsets = np.array([1.0, 2.0, 3.0, 1.0, 1.0]), np.array([0, 3, 5])
    found = discounted(rewards, offsets, limit=10, discount=0.5)
    assert found.tolist() == [1.0 + 1.0 + 0.75, 3.5, 3.0, 1.5, 1.0]
    # A constant reward that the clock cut off is worth reward / (1 - discount) at every frame.
    steady = discounted(np.full(7, 2.0), np.array([0, 7]), limit=7, discount=0.9)
    np.testing.assert_allclose(steady, 20.0, rtol=1e-6)


def test_windows_are_held_where_an_episode_is_over_and_whole_where_the_clock_ended_it() -> None:
    source, runs, frames = experience()
    windows, _ = source.windows(500, torch.Generator().manual_seed(0))
    lengths = np.diff(runs.offsets)
    for window in windows:
        (first,) = torch.nonzero((frames[:, :-1] == window[0]).all(dim=1))[:, 0].tolist()
        run = int(np.searchsorted(runs.offsets, first, side="right")) - 1
        left = int(runs.offsets[run + 1]) - first
        assert lengths[run] < cases.LIMIT or left >= 5
        wanted = frames[[first + min(at, left - 1) for at in range(5)], :-1]
        assert torch.equal(window, wanted)


def test_a_transition_says_whether_the_episode_goes_on() -> None:
    source, runs, frames = experience()
    steps = source.transitions(2000, torch.Generator().manual_seed(0))
    lengths = np.diff(runs.offsets)
    over = {int(end) - 1 for end, n in zip(runs.offsets[1:], lengths, strict=True) if n < 30}
    met = set()
    for row in range(2000):
        here = torch.cat([steps.observation[row], steps.action[row], steps.reward[row : row + 1]])
        (place,) = torch.nonzero((frames == here).all(dim=1))[:, 0].tolist()
        assert bool(steps.goes_on[row]) == (place not in over)
        assert place + 1 not in runs.offsets or place in over, "the clock's last step has no next"
        if place not in over:
            assert torch.equal(steps.after[row], frames[place + 1, : cases.OBSERVATION])
        met.add(place)
    assert over <= met


def test_a_channel_that_never_moves_has_coordinates() -> None:
    coordinates = range_coordinates(torch.tensor([[1.0, 0.0], [1.0, 4.0]]))
    values = coordinates.normalise(torch.tensor([[1.0, 0.0], [1.0, 4.0]]))
    expected = torch.tensor([[0.0, -1.0], [0.0, 1.0]])
    torch.testing.assert_close(values, expected, atol=1e-4, rtol=0.0)


def test_an_observation_beyond_the_data_is_told_as_its_edge() -> None:
    far = np.array([9.0, -9.0, 0.5, 0.0])
    assert cases.policy("diffuser").context(far).tolist() == [[1.0, -1.0, 0.5, 0.0]]
    assert cases.policy("diffusion-ql").context(far).tolist() == [[9.0, -9.0, 0.5, 0.0]]


@pytest.mark.parametrize("name", NAMES)
def test_a_teacher_is_trained_saved_and_read(name: str, tmp_path: Path) -> None:
    path = train(cases.lesson(name), cases.settings(tmp_path))
    recipe = cases.RECIPES[name]
    agent = load_agent(path, "walk", recipe.planner, recipe.networks())
    policy = recipe.policy(agent)
    observation = np.array([0.1, 0.2, -0.1, 0.0])
    context = policy.context(observation)
    plan = policy.planner.sample(context, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(plan).all() and plan.shape == (1, *policy.planner.shape)
    assert policy.act(plan, context).shape == (1, 1, cases.ACTION)
    world = policy.coordinates.unnormalise(context)[0]
    torch.testing.assert_close(world, torch.from_numpy(observation).float())


@pytest.mark.parametrize("name", NAMES)
def test_training_goes_on_where_it_stopped(name: str, tmp_path: Path) -> None:
    train(cases.lesson(name), cases.settings(tmp_path, steps=8, pause_minutes=1e-9))
    first = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    train(cases.lesson(name), cases.settings(tmp_path, steps=8))
    last = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert 0 < first["step"] < 8 == last["step"]


def test_a_checkpoint_of_another_task_or_planner_is_refused(tmp_path: Path) -> None:
    train(cases.lesson("diffuser"), cases.settings(tmp_path))
    with pytest.raises(InputError, match=r"checkpoint.pt is of diffuser on walk.*another folder"):
        train(cases.lesson("diffuser", task="run"), cases.settings(tmp_path))
    with pytest.raises(InputError, match=r"is of diffuser on walk.*not of diffusion-ql on walk"):
        train(cases.lesson("diffusion-ql"), cases.settings(tmp_path))


def test_weights_of_another_task_planner_or_size_are_refused(tmp_path: Path) -> None:
    path, recipe = tmp_path / "agent.safetensors", cases.RECIPES["diffusion-ql"]
    save_agent(path, cases.agent("diffusion-ql"))
    assert load_agent(path, "walk", "diffusion-ql", recipe.networks()).steps == 5
    with pytest.raises(InputError, match=r"of diffusion-ql on walk, not of diffusion-ql on hop"):
        load_agent(path, "hop", "diffusion-ql", recipe.networks())
    with pytest.raises(InputError, match=r"not of diffuser on walk; train it with"):
        load_agent(path, "walk", "diffuser", recipe.networks())
    wider = DiffusionQL(cases.OBSERVATION, cases.ACTION, width=24).networks()
    with pytest.raises(InputError, match="holds other networks than this version builds"):
        load_agent(path, "walk", "diffusion-ql", wider)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"cannot be read as weights.*cut short"):
        load_agent(path, "walk", "diffusion-ql", recipe.networks())


def test_rewards_that_are_not_finite_are_refused_before_they_are_written_or_learned(
    tmp_path: Path,
) -> None:
    runs = cases.walks()
    runs.frames[5, -1] = math.nan
    with pytest.raises(InputError, match="channel 6 of the runs holds values that are not finite"):
        save_runs(tmp_path / "runs.npz", runs)
    for name in NAMES:
        with pytest.raises(InputError, match=r"rewards that are not finite; record it again"):
            cases.lesson(name, runs)


def test_data_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.npz"
    save_runs(path, cases.walks())
    whole = path.read_bytes()
    for length in (0, 40, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"was cut short: record it again"):
            load_runs(path)


def test_frames_without_an_action_are_refused() -> None:
    runs = replace(cases.walks(), state_channels=6)
    with pytest.raises(InputError, match="hold no action and reward after 6"):
        cases.lesson("diffuser", runs)


def test_adaptdiffuser_learns_from_its_own_better_plans() -> None:
    lesson = cases.lesson("adaptdiffuser")
    generator = torch.Generator().manual_seed(0)
    lesson.trail(lesson.network, 0.4)  # type: ignore[attr-defined]
    assert lesson.batch(8, generator)[4].tolist() == [1.0] * 8
    lesson.network.eval()
    lesson.trail(lesson.network, 0.5)  # type: ignore[attr-defined]
    own = lesson._own  # type: ignore[attr-defined]
    assert 1 <= len(own) <= 8, "at most the better half of 16"
    clean, _, _, _, known = lesson.batch(8, generator)
    assert known.tolist() == [0.0] * 4 + [1.0] * 4
    assert all((row == own).all(dim=(1, 2)).any() for row in clean[:4])
    next(lesson.network["value"].parameters()).data.fill_(math.nan)  # type: ignore[index]
    fresh = cases.lesson("adaptdiffuser")
    with pytest.raises(InputError, match="value network returned a value that is not finite"):
        fresh.trail(lesson.network, 0.6)  # type: ignore[attr-defined]


def test_the_actor_draws_what_the_planner_samples() -> None:
    policy, agent = cases.policy("diffusion-ql"), cases.agent("diffusion-ql")
    recipe = cases.RECIPES["diffusion-ql"]
    assert isinstance(recipe, DiffusionQL)
    noise = policy.planner.draw_noise(seeds=[0, 1])
    context = torch.rand(2, cases.OBSERVATION)
    draws = torch.stack([noise.initial, *noise.steps.values()])
    found = draw_actions(agent.networks["actor"], recipe.sampler(), context, draws)
    torch.testing.assert_close(found, policy.planner.sample(context, noise=noise))


def test_targets_ask_about_the_actions_of_the_averaged_actor() -> None:
    lesson = cases.lesson("diffusion-ql")
    assert isinstance(lesson, DiffusionQLLesson)
    generator = torch.Generator().manual_seed(0)
    lesson.trail(lesson.network, 0.1)
    assert not lesson.batch(8, generator)[7].any(), "critics learn returns while the actor clones"
    lesson.trail(lesson.network, 0.3)
    *_, place, then, _, _ = lesson.batch(8, generator)
    found = lesson._next
    assert torch.equal(then, found[place]) and found.std() > 0.1
    lesson.trail(lesson.network, 0.4)
    assert lesson._next is found, "drawn again only after many steps"


def test_a_clean_action_is_what_noise_and_noisy_action_imply() -> None:
    hidden = Hidden(vp_schedule(10), CPU)
    clean, generator = torch.rand(6, 1, 2), torch.Generator().manual_seed(0)
    noise, t = hidden.draw(clean, generator)
    torch.testing.assert_close(hidden.clean(hidden.noisy(clean, noise, t), noise, t), clean)


def test_diffusion_ql_prefers_the_rewarded_of_two_actions(tmp_path: Path) -> None:
    # Episodes that end at step 1: the action is -0.5 or 0.5, and only the second is rewarded.
    generator = np.random.default_rng(0)
    side = np.where(generator.random(400) < 0.5, -0.5, 0.5)
    frames = [np.array([[float(generator.standard_normal()), at, at > 0.0]]) for at in side]
    recipe = DiffusionQL(1, 1, steps=5, width=32, candidates=8)
    runs = cases.as_runs(frames, observation=1)
    lesson = DiffusionQLLesson(recipe, "two", runs, 10, CPU)
    given = cases.settings(
        tmp_path, steps=250, batch=64, learning_rate=3e-3, warmup=20, averaging=0.98, report=250
    )
    agent = load_agent(train(lesson, given), "two", "diffusion-ql", recipe.networks())
    policy = recipe.policy(agent)
    contexts = policy.context(np.zeros(1)).expand(50, -1)
    plans = policy.planner.sample(contexts, noise=policy.planner.draw_noise(seeds=range(50)))
    executed = policy.act(plans, contexts)
    assert (executed > 0.2).float().mean() > 0.95
    # Values near 10 of REWARD's unit: a rewarded action is worth 0.1 / mean reward, about 0.2.
    worth = agent.networks["critic"](torch.zeros(2, 1), torch.tensor([[-0.5], [0.5]])).mean(dim=0)
    assert worth[0] < 0.07 < 0.13 < worth[1]
