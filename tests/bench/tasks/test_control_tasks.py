"""Worlds that give rewards: their data from a file of others, their episodes, and bad input."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import control_cases as cases
from muninn.errors import InputError
from muninn_bench import registry
from muninn_bench.measure.protocol import plain
from muninn_bench.measure.rollout import roll_out
from muninn_bench.networks.runs import load_runs
from muninn_bench.networks.trainer import Training
from muninn_bench.task import Stream
from muninn_bench.tasks import control
from muninn_bench.tasks.agents import read_agent
from muninn_bench.tasks.control import ControlTask, Scoring
from muninn_bench.tasks.kitchen import data as kitchen_data
from muninn_bench.tasks.kitchen.world import GOALS, Kitchen, towards
from muninn_bench.tasks.locomotion import Gait, Performer, Runner, locomotion

ROBOTS = {"halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6)}


def small_robot(name: str) -> ControlTask:
    """The task with a linear agent of its own."""
    gait = Gait(registry.find_task(name).world.args[0], (Performer("line", 1.0, noise=0.2),))  # type: ignore[attr-defined]
    return locomotion(name, gait, *ROBOTS[name], Scoring(0.0, 100.0), 3, 0.01)


@pytest.mark.parametrize("name", list(ROBOTS))
def test_data_repeats_whatever_the_workers_and_resumes(name: str, tmp_path: Path) -> None:
    source = cases.write_agents(tmp_path / "agents.safetensors", {"line": ROBOTS[name]})
    task = small_robot(name)
    count = 2 if name == "halfcheetah" else 5
    task.make_data(tmp_path / "one.npz", count, 3, 1, source)
    one = load_runs(tmp_path / "one.npz")
    assert one.frames.shape[1] == sum(ROBOTS[name]) + 1
    assert len(one.offsets) == count + 1 and one.state_channels == ROBOTS[name][0]
    lengths = np.diff(one.offsets)
    assert (lengths == 1000).all() if name == "halfcheetah" else lengths.max() < 1000
    actions = one.frames[:, ROBOTS[name][0] : -1]
    assert np.abs(actions).max() <= 1.0 and actions.std() > 0.1
    kept = sorted((tmp_path / "one").rglob("*.npz"))
    stamps = [path.stat().st_mtime_ns for path in kept]
    task.make_data(tmp_path / "one.npz", count, 3, 1, source)
    assert stamps == [path.stat().st_mtime_ns for path in kept]


def test_idle_simulators_do_not_travel_to_workers() -> None:
    task = small_robot("hopper")
    task.idle.append(task.simulator())
    assert pickle.loads(pickle.dumps(task)).idle == [] and len(task.idle) == 1


def test_data_is_the_same_with_two_workers(tmp_path: Path) -> None:
    source = cases.write_agents(tmp_path / "agents.safetensors", {"line": ROBOTS["hopper"]})
    task = small_robot("hopper")
    for workers in (1, 2):
        task.make_data(tmp_path / f"{workers}.npz", 45, 0, workers, source)
    one, two = (load_runs(tmp_path / f"{workers}.npz") for workers in (1, 2))
    np.testing.assert_array_equal(one.frames, two.frames)
    np.testing.assert_array_equal(one.offsets, two.offsets)


def test_a_reward_follows_its_frame_and_scores_are_d4rls() -> None:
    world = Runner("Hopper-v4")
    first = world.reset(7)
    assert np.array_equal(first, world.reset(7)) and not np.array_equal(first, world.reset(8))
    task = registry.find_task("hopper")
    assert isinstance(task, ControlTask)
    assert task.scoring.score(-20.27) == 0.0 and task.scoring.score(3234.3) == 100.0
    gait = Gait("Hopper-v4", (Performer("line", 1.0, own_noise=False),))
    assert gait.performers[0].noise == 0.0


def test_agents_compute_what_their_layers_say(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    shapes = {"hidden.0.weight": (8, 18), "hidden.0.bias": (8,), "hidden.2.weight": (8, 8),
              "hidden.2.bias": (8,), "mean.weight": (6, 8), "mean.bias": (6,), "log_std": (6,),
              "observation_mean": (18,), "observation_variance": (18,)}  # fmt: skip
    tensors = {
        k: np.abs(generator.standard_normal(v)).astype(np.float32) for k, v in shapes.items()
    }
    about = {"kind": "gaussian", "activation": "tanh", "clip_observation": 1.0, "epsilon": 1e-8,
             "normalised": True}  # fmt: skip
    path = tmp_path / "agents.safetensors"
    stored = {f"ppo/{key}": 0.1 * value for key, value in tensors.items()}
    save_file(stored, path, metadata={"ppo": json.dumps(about)})
    seen, noise = generator.standard_normal(17), generator.standard_normal(6)
    found = read_agent(path, "ppo").act(seen, 250, noise)
    part = {key: torch.from_numpy(0.1 * value).double() for key, value in tensors.items()}
    h = torch.cat([torch.from_numpy(seen), torch.tensor([0.75]).double()])  # the share that is left
    h = ((h - part["observation_mean"]) / part["observation_variance"].sqrt()).clamp(-1.0, 1.0)
    for layer in ("hidden.0", "hidden.2"):
        h = (part[f"{layer}.weight"] @ h + part[f"{layer}.bias"]).tanh()
    action = part["mean.weight"] @ h + part["mean.bias"]
    action = action + part["log_std"].exp() * torch.from_numpy(noise)
    np.testing.assert_allclose(found, action.clamp(-1.0, 1.0).numpy(), rtol=1e-6)


def test_a_missing_agent_file_is_named_with_its_original(tmp_path: Path) -> None:
    task = registry.find_task("walker2d")
    assert isinstance(task, ControlTask)
    for source, found in ((None, "is not named"), (tmp_path / "no", "is not at .*no")):
        with pytest.raises(InputError, match=f"{found}; it is that of the agents at https://git"):
            task.make_data(tmp_path / "data.npz", 1, 0, 1, source)
    path = cases.write_agents(tmp_path / "agents.safetensors", {"line": (17, 6)})
    with pytest.raises(InputError, match=r"no agent '\w+-Walker2d-v3'; it holds line"):
        task.make_data(tmp_path / "data.npz", 1, 0, 1, path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read"):
        read_agent(path, "line")
    assert not (tmp_path / "data.npz").exists()


def test_a_task_that_needs_no_file_refuses_one(tmp_path: Path) -> None:
    task = registry.find_task("discs")
    with pytest.raises(InputError, match="discs is made from no file; leave out --source"):
        task.make_data(tmp_path / "data.npz", 1, 0, 1, tmp_path)  # type: ignore[attr-defined]


def test_data_of_another_world_is_refused(tmp_path: Path) -> None:
    source = cases.write_agents(tmp_path / "agents.safetensors", {"line": ROBOTS["hopper"]})
    small_robot("hopper").make_data(tmp_path / "hopper.npz", 2, 0, 1, source)
    walker = registry.find_task("walker2d")
    assert isinstance(walker, ControlTask)
    with pytest.raises(InputError, match=r"observations of 11; walker2d has 24 and 17: make its"):
        walker.lesson("diffuser", tmp_path / "hopper.npz", Training(tmp_path, device="cpu"))


# -- the kitchen -------------------------------------------------------------------------------


def write_demonstrations(path: Path, lengths: dict[str, int]) -> Path:
    """Demonstrations that hold the arm near its start, one a group."""
    start = Kitchen().reset(0)[:9]
    targets = [np.tile(start + 0.01 * place, (n, 1)) for place, n in enumerate(lengths.values())]
    content = {
        "targets": np.concatenate(targets).astype(np.float32),
        "ends": np.cumsum([*lengths.values()]),
        "group": np.arange(len(lengths)),
    }
    save_file(content, path, metadata={"groups": json.dumps([*lengths])})
    return path


def test_the_complete_demonstrations_come_first(tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.safetensors"
    write_demonstrations(path, {"friday_kettle": 3, kitchen_data.COMPLETE: 5})
    first, second = kitchen_data.demonstrations(path)
    assert (len(first), len(second)) == (5, 3)
    kitchen_data.recording(path).generate(tmp_path / "runs.npz", 2, 0, 1)
    runs = load_runs(tmp_path / "runs.npz")
    assert runs.offsets.tolist() == [0, 5, 8] and runs.frames.shape == (8, 59 + 9 + 1)
    # The recorded action is the one that leads to the target from what was observed.
    wanted = towards(first[2], runs.frames[2, :59])
    np.testing.assert_allclose(runs.frames[2, 59:68], wanted, atol=2e-3)
    with pytest.raises(InputError, match="has 2 demonstrations; ask for --count 2"):
        kitchen_data.make_runs(path, 0, 2)
    write_demonstrations(other := tmp_path / "other.safetensors", {"friday_kettle": 3})
    with pytest.raises(InputError, match="holds no demonstrations of friday_microwave_kettle"):
        kitchen_data.demonstrations(other)


def test_demonstrations_or_weights_that_were_cut_short_are_to_be_copied_again(
    tmp_path: Path, lines: ControlTask
) -> None:
    path = write_demonstrations(tmp_path / "some.safetensors", {kitchen_data.COMPLETE: 5})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"some.safetensors cannot be read .* copy it again"):
        kitchen_data.demonstrations(path)
    weights = tmp_path / "models" / "lines" / "diffusion-ql" / "agent.safetensors"
    weights.write_bytes(weights.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cut short: copy it again, or train it"):
        lines.planner("diffusion-ql")


def test_an_episode_of_the_kitchen_ends_by_the_clock_and_repeats() -> None:
    world = Kitchen(limit=3)
    first = world.reset(5)
    assert np.array_equal(first, world.reset(5)) and not np.array_equal(first, world.reset(6))
    ends = [world.step(np.zeros(9))[2] for _ in range(3)]
    assert ends == [False, False, True]
    task = registry.find_task("kitchen")
    assert isinstance(task, ControlTask)
    assert task.scoring.score(len(GOALS)) == 100.0
    assert task.taught["diffuser-complete"].runs == 19 and task.taught["diffuser"].runs is None


# -- episodes ----------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlTask]:
    """A task with weights of all planners in the working directory."""
    monkeypatch.chdir(tmp_path)
    yield cases.lines(tmp_path)
    control._policy.cache_clear()


@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_episodes_in_lock_step_are_those_alone(name: str, lines: ControlTask) -> None:
    planner = lines.planner(name)
    drives = roll_out(lines, name, plain(planner), Stream.TEST, 5, seed=2,
                      shadow=(plain(planner), lines.metric(name)))  # fmt: skip
    alone = roll_out(lines, name, plain(planner), Stream.TEST, 3, seed=2)
    for one, other in zip(drives, alone, strict=False):
        assert one.result == other.result
    steps = [drive.result.figures["steps"] for drive in drives]
    assert steps == [len(drive.contexts) for drive in drives]
    assert len(set(steps)) > 1
    for drive in drives:
        assert max(drive.deviation) < 1e-4
        assert drive.result.score == pytest.approx(100.0 * drive.result.figures["steps"] / 6.0)
        assert drive.result.success == (drive.result.figures["steps"] == 6.0)


@pytest.mark.parametrize("name", list(cases.RECIPES))
def test_following_together_is_following_one_by_one(name: str, lines: ControlTask) -> None:
    planner = lines.planner(name)
    together, apart = (
        [lines.begin(name, Stream.TEST, number) for number in range(3)] for _ in range(2)
    )
    contexts = torch.cat([episode.context() for episode in together])
    plans = planner.sample(contexts, noise=planner.draw_noise(seeds=range(3)))
    lines.follow_all(together, plans)
    for episode, other, plan in zip(together, apart, plans, strict=True):
        other.follow(plan)
        torch.testing.assert_close(episode.context(), other.context())
        assert (episode.done, episode.time) == (other.done, other.time)


def test_an_episode_may_end_at_its_first_step_and_its_world_is_used_again(
    lines: ControlTask,
) -> None:
    short = replace(lines, world=lambda: cases.Line(1))
    cases.Line.made = 0
    for number in range(4):
        episode = short.begin("diffusion-ql", Stream.TEST, number)
        episode.follow(torch.zeros(12, cases.ACTION))
        assert episode.done and episode.result().figures == {"steps": 1.0, "rewards": 1.0}
    assert cases.Line.made == 1


def test_weights_of_another_task_are_refused(lines: ControlTask, tmp_path: Path) -> None:
    (tmp_path / "models" / "other").symlink_to(tmp_path / "models" / "lines")
    other = replace(lines, name="other")
    with pytest.raises(InputError, match="is of diffuser on lines, not of diffuser on other"):
        other.planner("diffuser")
