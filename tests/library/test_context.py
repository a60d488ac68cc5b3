"""Contexts are nests whose tensors share a batch; anything else passes through."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch

from muninn.context import batch_size, concatenate, copy_into, select, signature, tensors
from muninn.errors import InputError
from muninn.identity.digest import digest

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


class Sealed(Mapping[str, Any]):
    """A mapping that is not made from a dict."""

    def __init__(self, goal: Any) -> None:
        self._goal = goal

    def __getitem__(self, key: str) -> Any:
        return {"goal": self._goal}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(["goal"])

    def __len__(self) -> int:
        return 1


MAPPINGS = [dict, collections.OrderedDict, collections.UserDict, MappingProxyType]


@pytest.mark.parametrize("kind", MAPPINGS)
def test_any_mapping_is_a_nest_and_stays_what_it_is(kind: Any) -> None:
    def batch(value: float) -> Any:
        return kind({"goal": torch.full((2, 1), value), "scene": kind({"map": torch.ones(2)})})

    first, other = batch(0.0), batch(1.0)
    paths = ["context['goal']", "context['scene']['map']"]
    assert [path for path, _ in tensors(first)] == paths
    assert batch_size(first) == 2
    assert digest(first, "c") != digest(other, "c")
    for made in (select(first, torch.tensor([1])), concatenate([first, other])):
        assert type(made) is kind and type(made["scene"]) is kind
    assert concatenate([first, other])["goal"].flatten().tolist() == [0.0, 0.0, 1.0, 1.0]
    assert signature(first) == signature(other)  # not by identity: values are copied in
    assert signature(first) != signature(kind({"goal": torch.zeros(3, 1)}))
    copy_into(first, other)
    assert first["goal"].flatten().tolist() == [1.0, 1.0]


def test_kinds_of_mappings_are_told_apart() -> None:
    """A network may treat them differently."""
    goal = torch.zeros(1, 2)
    signatures = {signature(kind({"goal": goal})) for kind in MAPPINGS}
    assert len(signatures) == len(MAPPINGS)


def test_a_dict_that_is_not_made_from_a_dict_becomes_one() -> None:
    context = collections.defaultdict(list, {"goal": torch.arange(3)})
    chosen = select(context, torch.tensor([2]))
    assert type(chosen) is dict
    assert chosen["goal"].tolist() == [2]


def test_a_mapping_that_cannot_be_made_anew_is_refused_by_name() -> None:
    context = {"scene": Sealed(torch.arange(3))}
    assert batch_size(context) == 3
    assert select(context, slice(None)) is context
    for change in (lambda: select(context, torch.tensor([0])), lambda: concatenate([context] * 2)):
        with pytest.raises(InputError, match=r"mapping of type Sealed.*pass a dict"):
            change()


def test_a_mapping_without_tensors_is_shared_by_all_rows() -> None:
    settings = Sealed({"speed": 2.0})
    context = {"goal": torch.arange(3), "settings": settings}
    assert select(context, torch.tensor([0]))["settings"] is settings
    assert concatenate([context, context])["settings"] is settings
    assert signature(settings) == signature(Sealed({"speed": 2.0}))
    assert signature(settings) != signature(Sealed({"speed": 3.0}))


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
    base = digest(nest(), "c")
    assert base == digest(nest(), "c")
    changed = nest()
    changed["goal"] = torch.arange(6.0).view(3, 2) + 1e-3
    renamed = {("target" if key == "goal" else key): value for key, value in nest().items()}
    reshaped, retyped = nest(), nest()
    reshaped["goal"] = torch.arange(6.0).view(3, 2, 1)
    retyped["goal"] = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    others = [digest(other, "c") for other in (changed, renamed, reshaped, retyped, None)]
    assert len({base, *others}) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_digest_reads_every_dtype_and_layout(dtype: torch.dtype) -> None:
    values = torch.arange(12).view(3, 4).to(dtype)
    assert digest(values, "c") == digest(values.clone(), "c")
    assert digest(values.T, "c") == digest(values.T.contiguous(), "c")
    other = ~values if dtype == torch.bool else values + 1
    assert digest(values, "c") != digest(other, "c")


def test_tensors_without_a_batch_dimension_are_refused() -> None:
    with pytest.raises(InputError, match=r"context\['a'\] has no batch dimension"):
        batch_size({"a": torch.tensor(1.0)})


def test_tensors_that_disagree_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"context\['b'\] has 3 rows but context\['a'\] has 2"):
        batch_size({"a": torch.zeros(2), "b": torch.zeros(3)})


def test_an_empty_context_is_refused() -> None:
    with pytest.raises(InputError, match="the context is empty"):
        batch_size({"a": torch.zeros(0, 4)})
