"""Algorithm 2: the ghost chain against loops written out again, and labels known in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
import torch
from torch import Tensor

from analytic import Counting, PolynomialDenoiser, mixture_planner, polynomial_planner
from muninn.certify.paired import call_seed
from muninn.errors import CalibrationError, DenoiserError, InputError
from muninn.model.planner import Planner
from muninn.model.sampler import Sampler
from muninn.model.solvers import ddim, ddpm, euler
from muninn.paper.epsilon import eligible_steps, used_epsilon
from muninn.paper.ghost import (
    GhostPairs,
    anchor_steps,
    collect_pairs,
    full_chain,
    ghost_chain,
)
from muninn.paper.split import Probe
from runtime_cases import NAMES, SCHEDULE, SHAPE, STEPS, contexts, pin_start, pinned_copy, samplers

BAND = eligible_steps(STEPS)


@dataclass(eq=False)
class StateSplit:
    """A split whose feature is the state itself; remembers what it was asked."""

    states: list[Tensor] = field(default_factory=list)
    cores: int = 0

    def stem(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        self.states.append(x.clone())
        return x.flatten(1).float()

    def core(self, hidden: Any, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        self.cores += 1
        return x

    def feature(self, hidden: Any, x: Tensor) -> Tensor:
        result: Tensor = hidden
        return result


class TimeSplit(StateSplit):
    """A split whose feature is the timestep and its square, whatever the state."""

    def stem(self, x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        super().stem(x, timestep, context)
        return torch.stack([timestep.float(), -(timestep.float() ** 2)], dim=1)


def toy_planner(name: str = "ddim", **fields: Any) -> Planner:
    return mixture_planner(samplers()[name], SHAPE, **fields)


# -- the full chain ----------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", NAMES)
def test_the_full_chain_is_the_plain_sampler_bit_by_bit(name: str, when: Any) -> None:
    planner = toy_planner(name, condition=pin_start, condition_when=when)
    context, noise = contexts(3), planner.draw_noise(seeds=[1, 2, 3])
    kept, trajectory = full_chain(planner, context, noise)
    assert torch.equal(trajectory, planner.sample(context, noise=noise))
    assert len(kept) == STEPS


def test_the_full_chain_keeps_what_each_step_used_at_the_state_it_was_made() -> None:
    planner = toy_planner("clipped ddim", condition=pinned_copy)
    context, noise = contexts(2), planner.draw_noise(seeds=[1, 2])
    kept, _ = full_chain(planner, context, noise)
    x = planner.start(noise, context)
    for step, epsilon in enumerate(kept):
        prediction = planner.denoiser(x, planner.timestep(step, 2), context)
        assert torch.equal(epsilon, used_epsilon(planner.sampler, x, prediction, step))
        x = planner.advance(x, prediction, step, None, context)


def test_a_network_that_answers_in_one_buffer_does_not_overwrite_what_was_kept() -> None:
    sampler = ddim(SCHEDULE, STEPS)
    planner = mixture_planner(sampler, SHAPE)
    buffer = torch.empty(2, *SHAPE)

    def reusing(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        return buffer.copy_(planner.denoiser(x, timestep, context))

    noise = planner.draw_noise(seeds=[1, 2])
    own, _ = full_chain(planner, None, noise)
    kept, _ = full_chain(replace(planner, denoiser=reusing), None, noise)
    assert all(torch.equal(one, other) for one, other in zip(own, kept, strict=True))


# -- the ghost chain against a loop written out again --------------------------------------------


def naive_step(sampler: Sampler, x: Any, epsilon: Any, i: int, xi: Any) -> Any:
    """The update of the paper's appendix, from the schedule alone; float64 arrays."""
    bar = SCHEDULE.alpha_bar
    spacing = SCHEDULE.steps // STEPS
    t = (STEPS - 1 - i) * spacing
    now, after = bar[t], (bar[t - spacing] if i < STEPS - 1 else 1.0)
    clean = (x - math.sqrt(1 - now) * epsilon) / math.sqrt(now)
    if sampler.clip is not None:
        clean = np.clip(clean, -sampler.clip, sampler.clip)
        epsilon = (x - math.sqrt(now) * clean) / math.sqrt(1 - now)
    if sampler.name == "ddim":
        return math.sqrt(after) * clean + math.sqrt(1 - after) * epsilon
    alpha = now / after
    mean = (x - (1 - alpha) / math.sqrt(1 - now) * epsilon) / math.sqrt(alpha)
    return mean + (math.sqrt((1 - after) / (1 - now) * (1 - alpha)) * xi if t > 0 else 0.0)


