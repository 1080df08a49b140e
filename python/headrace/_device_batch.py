"""A batch of any form with its tensors elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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


def structure_of(batch: Any) -> str:
    """Which places its tensors have: types and keys, without what else it holds."""
    if isinstance(batch, torch.Tensor):
        return "T"
    name = type(batch).__name__
    if isinstance(batch, RaggedTensor):
        return f"{name}({'' if batch.shapes is None else 'shapes'})"
    if isinstance(batch, Batch):
        fields = " ".join(f"{key}={structure_of(field)}" for key, field in batch.items())
        return f"{name}({fields}; {' '.join(key for key in batch.keys() if batch.present(key) is not None)})"
    if isinstance(batch, Mapping):
        return f"{name}({' '.join(f'{key}={structure_of(item)}' for key, item in batch.items())})"
    if isinstance(batch, (list, tuple)):
        return f"{name}({' '.join(map(structure_of, batch))})"
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return f"{name}({' '.join(structure_of(getattr(batch, field.name, None)) for field in dataclasses.fields(batch))})"
    return name


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
