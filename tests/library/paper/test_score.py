"""Scores have closed forms, the stated invariances, and no NaN; arithmetic is float32."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from muninn.errors import InputError
from muninn.paper.score import OMEGA, SCORES, cosine, l2, relative_l1


def features(seed: int, rows: int = 4, width: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    current, previous = torch.randn(2, rows, width, generator=generator)
    return current, previous


def test_the_registry_names_the_paper_s_scores() -> None:
    assert list(SCORES.items()) == [("relative_l1", relative_l1), ("cosine", cosine), ("l2", l2)]


def test_closed_forms() -> None:
    previous = torch.tensor([[3.0, -4.0], [1.0, 0.0], [2.0, 2.0]])
    current = torch.tensor([[3.0, 4.0], [0.0, 2.0], [-1.0, -1.0]])
    expected = {
        "relative_l1": [8 / (7 + OMEGA), 3 / (1 + OMEGA), 6 / (4 + OMEGA)],
        "cosine": [1 - (9 - 16) / 25, 1.0, 2.0],
        "l2": [8.0, 5**0.5, 18**0.5],
    }
    for name, score in SCORES.items():
        torch.testing.assert_close(score(current, previous), torch.tensor(expected[name]))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_scores_agree_with_the_definitions_in_float64(seed: int) -> None:
    current, previous = features(seed)
    a, b = current.double(), previous.double()
    definitions = {
        "relative_l1": (a - b).abs().sum(1) / (b.abs().sum(1) + 1e-6),
        "cosine": 1 - (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)),
        "l2": (a - b).square().sum(1).sqrt(),
    }
    for name, score in SCORES.items():
        found = score(current, previous)
        assert found.dtype == torch.float32 and found.shape == (4,)
        torch.testing.assert_close(found.double(), definitions[name], rtol=1e-5, atol=1e-6)


@given(seed=st.integers(0, 10_000), exponent=st.integers(-6, 12))
@settings(max_examples=30)
def test_relative_scores_do_not_see_a_common_scale(seed: int, exponent: int) -> None:
    current, previous = features(seed)
    scale = 2.0**exponent
    for score in (relative_l1, cosine):
        # omega moves relative_l1 by at most omega / ||scaled previous||
        slack = 1e-5 + OMEGA / (scale * float(previous.abs().sum(1).min()))
        torch.testing.assert_close(
            score(scale * current, scale * previous), score(current, previous), rtol=slack, atol=0.0
        )
    torch.testing.assert_close(
        l2(scale * current, scale * previous), scale * l2(current, previous), rtol=1e-6, atol=0.0
    )


def test_cosine_sees_directions_only() -> None:
    current, previous = features(1)
    torch.testing.assert_close(cosine(3.0 * current, 0.1 * previous), cosine(current, previous))


def test_cosine_resolves_small_angles() -> None:
    # 1 - cos(0.0001) = 5e-9, below what float32 holds beside 1
    previous = torch.tensor([[1.0, 0.0]])
    current = torch.tensor([[1.0, 1e-4]])
    torch.testing.assert_close(cosine(current, previous), torch.tensor([5e-9]), rtol=1e-3, atol=0.0)


@pytest.mark.parametrize("name", list(SCORES))
def test_no_change_scores_zero_and_zero_features_are_no_nan(name: str) -> None:
    current, _ = features(2)
    zero = torch.zeros_like(current)
    score = SCORES[name]
    assert torch.equal(score(current, current), torch.zeros(4))
    assert torch.equal(score(zero, zero), torch.zeros(4))
    for pair in ((current, zero), (zero, current)):
        assert torch.isfinite(score(*pair)).all() and (score(*pair) > 0).all()


@pytest.mark.parametrize("name", list(SCORES))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    # sums of these overflow float16
    current, previous = (20_000.0 * part for part in features(3, width=64))
    current, previous = current.to(dtype), previous.to(dtype)
    found = SCORES[name](current, previous)
    assert found.dtype == torch.float32 and torch.isfinite(found).all()
    assert torch.equal(found, SCORES[name](current.float(), previous.float()))


@pytest.mark.parametrize("name", list(SCORES))
def test_each_row_has_its_own_score(name: str) -> None:
    current, previous = features(4, rows=7, width=33)
    alone = [SCORES[name](current[[row]], previous[[row]]) for row in range(7)]
    assert torch.equal(SCORES[name](current, previous), torch.cat(alone))


@pytest.mark.parametrize("name", list(SCORES))
@pytest.mark.parametrize("shapes", [((2, 3), (1, 3)), ((2, 3), (2, 4)), ((3,), (3,))])
def test_features_that_do_not_fit_are_refused(
    name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    with pytest.raises(InputError, match=r"two features of one shape \(batch, width\)"):
        SCORES[name](torch.zeros(shapes[0]), torch.zeros(shapes[1]))