def naive_pairs(planner: Planner, context: Tensor, noise: Any) -> tuple[list[float], list[float]]:
    """Algorithm 2 for one call, in the paper's own t = T..1; scores and errors from t = T - 1."""
    sampler, T = planner.sampler, STEPS
    edge = math.ceil(T / 10)
    initial = noise.initial.numpy()[0]
    xi = {i: draw.numpy()[0] for i, draw in noise.steps.items()}

    def pinned(x: Any) -> Any:
        x = x.copy()
        x[0] = context.numpy()[0]
        return x

    full, x = {}, pinned(initial)
    for t in range(T, 0, -1):
        i = T - t
        p = planner.denoiser(torch.tensor(x)[None], planner.timestep(i, 1), context).numpy()[0]
        if sampler.kind == "sample":
            signal, level = sampler.steps[i].signal, sampler.steps[i].noise
            p = np.clip(p, -sampler.clip, sampler.clip) if sampler.clip else p
            p = (x - signal * p) / level
        full[t] = p
        x = pinned(naive_step(sampler, x, p, i, xi.get(i)))
    scores, errors = [], []
    ghost, cache = pinned(initial), full[T]
    probe = ghost
    ghost = pinned(naive_step(sampler, ghost, full[T], 0, xi.get(0)))
    for t in range(T - 1, 0, -1):
        scores.append(np.abs(ghost - probe).sum() / (np.abs(probe).sum() + 1e-6))
        probe = ghost
        if edge < t <= T - edge:
            errors.append(np.linalg.norm(full[t] - cache) / math.sqrt(initial.size))
        else:
            errors.append(math.nan)
        if t % 4 == 0 or not edge < t <= T - edge:
            used = cache = full[t]
        else:
            used = cache
        ghost = pinned(naive_step(sampler, ghost, used, T - t, xi.get(T - t)))
    return scores, errors


CASES = {
    "ddim, epsilon": ddim(SCHEDULE, STEPS),
    "ddim, x0 clipped": ddim(SCHEDULE, STEPS, kind="sample", clip=0.6),
    "ddpm, epsilon": ddpm(SCHEDULE, STEPS),
    "ddpm, x0 clipped": ddpm(SCHEDULE, STEPS, kind="sample", clip=0.6),
    "ddpm, epsilon clipped": ddpm(SCHEDULE, STEPS, clip=0.6),
}


@pytest.mark.parametrize("case", CASES)
def test_the_ghost_chain_is_algorithm_2_written_out(case: str) -> None:
    planner = mixture_planner(CASES[case], SHAPE, condition=pin_start, dtype=torch.float64)
    context, noise = contexts(1).double(), planner.draw_noise(seeds=[5])
    kept, _ = full_chain(planner, context, noise)
    probes = [Probe(StateSplit())]
    scores, errors = ghost_chain(planner, kept, probes, context, noise, BAND)
    expected_scores, expected_errors = naive_pairs(planner, context, noise)
    assert scores.shape == (1, 1, STEPS) and errors.shape == (1, STEPS)
    assert math.isnan(scores[0, 0, 0]) and math.isnan(errors[0, 0])
    # fp32 features against float64 ones
    np.testing.assert_allclose(scores[0, 0, 1:], expected_scores, rtol=1e-4)
    np.testing.assert_allclose(errors[0, 1:], expected_errors, rtol=1e-8)
    assert np.nanmax(errors) > 1e-3  # the chains do differ: nothing above was vacuous


