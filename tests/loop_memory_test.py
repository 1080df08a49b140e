"""Bytes of what a loop's objects hold: each storage once, on the CPU alone."""

import collections
import dataclasses

import pytest
import torch
from headrace._loop_memory import batch_bytes, object_bytes
from headrace.batch import Batch, RaggedTensor
from torch import nn


class Around(torch.Tensor):
    """A tensor around another one, without memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, function, kinds, args=(), kwargs=None):
        raise NotImplementedError(function)


@dataclasses.dataclass
class Record:
    images: torch.Tensor
    size: int = 3


WIDE = torch.zeros(8, 16)  # 512 bytes.
VALUES = [2.0, 3.0]  # Of a sparse tensor.
BATCHES = {
    "a tensor": (torch.zeros(3, 4), 48),
    "a view": (WIDE[:, :4], 512),
    "two views of one": ((WIDE[:4], WIDE[4:], WIDE), 512),
    "many": ([torch.zeros(2) for _ in range(20)], 160),
    "mappings and lists": ({"a": [torch.zeros(2)], "b": collections.UserDict(c=torch.zeros(3)), "d": "text", "e": None}, 20),
    "a dataclass": ([Record(torch.zeros(5))], 20),
    "a ragged tensor": (RaggedTensor(torch.zeros(5, 2), torch.tensor([0, 2, 5])), 40 + 24),
    "nothing": ((torch.empty(0, 3), 5), 0),
    "no dimension": (torch.tensor(1.0), 4),
    "another type": (torch.zeros(3, dtype=torch.bfloat16), 6),
    "sparse": (torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.tensor(VALUES)), 2 * 2 * 8 + 2 * 4),
    "sparse rows": (torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), torch.tensor(VALUES)),
                    3 * 8 + 2 * 8 + 2 * 4),
    "on no device": (torch.zeros(3, device="meta"), 0),
    "around another": (Around(torch.zeros(3)), 0),
    "a Loader's": (Batch({"image": torch.zeros(3)}, 0, 0), 0),
    "no tensor": ("text", 0),
}


@pytest.mark.parametrize("batch, size", BATCHES.values(), ids=BATCHES)
def test_a_batch_is_what_its_storages_hold(batch, size):
    assert batch_bytes(batch) == size


def test_objects_are_told_by_class_and_what_several_hold_counts_once():
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 4), nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8))
    model[2].weight = model[0].weight  # Tied.
    model[3].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    parameters, buffers = (4 * 8 + 8 * 4 + 4 + 8 + 8) * 4, (8 + 8) * 4 + 8
    assert object_bytes([model], [optimizer]) == (parameters + buffers, 0, 0)
    model(torch.randn(6, 4)).sum().backward()
    optimizer.step()
    trained = parameters - 8 * 4
    state = 2 * trained + 4 * 4  # And the number of steps of each.
    assert object_bytes([model], [optimizer]) == (parameters + buffers, trained, state)
    assert object_bytes([model, model[1]], [optimizer, optimizer]) == (parameters + buffers, trained, state)
    assert object_bytes([model], []) == (parameters + buffers, trained, None)
    assert object_bytes([], [optimizer]) == (parameters, trained, state)
    assert object_bytes([], []) == (0, 0, None)


def test_sparse_gradients_and_state_of_any_form_are_counted():
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([1, 2, 2])).square().sum().backward()
    optimizer.state[model.weight] = {"directions": [torch.zeros(4), torch.zeros(4)], "step": 3}
    assert object_bytes([model], [optimizer]) == (160, 3 * 8 + 3 * 4 * 4, 32)


def test_a_buffer_that_is_no_leaf_is_counted_and_asked_for_no_gradient(recwarn):
    model = nn.Linear(4, 2, bias=False)
    model.register_buffer("doubled", model.weight * 2)
    assert object_bytes([model], []) == (64, 0, None)
    assert len(recwarn) == 0
