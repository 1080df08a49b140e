"""A batch of any form, cut along the first axis of its tensors, or made longer by repeating its samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ._state import fields_in, map_tensors
from .batch import Batch, RaggedTensor
from .errors import InvalidArgumentError

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # By the number of axes.


def samples_of(batch: Any) -> int:
    """The length of the first axis, which all that is cut has in common. InvalidArgumentError: there is none."""
    lengths = set(_lengths_in(batch))
    if len(lengths) != 1:
        raise InvalidArgumentError("micro-batches: wanted a batch whose tensors have one first dimension in common, found "
                                   f"{' and '.join(map(str, sorted(lengths))) or 'no tensor'}")
    return lengths.pop()


def part_of(batch: Any, begin: int, end: int) -> Any:
    """Samples begin to end, over the same memory. Of a Loader's batch every field is cut, texts and ragged ones too. Elsewhere what
    is no tensor, or a tensor of one number, goes with every part. InvalidArgumentError as samples_of()."""
    samples_of(batch)
    return _part_of(batch, slice(begin, end))


def parts_of(batch: Any, count: int) -> list[tuple[Any, float]]:
    """The batch in `count` parts, or as many as it has samples, each with its share of the samples; cut as part_of() does."""
    samples = samples_of(batch)
    parts, begin = [], 0
    for place in range(min(count, samples)):
        end = samples * (place + 1) // min(count, samples)
        parts.append((_part_of(batch, slice(begin, end)), (end - begin) / samples))
        begin = end
    return parts


def repeated(batch: Any, samples: int) -> Any:
    """A batch of that many samples: its first ones, or all of them and then again from the front. Copies, whatever the number, so that
    each size takes memory of its own. InvalidArgumentError as samples_of(), or of no samples at all."""
    found = samples_of(batch)
    if found == 0:
        raise InvalidArgumentError("micro-batches: wanted a batch with samples, found one of 0")
    order = torch.arange(samples) % found
    if not isinstance(batch, Batch):
        return map_tensors(lambda tensor: _taken(tensor, order) if tensor.dim() > 0 else tensor, batch,
                           lambda ragged: _ragged_taken(ragged, order))
    present = {name: _taken(there, order) for name in batch.keys() if (there := batch.present(name)) is not None}
    return Batch({name: _field_taken(field, order) for name, field in batch.items()}, batch.epoch, batch.index, present)


def is_batch(given: Any) -> bool:
    """Whether it is one batch and no loader: a tensor, a mapping, a tuple, a record of a dataclass, or a list with a tensor in it, as
    a DataLoader makes it. A list of anything else holds batches."""
    if isinstance(given, (torch.Tensor, RaggedTensor, Mapping, tuple)):
        return True
    if isinstance(given, list):
        return any(isinstance(item, torch.Tensor) for item in given)
    return hasattr(type(given), "__dataclass_fields__") and not hasattr(given, "__iter__")


def _lengths_in(batch: Any) -> Iterator[int]:
    """Of everything that is cut."""
    if isinstance(batch, Batch):
        yield from map(len, batch.values())
        return
    for field in fields_in(batch):
        if isinstance(field, RaggedTensor) or field.dim() > 0:
            yield len(field)


def _part_of(batch: Any, cut: slice) -> Any:
    if isinstance(batch, Batch):
        return batch.part(cut.start, cut.stop)
    return map_tensors(lambda tensor: tensor[cut] if tensor.dim() > 0 else tensor, batch,
                       lambda ragged: ragged.part(cut.start, cut.stop))


def _field_taken(field: Any, order: torch.Tensor) -> Any:
    if isinstance(field, RaggedTensor):
        return _ragged_taken(field, order)
    return [field[place] for place in order.tolist()] if isinstance(field, list) else _taken(field, order)


def _taken(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """With channels last where the tensor has them last: kernels go by it."""
    taken = tensor.index_select(0, order.to(tensor.device))
    layout = _CHANNELS_LAST.get(tensor.dim())
    return taken if layout is None or not tensor.is_contiguous(memory_format=layout) else taken.contiguous(memory_format=layout)


def _ragged_taken(ragged: RaggedTensor, order: torch.Tensor) -> RaggedTensor:
    ends = ragged.offsets.tolist()
    values = torch.cat([ragged.values[ends[place]:ends[place + 1]] for place in order.tolist()])
    lengths = _taken(ragged.offsets.diff(), order)
    offsets = torch.cat([ragged.offsets[:1] * 0, lengths.cumsum(0)])
    return RaggedTensor(values, offsets, None if ragged.shapes is None else _taken(ragged.shapes, order))
