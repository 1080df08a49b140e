"""Bytes that the tensors of a loop lie in, on the CPU: each storage once, however many tensors share it. Half a microsecond a
tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from ._state import tensors_in
from ._tensors import storages
from .batch import Batch


def batch_bytes(batch: Any) -> int:
    """0 for a headrace.Batch, whose Loader counts it."""
    return 0 if isinstance(batch, Batch) else _new_bytes(tensors_in(batch), set())


def object_bytes(models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> tuple[int, int, int | None]:
    """Of parameters with buffers, of their gradients, and of the optimizers' state, which is None where there is no optimizer. A
    storage counts in the first of these that has it."""
    held = [*chain.from_iterable(chain(model.parameters(), model.buffers()) for model in models),
            *chain.from_iterable(group["params"] for optimizer in optimizers for group in optimizer.param_groups)]
    known: set[int] = set()
    values = _new_bytes(held, known)
    gradients = _new_bytes((tensor.grad for tensor in held if tensor.is_leaf and tensor.grad is not None), known)
    states = [list(optimizer.state.values()) for optimizer in optimizers]
    return values, gradients, _new_bytes(tensors_in(states), known) if optimizers else None


def _new_bytes(tensors: Iterable[torch.Tensor], known: set[int]) -> int:
    """Of the storages whose addresses are not in `known`, which has them afterwards."""
    total = 0
    for address, storage in storages(tensor for tensor in tensors if tensor.is_cpu):
        if address not in known:
            known.add(address)
            total += storage.nbytes()
    return total
