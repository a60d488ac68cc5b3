"""The contract of a task, run over every task in the registry."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from muninn.certify.metrics import measure, metric_name, resolve, takes_context
from muninn.errors import InputError
from muninn_bench import registry, tasks
from muninn_bench.measure.alternatives import Alternative, Sample
from muninn_bench.task import Drawable, Stream, Task, Timed, Trainable, context_rows

ROOT = Path(__file__).parents[2]
FOLDERS = ROOT / "benchmarks" / "muninn_bench" / "tasks"


UNTRAINED = {"kitchen", "panda-clutter"}
"""Tasks of which some weights are not there yet; to be emptied as they come."""


@pytest.fixture(params=registry.names())
def described(request: pytest.FixtureRequest) -> Task:
    try:
        return registry.find_task(request.param)
    except InputError as error:
        pytest.skip(str(error))


@pytest.fixture(params=sorted({*registry.names()} - UNTRAINED))
def task(request: pytest.FixtureRequest) -> Task:
    try:
        return registry.find_task(request.param)
    except InputError as error:
        pytest.skip(str(error))


def test_the_registry_finds_the_folders_and_refuses_other_names() -> None:
    assert {"discs", "maze2d", "crazyflie", "asv", "metaworld"} <= set(registry.names())
    with pytest.raises(InputError, match="no task 'maze3d'; choose from"):
        registry.find_task("maze3d")


def test_a_hyphen_of_a_name_is_an_underscore_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, text in (("two_words", "TASK = 'the task'"), ("half_there", "import nowhere")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "task.py").write_text(text)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path)])
    assert {"two-words", "discs"} <= set(registry.names()) and "two_words" not in registry.names()
    assert registry.find_task("two-words") == "the task"  # type: ignore[comparison-overlap]
    with pytest.raises(InputError, match="no task 'two_words'; choose from"):
        registry.find_task("two_words")
    with pytest.raises(InputError, match=r"half-there needs packages.*half_there.CARD.md"):
        registry.find_task("half-there")


@pytest.mark.parametrize("name", sorted(UNTRAINED))
def test_a_task_without_weights_says_how_to_train_them(name: str) -> None:
    task = registry.find_task(name)
    for variant in (each for each in task.variants if not each.endswith("-complete")):
        command = f"muninn-bench train --task {name} --variant {variant}`"
        with pytest.raises(InputError, match=f"was not found.*{command}"):
            task.begin(variant, Stream.TEST, 0)


def test_a_task_says_what_it_is(described: Task) -> None:
    task = described
    folder = FOLDERS / task.name.replace("-", "_")
    assert (folder / "task.py").is_file()
    card = (folder / "CARD.md").read_text()
    assert f"muninn-bench compare --task {task.name}" in card
    assert task.variants and len(set(task.variants)) == len(task.variants)
    assert task.tolerance > 0.0 and math.isfinite(task.tolerance) and task.unit
    extras = (ROOT / "benchmarks/pyproject.toml").read_text()
    assert not task.extra or f"\n{task.extra} = [" in extras
    with pytest.raises(InputError, match=f"{task.name} has no variant 'none'; choose from"):
        registry.require_variant(task, "none")
    assert registry.require_variant(task, None) == task.variants[0]


def test_an_episode_repeats_and_streams_are_apart(task: Task) -> None:
    variant = task.variants[0]
    places = [(stream, number) for stream in Stream for number in range(3)]
    first, again = (
        [task.begin(variant, *place, seed=5).context() for place in places] for _ in range(2)
    )
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert all(len(context) == 1 for context in first)
    for at, one in enumerate(first):
        assert not any(torch.equal(one, other) for other in first[at + 1 :])


def few(task: Task, variant: str) -> Sample:
    """The variant's planner with every tenth step."""
    planner = task.planner(variant)
    count = max(2, len(planner.sampler) // 10)
    return Alternative.untuned("fewsteps", planner, count).sample(planner)


def test_plans_fit_the_world_and_their_metric_is_finite(task: Task) -> None:
    for variant in task.variants:
        planner, sample = task.planner(variant), few(task, variant)
        metric = resolve(task.metric(variant))[1]
        ends = []
        for _ in range(2):
            episode = task.begin(variant, Stream.TEST, 0)
            context = episode.context()
            plan = sample(context, noise=planner.draw_noise(seeds=[3]))
            assert plan.shape == (1, *planner.shape) and not episode.done
            episode.follow(plan[0])
            ends.append((episode.done, episode.time, plan))
        assert ends[0][:2] == ends[1][:2] and torch.equal(ends[0][2], ends[1][2])
        assert ends[0][0] or task.replans
        assert measure(metric, plan, plan, context).tolist() == [0.0]
        (apart,) = measure(metric, plan, -plan, context)  # actions at a limit hide small changes
        assert 0.0 < apart < math.inf
        if isinstance(task, Drawable):
            assert task.positions(variant, plan).shape == (1, planner.shape[0], 2)


@pytest.mark.parametrize("name", ["discs", "crazyflie", "hopper"])
def test_a_metric_can_be_sent_to_a_worker(name: str) -> None:
    task = registry.find_task(name)
    for variant in task.variants:
        planner, metric = task.planner(variant), resolve(task.metric(variant))[1]
        sent = pickle.loads(pickle.dumps(metric))
        plans = planner.draw_noise(seeds=[1, 2]).initial
        context = context_rows(task, variant, Stream.TEST, 2, seed=0)
        expected = measure(metric, plans, plans.flip(0), context)
        assert measure(sent, plans, plans.flip(0), context).tolist() == expected.tolist()
        assert (metric_name(sent), takes_context(sent)) == (
            metric_name(metric), takes_context(metric),
        )  # fmt: skip


def test_an_episode_that_is_over_has_a_result(task: Task) -> None:
    variant = task.variants[-1]
    planner, sample = task.planner(variant), few(task, variant)
    episode = task.begin(variant, Stream.TEST, 1)
    calls = 0
    while not episode.done:
        noise = planner.draw_noise(seeds=[calls])
        episode.follow(sample(episode.context(), noise=noise)[0])
        calls += 1
        assert calls <= 1000
    result = episode.result()
    assert result.success is not None or result.score is not None
    assert all(np.isfinite(list(result.figures.values())))
    assert task.replans or calls == 1


def test_abilities_keep_their_promises(described: Task, tmp_path: Path) -> None:
    task = described
    if isinstance(task, Timed):
        platform = task.platform(task.variants[0])
        assert platform.period > 0.0 and platform.tolerance > 0.0
    if isinstance(task, Trainable):
        settings = task.training(task.variants[0], tmp_path)
        assert settings.out == tmp_path and settings.minutes > 0.0