@pytest.mark.parametrize("case", CASES)
def test_a_ghost_that_anchors_everywhere_is_the_full_chain(case: str) -> None:
    planner = mixture_planner(CASES[case], SHAPE, condition=pin_start, dtype=torch.float64)
    context, noise = contexts(2).double(), planner.draw_noise(seeds=[5, 6])
    seen: list[Tensor] = []

    def watching(x: Tensor, timestep: Tensor, own: Any) -> Tensor:
        seen.append(x.clone())
        return planner.denoiser(x, timestep, own)

    kept, _ = full_chain(replace(planner, denoiser=watching), context, noise)
    split = StateSplit()
    _, errors = ghost_chain(planner, kept, [Probe(split)], context, noise, BAND, stride=1)
    for ghost, full in zip(split.states, seen, strict=True):
        torch.testing.assert_close(ghost, full, rtol=1e-9, atol=1e-9)
    for step in BAND:  # then the cache is one step old
        gap = (kept[step] - kept[step - 1]).flatten(1).norm(dim=1) / math.sqrt(8)
        np.testing.assert_allclose(errors[:, step], gap, rtol=1e-12)


def test_an_anchor_takes_the_full_prediction_not_one_of_its_own_state() -> None:
    """The published flaw: a prediction at the ghost's own state would differ."""
    planner = mixture_planner(CASES["ddim, epsilon"], SHAPE, dtype=torch.float64)
    noise = planner.draw_noise(seeds=[5])
    kept, _ = full_chain(planner, None, noise)
    split = StateSplit()
    ghost_chain(planner, kept, [Probe(split)], None, noise, BAND)
    anchor = max(set(anchor_steps(STEPS, BAND)) & set(BAND))
    ghost = split.states[anchor]
    own = planner.denoiser(ghost, planner.timestep(anchor, 1), None)
    expected = planner.sampler.step(ghost, kept[anchor], anchor)
    torch.testing.assert_close(split.states[anchor + 1], expected)
    assert (own - kept[anchor]).abs().max() > 1e-4
    assert (planner.sampler.step(ghost, own, anchor) - expected).abs().max() > 1e-6


# -- closed forms --------------------------------------------------------------------------------


def linear_planner() -> tuple[Planner, PolynomialDenoiser]:
    """epsilon = c0 + c1 * angle, whatever the state."""
    planner = polynomial_planner(ddim(SCHEDULE, STEPS), 1, SHAPE, dtype=torch.float64)
    assert isinstance(planner.denoiser, PolynomialDenoiser)
    return planner, planner.denoiser


def test_the_label_of_a_linear_epsilon_is_its_slope_times_the_age_of_the_cache() -> None:
    planner, denoiser = linear_planner()
    noise = planner.draw_noise(seeds=[1, 2])
    kept, _ = full_chain(planner, None, noise)
    _, errors = ghost_chain(planner, kept, [Probe(StateSplit())], None, noise, BAND)
    slope = float(denoiser.coefficients[1].norm()) / math.sqrt(4 * 2)
    angle = [math.atan2(step.noise, step.signal) for step in planner.sampler.steps]
    # t = 25 - i: anchors at t = 25, 24, 23 (prefix), 20, 16, 12, 8, 4 and 3, 2, 1 (suffix)
    newest = {3: 2, 4: 2, 5: 2, 6: 5, 9: 5, 10: 9, 13: 9, 14: 13, 20: 17, 21: 17}
    for step, cached in newest.items():
        expected = slope * abs(angle[step] - angle[cached])
        np.testing.assert_allclose(errors[:, step], expected, rtol=1e-12)
    assert np.isnan(np.delete(errors, BAND, axis=1)).all()


def test_the_score_of_a_feature_known_in_closed_form() -> None:
    planner, _ = linear_planner()
    noise = planner.draw_noise(seeds=[1, 2])
    kept, _ = full_chain(planner, None, noise)
    scores, _ = ghost_chain(planner, kept, [Probe(TimeSplit())], None, noise, BAND)
    told = [step.timestep for step in planner.sampler.steps]
    for step in (1, 8, 24):
        now, before = told[step], told[step - 1]
        change = abs(now - before) + abs(now**2 - before**2)
        np.testing.assert_allclose(scores[0, :, step], change / (before + before**2), rtol=1e-6)
    assert np.isnan(scores[:, :, 0]).all() and np.isfinite(scores[:, :, 1:]).all()


def test_a_constant_epsilon_is_reused_without_error() -> None:
    planner = polynomial_planner(ddim(SCHEDULE, STEPS), 0, SHAPE)
    pairs = collect_pairs(planner, [Probe(StateSplit())], 4)[0]
    assert (pairs.errors[:, BAND] == 0.0).all()
    assert (pairs.scores[:, BAND] > 0.0).all()


