"""Loaders whose batches have few shapes, for a model that is compiled or captured for each one: the last batch of an epoch padded to the
size of the others, and lengths rounded up to a few sizes, with masks that say what counts."""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from ._batch_parts import repeated, samples_of
from .batch import Batch
from .errors import InvalidArgumentError


class FixedShapes:
    """A loader over another one. Attributes that it has not are the other's: sampler, generator, state_dict(), batch_size."""

    def __init__(self, loader: Iterable[Any], change: Callable[[FixedShapes, Any], Any]) -> None:
        self.loader = loader
        self.shapes: collections.Counter[tuple[int, ...]] = collections.Counter()  # Those that were made, with how many batches.
        self.size: int | None = None  # Of pad_last_batch(): samples of the first batch.
        self._change = change

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield self._change(self, batch)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # Not there yet while a copy is made.
            raise AttributeError(name)
        return getattr(self.loader, name)


def pad_last_batch(loader: Iterable[Any]) -> FixedShapes:
    """The batches of a loader with as many samples each as its first one has, or as its batch_size says: a smaller one is filled with
    its own samples again, from the front. Each batch is longer by `valid`, a bool tensor of shape (samples), on the device of its first
    tensor, True for samples that are the loader's own: at the end of a tuple or list, by the key "valid" in a dict, and (batch, valid)
    of a tensor alone. Weigh the loss by it, (losses * valid).sum() / valid.sum(), and return valid.sum() as the weight of hr.Trainer's
    forward. BatchNorm counts the repeated samples.

    A batch that is full is passed on without a copy. `shapes` counts the sizes. A headrace.Loader does this by itself with
    last_batch="pad".

    InvalidArgumentError, while it is gone through: a batch is no tensor, tuple, list or dict of tensors with one first axis in common,
    or has no samples.
    """
    return FixedShapes(loader, _padded)


def bucket_shapes(loader: Iterable[Any], sizes: Sequence[int], *, axes: int | Sequence[int] = 1,
                  fill: float | Mapping[Any, float] = 0) -> FixedShapes:
    """The batches of a loader with lengths rounded up to a few sizes, so that a compiled model meets few shapes.

    sizes: lengths to round up to, ascending; beyond the largest, multiples of it.
    axes: those that are rounded, not 0: 1 for tokens of shape (samples, length), (2, 3) for images. The lengths are those of the
        batch's first tensor; every tensor that has these axes with the same lengths is padded at the end.
    fill: what padding holds: a number, or by place in a tuple or list, or by key, with 0 for the others: {1: -100} for targets that
        cross entropy ignores.

    Each batch is longer by `mask`, a bool tensor of shape (samples, the padded lengths), on the device of its first tensor, True for
    what is the loader's own: at the end of a tuple or list, by the key "mask" in a dict, and (batch, mask) of a tensor alone. `shapes`
    counts the lengths that were made. With both, pad_last_batch(bucket_shapes(...)).

    InvalidArgumentError: sizes or axes are none; while it is gone through: a batch is no tensor, tuple, list or dict of tensors with
    such axes.
    """
    places = (axes,) if isinstance(axes, int) else tuple(axes)
    if not places or any(place < 1 for place in places) or len(set(places)) != len(places):
        raise InvalidArgumentError(f"bucket_shapes: axes: wanted places of axes above 0, each once, found {axes!r}")
    given = list(sizes)
    if not given or any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in given):
        raise InvalidArgumentError(f"bucket_shapes: sizes: wanted whole numbers above 0, found {given!r}")
    rounded = sorted(set(given))

    def change(made: FixedShapes, batch: Any) -> Any:
        return _in_buckets(made, batch, rounded, places, fill)

    return FixedShapes(loader, change)


