"""Batches of every form taken apart into tensors and put together of others, as a step on a device does it."""

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import headrace as hr
import pytest
import torch
from headrace._device_batch import moved, tensors_of, with_tensors
from headrace._state import same_values, tensors_in


class Pair(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Record:
    image: torch.Tensor
    name: str
    extra: dict[str, torch.Tensor]


def numbers(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loaders_batch(seed: int) -> hr.Batch:
    return hr.Batch({"image": numbers(seed, 3, 2), "labels": torch.arange(3) + seed, "words": list("abc"), "valid": torch.ones(3)},
                    epoch=1, index=seed)


def ragged(seed: int) -> hr.RaggedTensor:
    """Of as many values for each seed, which the samples share out otherwise."""
    return hr.RaggedTensor(numbers(seed, 6), torch.tensor([0, 1 + seed % 3, 4, 6]))


FORMS: dict[str, Callable[[int], Any]] = {
    "tensor": lambda seed: numbers(seed, 3, 2),
    "tuple": lambda seed: (numbers(seed, 3, 2), torch.arange(3) + seed),
    "namedtuple": lambda seed: Pair(numbers(seed, 3, 2), torch.arange(3) + seed),
    "list": lambda seed: [numbers(seed, 3, 2), torch.arange(3) + seed],
    "dict": lambda seed: {"x": numbers(seed, 3, 2), "y": torch.arange(3) + seed},
    "ordered dict": lambda seed: collections.OrderedDict(y=torch.arange(3) + seed, x=numbers(seed, 3, 2)),
    "dataclass": lambda seed: Record(numbers(seed, 3, 2), "a", {"more": torch.arange(3) + seed}),
    "nested": lambda seed: ([numbers(seed, 3, 2), {"y": (torch.arange(3) + seed,)}], "text", 7),
    "loader's": loaders_batch,
}
PLAIN = ["tensor", "tuple", "list", "dict"]


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_is_itself_again_of_its_own_tensors(form):
    batch = FORMS[form](0)
    again = with_tensors(batch, tensors_of(batch))
    assert type(again) is type(batch) and same_values(again, batch)
    assert all(one is other for one, other in zip(tensors_of(again), tensors_of(batch), strict=True))
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        assert again._fields == batch._fields


@pytest.mark.parametrize("form", FORMS)
def test_the_tensors_of_another_batch_of_the_form_make_that_batch(form):
    batch, other = FORMS[form](0), FORMS[form](1)
    before = [tensor.clone() for tensor in tensors_in(batch)]
    assert not same_values(batch, other)
    assert same_values(with_tensors(batch, tensors_of(other)), other)
    assert all(torch.equal(tensor, was) for tensor, was in zip(tensors_in(batch), before, strict=True)), "it stays as it was"


def test_all_that_samples_of_unequal_shapes_are_told_by_goes_along():
    """A captured step keeps of its batch what is not among the tensors: offsets of another batch would be wrong ones."""
    batch, other = [hr.Batch({"points": ragged(seed), "labels": torch.arange(3)}, present={"points": torch.tensor([1, seed, 1])})
                    for seed in (0, 1)]
    made = with_tensors(batch, tensors_of(other))
    assert made["points"].offsets.tolist() == other["points"].offsets.tolist() != batch["points"].offsets.tolist()
    assert made.present("points").tolist() == [1, 1, 1]
    assert same_values(made, other)
    sided = hr.RaggedTensor(torch.arange(4), torch.tensor([0, 2, 2, 4]), torch.tensor([[1, 2], [0, 0], [2, 1]]))
    turned = hr.RaggedTensor(torch.arange(4), torch.tensor([0, 2, 2, 4]), torch.tensor([[2, 1], [0, 0], [1, 2]]))
    assert with_tensors(sided, tensors_of(turned)).shapes.tolist() == turned.shapes.tolist()


@pytest.mark.parametrize("form", PLAIN)
def test_tensors_of_a_plain_batch_are_in_the_order_of_its_items(form):
    """In which the engine takes them, which looks into these forms itself."""
    batch = FORMS[form](0)
    items = list(batch.values()) if form == "dict" else [batch] if form == "tensor" else list(batch)
    assert all(one is other for one, other in zip(tensors_of(batch), items, strict=True))


def test_fields_of_a_loaders_batch_are_in_their_order_and_the_rest_stays():
    batch = loaders_batch(2)
    assert all(one is batch[name] for one, name in zip(tensors_of(batch), ("image", "labels", "valid"), strict=True))
    again = with_tensors(batch, [torch.zeros(3, 2), torch.zeros(3), torch.zeros(3)])
    assert (again.epoch, again.index, again["words"]) == (1, 2, list("abc"))
    assert again["valid"].sum() == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_that_is_moved_keeps_its_form(form):
    batch = FORMS[form](0)
    there = moved(batch, "meta")
    assert type(there) is type(batch)
    assert [tensor.shape for tensor in tensors_in(there)] == [tensor.shape for tensor in tensors_in(batch)]
    assert {tensor.device.type for tensor in tensors_of(there)} == {"meta"}
    assert same_values(moved(batch, "cpu"), batch)