@pytest.mark.parametrize("steps", [100, 20, 10, 25, 60, 150, 16])
def test_anchors_are_the_papers_set(steps: int) -> None:
    eligible, edge = eligible_steps(steps), math.ceil(steps / 10)
    inside = {t for t in range(1, steps + 1) if edge < t <= steps - edge}
    expected = {t for t in range(1, steps + 1) if t % 4 == 0 or t not in inside}
    assert {steps - i for i in anchor_steps(steps, eligible)} == expected


# -- cost ----------------------------------------------------------------------------------------


def test_the_ghost_chain_runs_stems_and_never_the_network() -> None:
    planner = toy_planner("ddpm")
    counting = Counting(planner.denoiser)
    planner = replace(planner, denoiser=counting)
    context, noise = contexts(3), planner.draw_noise(seeds=[1, 2, 3])
    kept, _ = full_chain(planner, context, noise)
    assert counting.rows == [3] * STEPS
    one, other = StateSplit(), TimeSplit()
    probes = [Probe(one), Probe(one, "cosine"), Probe(other), Probe(one, "l2")]
    scores, _ = ghost_chain(planner, kept, probes, context, noise, BAND)
    assert len(counting.rows) == STEPS
    assert (one.cores, other.cores) == (0, 0)
    assert (len(one.states), len(other.states)) == (STEPS, STEPS)  # probes share a stem
    for place, probe in enumerate(probes):
        alone, _ = ghost_chain(planner, kept, [probe], context, noise, BAND)
        np.testing.assert_array_equal(alone[0], scores[place])
    assert len({scores[place, 0, 5] for place in range(4)}) == 4


# -- many calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ddim", "ddpm", "clipped ddpm", "stochastic ddim"])
def test_a_batch_equals_the_loop_over_its_calls(name: str) -> None:
    planner = toy_planner(name, condition=pin_start, dtype=torch.float64)
    calls, probes = contexts(7).double(), [Probe(StateSplit()), Probe(TimeSplit(), "l2")]
    whole = collect_pairs(planner, probes, calls, seed=3, batch_size=7)
    for size in (1, 3):
        parts = collect_pairs(planner, probes, calls, seed=3, batch_size=size)
        for one, other in zip(whole, parts, strict=True):
            assert one.scores.shape == (7, STEPS)
            np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5)
            np.testing.assert_allclose(one.errors, other.errors, rtol=1e-9)
    noise = planner.draw_noise(seeds=[call_seed(3, 4)])
    kept, _ = full_chain(planner, calls[4:5], noise)
    scores, errors = ghost_chain(planner, kept, probes, calls[4:5], noise, BAND)
    np.testing.assert_allclose(whole[1].scores[4], scores[1, 0], rtol=1e-5)
    np.testing.assert_allclose(whole[0].errors[4], errors[0], rtol=1e-9)


def test_collecting_tells_its_progress_and_follows_its_seed() -> None:
    planner, probes = toy_planner(), [Probe(StateSplit())]
    told: list[tuple[str, int]] = []
    done: list[int] = []

    def task(description: str, total: int) -> Any:
        told.append((description, total))
        return done.append

    first = collect_pairs(planner, probes, 5, batch_size=2, task=task)[0]
    assert told == [("ghost chains", 5)] and done == [2, 2, 1]
    again = collect_pairs(planner, probes, 5, batch_size=2)[0]
    other = collect_pairs(planner, probes, 5, batch_size=2, seed=1)[0]
    np.testing.assert_array_equal(first.errors, again.errors)
    assert not np.array_equal(first.errors[:, BAND], other.errors[:, BAND])
    assert first.eligible == BAND
    narrow = collect_pairs(planner, probes, 5, eligible=[7, 8, 9], batch_size=5)[0]
    assert narrow.eligible == (7, 8, 9) and np.isfinite(narrow.errors).sum() == 15


# -- the pairs -----------------------------------------------------------------------------------


def toy_pairs(calls: int = 6) -> GhostPairs:
    return collect_pairs(toy_planner(), [Probe(StateSplit())], calls)[0]


