"""Which memory autograd keeps for a backward: storages, each counted once, and none of them held by the count."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class SavedStorages:
    """A set of storages with their bytes. It refers to them weakly: the memory of one goes when its last tensor does, and its address
    is not taken for another's. Tensors without a storage of their own (sparse ones) count as nothing. Not thread-safe."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self.sizes: dict[StorageWeakRef, int] = {}
        for tensor in tensors:
            self.add(tensor)

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        self.sizes.setdefault(StorageWeakRef(storage), storage.nbytes())

    def without(self, others: SavedStorages) -> dict[StorageWeakRef, int]:
        return {storage: size for storage, size in self.sizes.items() if storage not in others.sizes}
