"""Contexts are nests whose tensors share a batch; anything else passes through."""

from __future__ import annotations

import collections

import pytest
import torch

from muninn.context import batch_size, digest, select, tensors
from muninn.errors import InputError

Scene = collections.namedtuple("Scene", ["start", "goal"])


def nest() -> dict[str, object]:
    return {
        "goal": torch.arange(6.0).view(3, 2),
        "views": [torch.arange(3), (torch.ones(3, 1, 4), "label")],
        "scale": 2.5,
        "none": None,
    }


def test_select_takes_the_same_rows_of_every_tensor_and_keeps_the_rest() -> None:
    chosen = select(nest(), torch.tensor([2, 0]))
    assert torch.equal(chosen["goal"], torch.tensor([[4.0, 5.0], [0.0, 1.0]]))
    assert torch.equal(chosen["views"][0], torch.tensor([2, 0]))
    assert chosen["views"][1][0].shape == (2, 1, 4)
    assert chosen["views"][1][1] == "label"
    assert chosen["scale"] == 2.5 and chosen["none"] is None
    assert isinstance(chosen["views"], list) and isinstance(chosen["views"][1], tuple)


def test_selecting_everything_copies_nothing() -> None:
    context = nest()
    assert select(context, slice(None)) is context
    assert select(None, torch.tensor([0])) is None


def test_select_leaves_the_original_nest_alone() -> None:
    context = nest()
    select(context, torch.tensor([1]))["goal"].fill_(9.0)
    assert torch.equal(context["goal"], nest()["goal"])


def test_named_tuples_stay_named_tuples() -> None:
    chosen = select(Scene(torch.arange(3), torch.arange(3) + 10), torch.tensor([1]))
    assert isinstance(chosen, Scene)
    assert chosen.start.tolist() == [1] and chosen.goal.tolist() == [11]


def test_every_tensor_has_a_readable_path() -> None:
    assert [path for path, _ in tensors(nest())] == [
        "context['goal']",
        "context['views'][0]",
        "context['views'][1][0]",
    ]


def test_batch_size_is_that_of_every_tensor_or_none_without_tensors() -> None:
    assert batch_size(nest()) == 3
    assert batch_size(torch.zeros(5, 2)) == 5
    assert batch_size(None) is None
    assert batch_size({"prompt": "go"}) is None


def test_digest_depends_on_values_shapes_dtypes_and_places() -> None:
    base = digest(nest())
    assert base == digest(nest())
    changed = nest()
    changed["goal"] = torch.arange(6.0).view(3, 2) + 1e-3
    renamed = {("target" if key == "goal" else key): value for key, value in nest().items()}
    reshaped, retyped = nest(), nest()
    reshaped["goal"] = torch.arange(6.0).view(3, 2, 1)
    retyped["goal"] = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    others = [digest(other) for other in (changed, renamed, reshaped, retyped, None)]
    assert len({base, *others}) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_digest_reads_every_dtype_and_layout(dtype: torch.dtype) -> None:
    values = torch.arange(12).view(3, 4).to(dtype)
    assert digest(values) == digest(values.clone())
    assert digest(values.T) == digest(values.T.contiguous())
    assert digest(values) != digest(~values if dtype == torch.bool else values + 1)


def test_tensors_without_a_batch_dimension_are_refused() -> None:
    with pytest.raises(InputError, match=r"context\['a'\] has no batch dimension"):
        batch_size({"a": torch.tensor(1.0)})


def test_tensors_that_disagree_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"context\['b'\] has 3 rows but context\['a'\] has 2"):
        batch_size({"a": torch.zeros(2), "b": torch.zeros(3)})


def test_an_empty_context_is_refused() -> None:
    with pytest.raises(InputError, match="the context is empty"):
        batch_size({"a": torch.zeros(0, 4)})