def test_pairs_survive_their_file(tmp_path: Path) -> None:
    pairs = toy_pairs()
    loaded = GhostPairs.load(pairs.save(tmp_path / "new" / "pairs.safetensors"))
    np.testing.assert_array_equal(loaded.scores, pairs.scores)
    np.testing.assert_array_equal(loaded.errors, pairs.errors)
    assert loaded.eligible == pairs.eligible and loaded.scores.dtype == np.float64
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["pairs.safetensors"]


def test_taking_fewer_calls_takes_the_first() -> None:
    pairs = toy_pairs()
    few = pairs.take(2)
    assert few.calls == 2 and few.eligible == pairs.eligible
    np.testing.assert_array_equal(few.errors, pairs.errors[:2])
    np.testing.assert_array_equal(few.scores, pairs.scores[:2])
    for count in (0, 7):
        with pytest.raises(InputError, match="between 1 and 6"):
            pairs.take(count)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        GhostPairs.load(tmp_path / "none")
    other = tmp_path / "other.safetensors"
    safetensors.numpy.save_file({"scores": np.zeros((2, 3))}, other)
    with pytest.raises(InputError, match="something else"):
        GhostPairs.load(other)
    whole = toy_pairs().save(tmp_path / "pairs").read_bytes()
    for content in (b"", b"no tensors here", whole[:-8]):
        other.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            GhostPairs.load(other)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        toy_pairs().save(tmp_path / "file" / "pairs")


def test_pairs_that_do_not_fit_or_are_not_finite_are_refused() -> None:
    pairs = toy_pairs()
    with pytest.raises(InputError, match="both be"):
        GhostPairs(pairs.scores[:2], pairs.errors, pairs.eligible)
    with pytest.raises(InputError, match="between 1 and 24"):
        GhostPairs(pairs.scores, pairs.errors, (0, 1))
    for name in ("scores", "errors"):
        table: npt.NDArray[np.float64] = getattr(pairs, name).copy()
        table[3, 9] = np.nan
        what = name.removesuffix("s")
        with pytest.raises(CalibrationError, match=f"{what} of call 3 at step 9 is nan"):
            replace(pairs, **{name: table})


# -- failure -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_prediction_that_is_not_finite_is_an_error_even_where_clipping_would_hide_it(
    bad: float,
) -> None:
    planner = toy_planner("clipped ddpm")

    def broken(x: Tensor, timestep: Tensor, context: Any) -> Tensor:
        prediction = planner.denoiser(x, timestep, context)
        if float(timestep[0]) == planner.sampler.steps[11].timestep:
            prediction[1, 2, 0] = bad
        return prediction

    with pytest.raises(DenoiserError, match=r"NaN or Inf at step 11 \(rows \[1\]\)"):
        collect_pairs(replace(planner, denoiser=broken), [Probe(StateSplit())], 3)


def test_a_probe_that_is_not_finite_is_an_error() -> None:
    class Broken(StateSplit):
        def feature(self, hidden: Any, x: Tensor) -> Tensor:
            return torch.full_like(hidden, math.nan) if len(self.states) == 9 else hidden

    with pytest.raises(DenoiserError, match="relative_l1 score is NaN or Inf at step 8"):
        collect_pairs(toy_planner(), [Probe(StateSplit()), Probe(Broken())], 3)


def test_arguments_that_do_not_fit_are_refused() -> None:
    planner, probe = toy_planner(), Probe(StateSplit())
    noise = planner.draw_noise(seeds=[1])
    kept, _ = full_chain(planner, None, noise)
    with pytest.raises(InputError, match="24 steps but the sampler has 25"):
        ghost_chain(planner, kept[1:], [probe], None, noise, BAND)
    with pytest.raises(InputError, match="probes is empty"):
        ghost_chain(planner, kept, [], None, noise, BAND)
    with pytest.raises(InputError, match="stride"):
        ghost_chain(planner, kept, [probe], None, noise, BAND, stride=0)
    with pytest.raises(InputError, match="between 1 and 24"):
        ghost_chain(planner, kept, [probe], None, noise, (0, 3))
    with pytest.raises(InputError, match="holds no call"):
        collect_pairs(planner, [probe], 0)
    with pytest.raises(InputError, match="batch_size"):
        collect_pairs(planner, [probe], 3, batch_size=0)
    flow = mixture_planner(euler(STEPS), SHAPE)
    with pytest.raises(InputError, match="pure noise"):
        collect_pairs(flow, [probe], 2)
