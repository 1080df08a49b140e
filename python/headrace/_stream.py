"""Iterable data sets, whose samples have no index, as a Loader reads them."""

from __future__ import annotations

import threading
from typing import Any

from torch.utils.data import IterableDataset

from .errors import InvalidArgumentError

_BATCHES_MAX = 64  # That a Loader prepares ahead.


def is_stream(source: Any) -> bool:
    if isinstance(source, IterableDataset):
        return True
    kind = type(source)  # An iterator can be gone over once: that is no data set.
    return hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__") and not hasattr(kind, "__next__")


class Stream:
    """Samples 0, 1, ... of an iterable data set in its own order, begun anew with each pass. The threads of a Loader ask for
    samples a little out of order: what is read before it is asked for is held."""

    def __init__(self, source: Any, length: int | None, held_max: int) -> None:
        self.source = source
        self._length = _length_of(source, length)
        self._held_max = held_max
        self._lock = threading.Lock()  # Guards all below.
        self.begin()

    def begin(self) -> None:
        """The next sample is the first. Nobody reads meanwhile."""
        self._samples = None
        self._next = 0
        self._held: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            if index in self._held:
                return self._held.pop(index)
            if self._samples is None or index < self._next:
                self.begin()
                self._samples = iter(self.source)
            while True:
                try:
                    sample = next(self._samples)
                except StopIteration:
                    raise EOFError(f"the data set ended after {self._next} samples; it was said to have {self._length}") from None
                place, self._next = self._next, self._next + 1
                if place == index:
                    return sample
                self._held[place] = sample
                if len(self._held) > self._held_max:  # Another rank's, or before where a resumed pass begins.
                    del self._held[next(iter(self._held))]


def stream_of(source: Any, length: int | None, options: dict[str, Any]) -> Stream:
    """`options`: the Loader's keywords, of which those that need an index are refused, and shuffle is off."""
    for key, allowed in (("shuffle", False), ("cache", "none"), ("worker_type", "thread")):
        if options.get(key, allowed) != allowed:
            raise InvalidArgumentError(f"{key} is {options[key]!r}, and {type(source).__name__} is an iterable data set, which "
                                       f"comes in its own order from one iterator; wanted {allowed!r}")
    if options.get("on_corrupt") == "replace":
        raise InvalidArgumentError(f"on_corrupt is \"replace\", and no other sample of {type(source).__name__}, an iterable data "
                                   "set, can be had; wanted fail | zero")
    options["shuffle"] = False
    ahead = options.get("prefetch_batches", 2)
    batches = (ahead if isinstance(ahead, int) and ahead > 0 else _BATCHES_MAX) + 2
    return Stream(source, length, max(16, batches * options.get("batch_size", 128) * options.get("world_size", 1)))


def _length_of(source: Any, length: int | None) -> int:
    if length is not None:
        return length
    try:
        return len(source)
    except TypeError:
        raise InvalidArgumentError(f"{type(source).__name__} is an iterable data set that does not tell its length; say it: "
                                   "length=, the samples of one pass") from None
