"""Recorded observations become exactly the calls that LeRobot's own queues would make of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import smolvla_cases
from lerobot_cases import ACTION, SCENE, STATE, certify, make_policy, observation
from muninn.adapters import enable_cache
from muninn.adapters.lerobot import prefixes, recorded_calls, recorded_episodes
from muninn.context import tensors
from muninn.errors import InputError

pytest.importorskip("lerobot.policies.diffusion.modeling_diffusion")

LENGTHS = (1, 9, 20)
CALLS = (1, 2, 3)  # at steps 0, 8, 16
HISTORIES = [(2, 8), (1, 8), (3, 1), (4, 2), (3, 2)]  # n_obs_steps, n_action_steps


def policy_with(history: tuple[int, int] = (2, 8)) -> Any:
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    seen, acted = history
    config = replace(make_policy().config, n_obs_steps=seen, n_action_steps=acted)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DiffusionPolicy(config).eval()


def processor(policy: Any) -> Any:
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    span = {"min": torch.full((STATE,), -2.0), "max": torch.full((STATE,), 3.0)}
    return make_diffusion_pre_post_processors(policy.config, {"observation.state": span})[0]


def frames() -> list[dict[str, Any]]:
    """Three episodes; no two frames are alike."""
    return [
        {key: value[0] for key, value in observation(100 * episode + step).items()}
        | {"episode_index": torch.tensor(episode), "action": torch.zeros(ACTION)}
        for episode, length in enumerate(LENGTHS)
        for step in range(length)
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same frames as a LeRobotDataset on disk."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    folder = tmp_path_factory.mktemp("dataset") / "drift"
    shapes = {"observation.state": STATE, "observation.environment_state": SCENE, "action": ACTION}
    features = {
        key: {"dtype": "float32", "shape": (size,), "names": None} for key, size in shapes.items()
    }
    dataset = LeRobotDataset.create("local/drift", 10, features, root=folder, use_videos=False)
    for episode in range(len(LENGTHS)):
        for frame in frames():
            if frame["episode_index"] == episode:
                dataset.add_frame({**{key: frame[key] for key in shapes}, "task": "drift"})
        dataset.save_episode()
    dataset.finalize()
    return folder


def opened(root: Path, **rest: Any) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("local/drift", root=root, **rest)


def own_calls(policy: Any, preprocessor: Any) -> tuple[Tensor, list[int]]:
    """What LeRobot tells its loop when every episode is played back from its start."""
    told, numbers = [], []

    def watched(rows: int, **rest: Any) -> Tensor:
        told.append(rest["global_cond"])
        numbers.append(episode)
        return torch.zeros(rows, 16, ACTION)

    policy.diffusion.conditional_sample = watched
    for episode in range(len(LENGTHS)):
        policy.reset()
        for frame in frames():
            if frame["episode_index"] == episode:
                seen = {key: frame[key][None] for key in frame if key.startswith("observation")}
                policy.select_action(dict(preprocessor(seen)))
    del policy.diffusion.conditional_sample
    return torch.cat(told), numbers


@pytest.mark.parametrize("history", HISTORIES, ids=str)
def test_calls_are_those_of_the_policys_own_queues(history: tuple[int, int]) -> None:
    policy = policy_with(history)
    preprocessor = processor(policy)
    expected, numbers = own_calls(policy, preprocessor)
    found, episode_of = recorded_episodes(
        policy, frames(), preprocessor=preprocessor, progress=False
    )
    assert torch.equal(found, expected) and episode_of == numbers
    assert len(found) == sum(-(-length // history[1]) for length in LENGTHS)


@pytest.mark.parametrize("chosen", [{}, {"episodes": [0, 2]}], ids=str)
@pytest.mark.parametrize("windowed", [False, True])
def test_a_dataset_of_lerobot_with_and_without_its_own_windows(
    root: Path, chosen: dict[str, Any], windowed: bool
) -> None:
    policy = policy_with()
    deltas = {key: [-0.1, 0.0] for key in policy.config.input_features} | {"action": [0.0, 0.1]}
    dataset = opened(root, delta_timestamps=deltas if windowed else None, **chosen)
    assert dataset[0]["observation.state"].shape == ((2, STATE) if windowed else (STATE,))
    preprocessor = processor(policy)
    expected, numbers = own_calls(policy, preprocessor)
    kept = [at for at, number in enumerate(numbers) if number in chosen.get("episodes", numbers)]
    found, _ = recorded_episodes(policy, dataset, preprocessor=preprocessor, progress=False)
    assert torch.equal(found, expected[kept])


def test_the_windows_that_lerobot_trains_on_are_the_same(root: Path) -> None:
    policy = policy_with()
    deltas = {key: [-0.1, 0.0] for key in policy.config.input_features}
    dataset = opened(root, delta_timestamps=deltas)
    starts = [at for at, frame in enumerate(dataset) if int(frame["frame_index"]) % 8 == 0]
    windows = torch.utils.data.default_collate(
        [{key: dataset[at][key] for key in policy.config.input_features} for at in starts]
    )
    expected = policy.diffusion._prepare_global_conditioning(windows)
    assert torch.equal(recorded_episodes(policy, dataset, progress=False)[0], expected)


def test_a_folder_is_the_same_as_the_dataset(tmp_path: Path) -> None:
    policy = policy_with()
    for episode in range(len(LENGTHS)):
        own = [frame for frame in frames() if frame["episode_index"] == episode]
        arrays = {
            key: torch.stack([frame[key] for frame in own]).double().numpy() for key in own[0]
        }
        np.savez(tmp_path / f"{episode}.npz", **arrays)
    expected = recorded_episodes(policy, frames(), progress=False)
    found = recorded_episodes(policy, tmp_path, progress=False)
    assert torch.equal(found[0], expected[0]) and found[1] == expected[1]


def test_one_random_call_of_each_random_episode() -> None:
    policy = policy_with()
    every, episode_of = recorded_episodes(policy, frames(), progress=False)
    position = {tuple(row.tolist()): at for at, row in enumerate(every)}

    def drawn(seed: int, count: int | None) -> list[int]:
        rows = recorded_calls(policy, frames(), count=count, seed=seed, progress=False)
        return [position[tuple(row.tolist())] for row in rows]

    draws = [drawn(seed, None) for seed in range(40)]
    assert all([episode_of[at] for at in draw] == [0, 1, 2] for draw in draws)
    counts = Counter(at for draw in draws for at in draw)
    assert set(counts) == set(range(sum(CALLS)))  # every call is drawn at some time
    assert counts[0] == 40 and max(counts[at] for at in (3, 4, 5)) <= 25  # of 40, 13 expected
    assert draws[0] == drawn(0, None)
    pairs = Counter(tuple(episode_of[at] for at in drawn(seed, 2)) for seed in range(30))
    assert set(pairs) == {(0, 1), (0, 2), (1, 2)}


def test_smolvla_is_told_what_it_tells_itself(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    policy = smolvla_cases.make_policy(smolvla_cases.save_vlm(tmp_path))
    seen = smolvla_cases.observation(0, 3)
    items = [{key: value[row] for key, value in seen.items()} for row in range(3)]
    found = recorded_calls(policy, items, progress=False)
    rows = [{key: value[None] for key, value in item.items()} for item in items]
    expected = prefixes(policy, rows)
    kept = dict(tensors(found))
    assert len(kept) == 1 + 2 * 2  # the mask; keys and values of two layers
    for path, tensor in tensors(expected):
        assert torch.equal(kept[path], tensor)


# -- what cannot be used -------------------------------------------------------------------------


def test_the_policy_is_left_as_it_was_also_after_an_error() -> None:
    policy = policy_with()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    attributes = set(vars(policy.diffusion))
    recorded_calls(policy, frames(), progress=False)
    with pytest.raises(InputError):
        recorded_calls(policy, [{"episode_index": 0}], progress=False)
    assert set(vars(policy.diffusion)) == attributes
    assert not policy._queues["action"] and not policy._queues["observation.state"]
    assert torch.equal(torch.get_rng_state(), state)


def broken(change: Callable[[dict[str, Any]], dict[str, Any]]) -> list[dict[str, Any]]:
    return [change(frame) if at == 1 + 8 else frame for at, frame in enumerate(frames())]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda frame: {"episode_index": 1, "observation.state": frame["observation.state"]},
            r"episode 1, step 8 lacks observation\.environment_state; it has observation\.state",
        ),
        (
            lambda frame: {**frame, "observation.state": torch.zeros(STATE + 1)},
            r"observation\.state of episode 1, step 8 has shape \(4,\); the policy takes \(3,\)",
        ),
        (
            lambda frame: {**frame, "observation.state": torch.zeros(2, STATE)},
            r"episode 1, step 8 has shape \(2, 3\)",
        ),
        (
            lambda frame: {**frame, "observation.state": torch.full((STATE,), float("nan"))},
            r"observation\.state of episode 1, step 8 is not finite",
        ),
        (
            lambda frame: {**frame, "observation.state": torch.zeros(STATE, dtype=torch.uint8)},
            r"episode 1, step 8 is torch\.uint8; give floating-point",
        ),
        (
            lambda frame: {**frame, "observation.note": "dropped"},
            r"observation\.note of episode 1, step 8 is 'dropped'; give numbers, or leave",
        ),
        (
            lambda frame: {**frame, "observation.state": None},
            r"observation\.state of episode 1, step 8 is None; give numbers",
        ),
    ],
    ids=["missing", "size", "window", "nan", "dtype", "text", "none"],
)
def test_an_unusable_frame_is_named(change: Any, message: str) -> None:
    policy = policy_with()
    with pytest.raises(InputError, match=r"1 of 3 episodes(.|\n)*" + message):
        recorded_episodes(policy, broken(change), preprocessor=processor(policy), progress=False)


def test_every_damaged_file_is_named_and_none_is_left_out(tmp_path: Path) -> None:
    arrays = {key: value.numpy().repeat(9, axis=0) for key, value in observation(0).items()}
    for number in range(4):
        np.savez(tmp_path / f"{number}.npz", **arrays)
    for number in (1, 3):
        whole = (tmp_path / f"{number}.npz").read_bytes()
        (tmp_path / f"{number}.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"2 of 4 episodes(.|\n)*1\.npz(.|\n)*3\.npz"):
        recorded_calls(policy_with(), tmp_path, progress=False)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_with_wrong_keys_is_told_the_right_ones(tmp_path: Path) -> None:
    policy = policy_with()
    np.savez(tmp_path / "0.npz", state=np.zeros((9, STATE), np.float32))
    for preprocessor in (None, processor(policy)):
        with pytest.raises(InputError, match=r"0\.npz, step \d lacks observation\.envi"):
            recorded_calls(policy, tmp_path, preprocessor=preprocessor, progress=False)


def test_a_preprocessor_that_fails_is_an_input_error() -> None:
    def fail(batch: Any) -> Any:
        raise ValueError("Task cannot be None")

    with pytest.raises(InputError, match=r"preprocessor fails on episode 0.*Task cannot be None"):
        recorded_calls(policy_with(), frames(), preprocessor=fail, progress=False)


def test_other_sources_are_refused(root: Path, tmp_path: Path) -> None:
    policy = policy_with()
    for source, message in [
        ([], "is empty"),
        (iter(frames()), "list_iterator; give a LeRobotDataset"),
        ([torch.zeros(3)], "yields Tensor; give dicts"),
        ([{"observation.state": torch.zeros(STATE)}], "no episode_index"),
        ([*frames()[:2], observation(0)], r"frame 2 .*no episode_index.*observation\.state"),
        ([*frames()[:2], {"episode_index": None}], r"frame 2 .*episode_index None; .*whole number"),
        ([*frames()[:2], torch.zeros(3)], r"frame 2 .*Tensor; give dicts"),
        (root, r"is a LeRobot dataset; open it"),
        (str(tmp_path), "holds no"),
    ]:
        with pytest.raises(InputError, match=message):
            recorded_calls(policy, source, progress=False)
    for count in (0, 4):
        with pytest.raises(InputError, match=rf"{count} calls of 3 episodes.*Record more"):
            recorded_calls(policy, frames(), count=count, progress=False)
    with pytest.raises(InputError, match=r"policy\.eval\(\)"):
        recorded_calls(policy.train(), frames(), progress=False)
    cached = make_policy()
    enable_cache(cached, certify(cached))
    with pytest.raises(InputError, match="disable_cache"):
        recorded_calls(cached, frames(), progress=False)