def _padded(made: FixedShapes, batch: Any) -> Any:
    first = next(iter(_fields_of(batch, "pad_last_batch").values()))
    samples = samples_of(batch)
    if samples == 0:
        raise InvalidArgumentError("pad_last_batch: wanted a batch with samples, found one of 0")
    if made.size is None:
        told = getattr(made.loader, "batch_size", None)
        made.size = max(told, samples) if isinstance(told, int) else samples
    wanted = max(made.size, samples)
    made.shapes[wanted,] += 1
    valid = torch.arange(wanted, device=first.device) < samples
    return _with(batch if samples == wanted else repeated(batch, wanted), "valid", valid)


def _in_buckets(made: FixedShapes, batch: Any, sizes: list[int], axes: tuple[int, ...], fill: float | Mapping[Any, float]) -> Any:
    fields = _fields_of(batch, "bucket_shapes")
    first = next(iter(fields.values()))
    if first.dim() <= max(axes):
        raise InvalidArgumentError(f"bucket_shapes: axes: wanted a first tensor with axis {max(axes)}, found one of shape "
                                   f"{tuple(first.shape)}")
    found = [first.shape[axis] for axis in axes]
    wanted = [_rounded(length, sizes) for length in found]
    made.shapes[tuple(wanted)] += 1
    mask = torch.zeros((len(first), *wanted), dtype=torch.bool, device=first.device)
    mask[(slice(None), *(slice(length) for length in found))] = True
    changed = {}
    for key, tensor in fields.items():
        if tensor.dim() > max(axes) and [tensor.shape[axis] for axis in axes] == found:
            value = fill.get(key, 0) if isinstance(fill, Mapping) else fill
            changed[key] = _grown(tensor, axes, wanted, value)
    return _with(_replaced(batch, changed), "mask", mask)


def _rounded(length: int, sizes: list[int]) -> int:
    place = bisect.bisect_left(sizes, length)
    return sizes[place] if place < len(sizes) else -(-length // sizes[-1]) * sizes[-1]


def _grown(tensor: torch.Tensor, axes: tuple[int, ...], wanted: list[int], value: float) -> torch.Tensor:
    by_axis = dict(zip(axes, wanted))
    if all(tensor.shape[axis] == size for axis, size in by_axis.items()):
        return tensor
    # From the last axis to the first, as torch's pad() counts them, each with what comes before and behind.
    added = [by_axis.get(axis, size) - size for axis, size in enumerate(tensor.shape)]
    amounts = [amount for behind in reversed(added) for amount in (0, behind)]
    return torch.nn.functional.pad(tensor, amounts, value=value)


def _fields_of(batch: Any, whose: str) -> dict[Any, torch.Tensor]:
    """The tensors of a batch by key or place."""
    if isinstance(batch, torch.Tensor):
        return {0: batch}
    if isinstance(batch, Batch):
        raise InvalidArgumentError(f"{whose}: wanted a batch of tensors, found one of a headrace.Loader, which has last_batch=\"pad\" and "
                                   "shapes that are fixed when it is built")
    items = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, (tuple, list)) else ()
    fields = {key: value for key, value in items if isinstance(value, torch.Tensor) and value.dim() > 0}
    if not fields:
        raise InvalidArgumentError(f"{whose}: wanted a batch that is a tensor, or a tuple, list or dict of tensors, found "
                                   f"{type(batch).__name__}")
    return fields


def _replaced(batch: Any, changed: dict[Any, torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return changed.get(0, batch)
    if isinstance(batch, Mapping):
        return {key: changed.get(key, value) for key, value in batch.items()}
    items = [changed.get(place, value) for place, value in enumerate(batch)]
    return items if isinstance(batch, list) else tuple(items)


def _with(batch: Any, name: str, tensor: torch.Tensor) -> Any:
    """With one field more, in a dict, list or tuple of its own."""
    if isinstance(batch, torch.Tensor):
        return batch, tensor
    if isinstance(batch, Mapping):
        if name in batch:
            raise InvalidArgumentError(f"batch: wanted no {name!r} of its own, to which one is added, found keys {sorted(map(str, batch))}")
        return {**batch, name: tensor}
    return [*batch, tensor] if isinstance(batch, list) else (*batch, tensor)
