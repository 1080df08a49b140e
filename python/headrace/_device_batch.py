"""A batch of any form with its tensors elsewhere."""

from __future__ import annotations

from typing import Any, Callable

import torch

from ._state import map_tensors
from .batch import Batch, RaggedTensor


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """Its tensors, in the order in which with_tensors() takes them."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    _changed(note, batch)
    return found


def with_tensors(batch: Any, tensors: list[torch.Tensor]) -> Any:
    """The same batch with these in the places of its own."""
    rest = iter(tensors)
    return _changed(lambda _: next(rest), batch)


def moved(batch: Any, device: str) -> Any:
    """The same batch with its tensors on that device; waits for the copies."""
    return _changed(lambda tensor: tensor.to(device), batch)


def _changed(change: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """With all tensors changed, those of ragged ones and those that say which samples have a field too."""
    def ragged(field: RaggedTensor) -> RaggedTensor:
        return RaggedTensor(*(None if tensor is None else change(tensor) for tensor in (field.values, field.offsets, field.shapes)))

    if not isinstance(batch, Batch):
        return map_tensors(change, batch, ragged)
    fields = {name: map_tensors(change, field, ragged) for name, field in batch.items()}
    present = {name: change(there) for name in batch.keys() if (there := batch.present(name)) is not None}
    return Batch(fields, batch.epoch, batch.index, present)
