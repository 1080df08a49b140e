"""Tensors as the native half reads them, which knows none of torch's types: flat, dense, on the CPU; and states compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from ._gradient_distance import Squares, squares

_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)

NamedTensors = Sequence[tuple[str, torch.Tensor]]


def flat(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All numbers in row-major order, whatever the strides, one behind the other. The same memory where they lie so already."""
    whole = tensor.detach().to("cpu", dtype).resolve_conj().resolve_neg().contiguous()
    return whole.as_strided((whole.numel(),), (1,))  # A tensor of one number may have any stride, which a view would keep.


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same of its bytes, as uint8."""
    return flat(tensor, tensor.dtype).view(torch.uint8)


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors that it is made of: itself, or the indices and values of a sparse one."""
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in _ROWS:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in _COLUMNS:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def storages(tensors: Iterable[torch.Tensor]) -> Iterator[tuple[int, torch.UntypedStorage]]:
    """The memory that they lie in, with its address; of tensors that share it once for each."""
    for tensor in tensors:
        for part in dense_parts(tensor):
            try:
                storage = part.untyped_storage()
                address = storage.data_ptr()
            # A subclass around other tensors has no memory of its own, one that is not made yet (nn.LazyLinear) none.
            except (RuntimeError, TypeError, ValueError):
                continue
            if address != 0:
                yield address, storage


def state_difference(a: NamedTensors, b: NamedTensors) -> float:
    """The largest relative L2 difference of two states with the same names. What follows the last "/" of a name is one kind of
    optimizer state ("conv1.weight/exp_avg"), and the tensors of a kind are one vector; those without "/" are the model's, and
    one more. Infinite where a kind, a tensor or a shape is of one state alone."""
    kinds, others = _by_kind(a), _by_kind(b)
    if kinds.keys() != others.keys():
        return math.inf
    return max((_relative_difference(tensors, others[kind]) for kind, tensors in kinds.items()), default=0.0)


def _by_kind(state: NamedTensors) -> dict[str, list[torch.Tensor]]:
    kinds: dict[str, list[torch.Tensor]] = {}
    for name, tensor in state:
        _, slash, key = name.rpartition("/")
        kinds.setdefault(slash + key if slash else "", []).append(tensor)
    return kinds


def _relative_difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    if _shapes(a) != _shapes(b):
        return math.inf
    return sum((squares(_exact(reference), _exact(tensor)) for tensor, reference in zip(a, b)), Squares()).relative_l2


def _shapes(tensors: Iterable[torch.Tensor]) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors]


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """In float64, where small differences of float32 numbers are no denormal ones, which a processor may be told to drop."""
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
