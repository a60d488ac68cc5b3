"""The task among boxes, with a prior that has learned nothing: what is chosen, followed, judged."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from muninn.certify.metrics import measure
from muninn_bench.measure.alternatives import Alternative
from muninn_bench.networks.agent import Agent, save_agent
from muninn_bench.networks.on_gpu import moved
from muninn_bench.networks.runs import load_runs
from muninn_bench.planners.motion_choice import choose
from muninn_bench.task import Stream

pytest.importorskip("ompl")
if find_spec("gym_hil") is None:
    pytest.skip("gym-hil is not installed", allow_module_level=True)

from muninn_bench.tasks.panda_clutter import task as module
from muninn_bench.tasks.panda_clutter.data import make_run
from muninn_bench.tasks.panda_clutter.task import COORDINATES, NAME, PRIOR, TASK

VARIANTS = ("mpd-easy", "edmp-hard")


@pytest.fixture(scope="module", autouse=True)
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder with a prior of random weights, to plan from."""
    folder = tmp_path_factory.mktemp("clutter")
    torch.manual_seed(0)
    path = folder / "models" / NAME / "agent.safetensors"
    path.parent.mkdir(parents=True)
    save_agent(path, Agent(NAME, PRIOR.planner, PRIOR.networks(), COORDINATES, PRIOR.steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield
    module._read.cache_clear()


def expert_plan(variant: str, index: int) -> tuple[Tensor, Tensor]:
    """The context of an expert's run, and a call whose first row is its path."""
    run = make_run(3, index)
    episode = TASK.begin(variant, Stream.TEST, 0)
    episode._problem = run.problem
    path = COORDINATES.normalise(torch.from_numpy(run.path).float())
    rows = TASK.planner(variant).shape[0]
    plans = torch.empty(rows, *path.shape).uniform_(-1.0, 1.0)
    plans[0] = path
    return episode.context(), plans


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_call_goes_from_a_problem_to_a_judged_motion(variant: str) -> None:
    planner = TASK.planner(variant)
    few = Alternative.untuned("fewsteps", planner, 3).sample(planner)
    episode = TASK.begin(variant, Stream.TEST, 1)
    context = episode.context()
    plan = few(context, noise=planner.draw_noise(seeds=[1]))
    assert context.shape == (1, 74) and plan.shape == (1, *planner.shape)
    ends = context[0, :14].view(2, 7)
    assert torch.equal(plan[0, :, 0], ends[0].expand(len(plan[0]), 7))
    assert torch.equal(plan[0, :, -1], ends[1].expand(len(plan[0]), 7))
    episode.follow(plan[0])
    result = episode.result()
    assert episode.done and result.success is False and result.score is None
    assert result.figures["length_rad"] > 0.0
    for metric in (TASK.metric(variant), TASK.joints_metric(variant)):
        assert measure(metric, plan, plan, context).tolist() == [0.0]
        assert measure(metric, plan, plan.flip(2), context)[0] > 0.0


def test_a_metric_can_be_sent_to_a_worker() -> None:
    context, plans = expert_plan("edmp-easy", 0)
    other = plans.flip(1)
    for metric in (TASK.metric("edmp-easy"), TASK.joints_metric("edmp-easy")):
        sent = pickle.loads(pickle.dumps(metric))
        expected = measure(metric, plans[None], other[None], context)
        assert measure(sent, plans[None], other[None], context).tolist() == expected.tolist()


def test_the_hand_is_found_on_the_device_of_the_poses() -> None:
    chooser = module._chooser()
    for device in ("cpu", "meta"):  # meta stands in for a GPU
        hand = module._hand(chooser, torch.zeros(2, 64, 7, device=device))
        assert hand.device.type == device and hand.shape == (2, 64, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_call_is_planned_compared_and_followed_on_a_gpu(variant: str) -> None:
    planner = moved(TASK.planner(variant), "cuda")
    few = Alternative.untuned("fewsteps", planner, 3).run(planner)
    episodes = [TASK.begin(variant, Stream.TEST, number) for number in (1, 2)]
    contexts = torch.cat([episode.context() for episode in episodes]).cuda()
    noise = planner.draw_noise(seeds=[1, 2])
    full, fast = planner.sample(contexts, noise=noise), few(contexts, noise)[0]
    assert fast.device.type == "cuda"
    for metric in (TASK.metric(variant), TASK.joints_metric(variant)):
        assert measure(metric, full, full, contexts).tolist() == [0.0, 0.0]
        assert (measure(metric, full, fast, contexts) > 0.0).all()
    TASK.follow_all(episodes, full)
    assert all(episode.result().figures["length_rad"] > 0.0 for episode in episodes)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_experts_path_is_chosen_among_noise_and_succeeds(index: int) -> None:
    context, plans = expert_plan("mpd-easy", index)
    run = make_run(3, index)
    chosen = choose(module._chooser(), plans[None], context)
    assert int(chosen.row[0]) == 0 and bool(chosen.free[0])
    figures = TASK.figures("mpd-easy", plans[None], context)
    assert figures["clearance_m"][0] >= 0.0 and figures["boxes"][0] == 3.0
    path = torch.from_numpy(run.path)
    torch.testing.assert_close(chosen.joints[0].double(), path, atol=1e-5, rtol=0.0)
    episode = TASK.begin("mpd-easy", Stream.TEST, 0)
    episode._problem = run.problem
    episode.follow(plans)
    result = episode.result()
    assert result.success and result.figures["collision"] == 0.0


def test_episodes_side_by_side_choose_as_one_by_one() -> None:
    variant = "edmp-medium"
    planner = TASK.planner(variant)
    noise = planner.draw_noise(seeds=[4, 5])
    together = [TASK.begin(variant, Stream.TEST, number) for number in (4, 5)]
    alone = [TASK.begin(variant, Stream.TEST, number) for number in (4, 5)]
    TASK.follow_all(together, noise.initial)
    for episode, plan in zip(alone, noise.initial, strict=True):
        episode.follow(plan)
    assert [e.result() for e in together] == [e.result() for e in alone]


def test_the_lesson_learns_from_recorded_motions(tmp_path: Path) -> None:
    TASK.make_data(tmp_path / "runs.npz", 6, 0, 1)
    assert len(load_runs(tmp_path / "runs.npz").offsets) == 7
    settings = TASK.training("mpd-easy", tmp_path)
    lesson = TASK.lesson("mpd-easy", tmp_path / "runs.npz", replace(settings, device="cpu"))
    generator = torch.Generator().manual_seed(0)
    loss = lesson.loss(lesson.network, *lesson.batch(4, generator))
    assert torch.isfinite(loss) and loss > 0.0
