"""Iterable data sets, whose samples have no index, as a Loader reads them."""

from __future__ import annotations

import copy
import sys
import threading
from collections import deque
from typing import Any, NamedTuple

from .errors import InvalidArgumentError
from .worker import EndOfSamples, InOrder, IteratorError

_BATCHES_MAX = 64  # That a Loader prepares ahead.


def is_stream(source: Any) -> bool:
    theirs = sys.modules.get("torch.utils.data")  # Not loaded, it has no data sets.
    if theirs is not None and isinstance(source, theirs.IterableDataset):
        return True
    kind = type(source)  # An iterator can be gone over once: that is no data set.
    return hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__") and not hasattr(kind, "__next__")


class _Kept(NamedTuple):
    """What the data set's own state_dict() was before it gave the sample at a position."""

    position: int
    state: Any
    first: Any  # As `state`, before the first sample of that epoch.


class Stream(InOrder):
    """Samples 0, 1, ... of an iterable data set in its own order, begun anew with each epoch. The threads of a Loader ask for
    samples a little out of order: what is read before it is asked for is held. Without a length an epoch ends where the iterator
    does; nobody asks it again then.

    Where the data set has state_dict and load_state_dict, its state is kept every `step` samples, and an epoch that goes on in
    its middle begins with that of the batch where it stands; without them it begins anew and skips what was delivered. An epoch
    that is left early leaves the data set where reading ahead had come to. Of one that drops its tail the tail is read, too: the
    data set shall know that its epoch has ended."""

    def __init__(self, source: Any, length: int | None, ahead: int | str, step: int, last: int | None = None) -> None:
        """`last`: the sample behind which an epoch of known length drops a tail; None: it has none."""
        self.source = source
        self.length = length
        self._step, self._last = step, last
        self._held_max = 16
        self.reads_ahead(ahead)
        self.is_stateful = hasattr(source, "state_dict") and hasattr(source, "load_state_dict")
        self._lock = threading.Lock()  # Guards all below.
        self._epoch: int | None = None  # Of the epoch begun last; None: the Loader looks at the first samples.
        self._unread = self._now(0) if self.is_stateful else None  # Before that look.
        self._loaded: tuple[int, _Kept] | None = None  # An epoch that has not begun, and where it goes on.
        self._ended: int | None = None  # Samples of this epoch, where its iterator has told so.
        self._broken: Exception | None = None  # That this epoch's iterator raised, where it has no length.
        self._began: _Kept | None = None  # This epoch. None: with whatever state there is when it is read first.
        self._drop()

    def begin(self, epoch: int) -> None:
        """The next sample is the first of the epoch. Nobody reads meanwhile."""
        self._began, self._unread = self._unread, None
        if self._loaded is not None and self._loaded[0] == epoch:
            self._began = self._loaded[1]
        self._epoch, self._loaded, self._ended, self._broken = epoch, None, None, None
        self._drop()

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """Of the data set, for a state of the Loader that stands there, between two batches."""
        with self._lock:
            if self._loaded is not None:
                kept = self._loaded[1]
            elif self._unread is not None:
                kept = self._unread
            elif epoch != self._epoch:  # The epoch before has ended.
                kept = self._now(0)
            else:
                before = [kept for kept in self._kept if kept.position <= position]
                kept = before[-1] if before else self._began or self._now(0)
        return copy.deepcopy(kept._asdict())

    def load(self, epoch: int, kept: dict[str, Any]) -> None:
        """What state_at() gave."""
        with self._lock:
            self._loaded = epoch, _Kept(**copy.deepcopy(kept))

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError(no_length(self.source))
        return self.length

    def __getitem__(self, index: int) -> Any:
        with self._lock:
            if index in self._held:
                return self._held.pop(index)
            if self._ended is not None and index >= self._ended:
                raise EndOfSamples(self._ended)
            if self._broken is not None:
                raise IteratorError(self._broken)
            try:
                return self._read(index)
            except StopIteration:
                if self.length is not None:
                    raise EOFError(f"the data set ended after {self._next} samples; it was said to have "
                                   f"{self.length}") from None
                self._ended = self._next
                raise EndOfSamples(self._ended) from None
            except Exception as error:
                if self.length is not None:
                    raise
                self._broken = error
                raise IteratorError(error) from None

    def reads_ahead(self, batches: int | str) -> None:
        """The Loader prepares so many, as prefetch_batches has them. Fewer than before changes nothing: more are on their way."""
        known = batches if isinstance(batches, int) and 0 < batches < _BATCHES_MAX else _BATCHES_MAX
        self._held_max = max(self._held_max, (known + 2) * self._step)

    def _read(self, index: int) -> Any:
        """StopIteration: the data set has ended before it."""
        if self._samples is None and self._next == 0:
            self._open()
        if index < self._next:
            if self.is_stateful:
                return self._again(index)
            self._open()
        while True:
            sample = self._next_sample()
            place, self._next = self._next, self._next + 1
            if self.is_stateful and self._next % self._step == 0:
                self._kept.append(self._now(self._next))
            if place == index:
                if index == self._last and self.is_stateful:
                    self._read_tail()
                return sample
            self._held[place] = sample
            if len(self._held) > self._held_max:  # Another rank's, or before where a resumed epoch begins.
                del self._held[next(iter(self._held))]

    def _now(self, position: int) -> _Kept:
        state = copy.deepcopy(self.source.state_dict())
        return _Kept(position, state, state if position == 0 else self._began.first)

    def _drop(self) -> None:
        self._samples: Any = None
        self._next = 0
        self._held: dict[int, Any] = {}
        self._kept: deque[_Kept] = deque(maxlen=_BATCHES_MAX + 4)  # As many batches as may be on their way.

    def _open(self) -> None:
        self._drop()
        if self._began is not None:
            self.source.load_state_dict(copy.deepcopy(self._began.state))
            self._next = self._began.position
        elif self.is_stateful:
            self._began = self._now(0)
        if self._began is not None:
            self._kept.append(self._began)
        self._samples = iter(self.source)

    def _again(self, index: int) -> Any:
        """A sample that this epoch has given already, or the one that it goes on from: a tail that is padded repeats the first.
        The data set is put back to where it was."""
        now = self._now(self._next)
        self.source.load_state_dict(copy.deepcopy(now.first))
        self._samples = iter(self.source)
        for self._next in range(index + 1):
            sample = self._next_sample()
        self.source.load_state_dict(copy.deepcopy(now.state))
        end = self._ended if self.length is None else self.length
        self._samples, self._next = (iter(self.source) if end is None or now.position < end else None), now.position
        return sample

    def _read_tail(self) -> None:
        while self._next < self.length and next(self._samples, self) is not self:
            self._next += 1

    def _next_sample(self) -> Any:
        try:
            return next(self._samples)
        except StopIteration:
            if self._next > 0 or not self.is_stateful:
                raise
            self._samples = iter(self.source)  # Its state was one of an epoch that had ended: this is the next.
            return next(self._samples)


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
    length = _length_of(source, length)
    if length is None and options.get("world_size", 1) != 1:
        raise InvalidArgumentError(f"world_size is {options['world_size']}: {no_length(source)}")
    batch_size = options.get("batch_size", 128)
    step = max(1, batch_size * options.get("world_size", 1))
    last = None
    if length is not None and options.get("last_batch") == "drop":
        last = length // step * step - step + batch_size * (options.get("rank", 0) + 1) - 1
    return Stream(source, length, options.get("prefetch_batches", 2), step, last)


def no_length(source: Any) -> str:
    return (f"{type(source).__name__} is an iterable data set that does not tell its length; say it: length=, the samples of "
            "one epoch")


def _length_of(source: Any, length: int | None) -> int | None:
    """None: nobody knows before its end."""
    if length is not None:
        return length
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None
