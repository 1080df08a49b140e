"""torch's own iterators over a DataLoader, several on the same indices: each gives the batches that were dealt to it."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


class IndexStream:
    """The indices of an epoch, from the loader's own sampler, each once. It is asked as early as by the loader as written, and
    earlier only where more is loaded ahead than that would."""

    def __init__(self, loader: DataLoader) -> None:
        self.sampler = loader._index_sampler
        self._depth = loader.num_workers * (loader.prefetch_factor or 0)  # Batches that the loader as written has in work.
        self.owed: deque[Gate] = deque()  # Of each batch that is in work, in the order of the epoch: whose pool has it.
        self.renew(0)

    def renew(self, begins: int) -> None:
        """For a new epoch, in which the sampler is begun so many times, the last of which counts."""
        self._begins = begins
        self._indices: Iterator[Any] = iter(())
        self._ahead: deque[Any] = deque()
        self._drawn = self._taken = 0
        self._is_exhausted = False
        self.owed.clear()

    def begin(self) -> bool:
        """Begins the sampler. False: it was begun as often as it is to be."""
        if self._begins == 0:
            return False
        self._begins -= 1
        self._indices = iter(self.sampler)
        return True

    @property
    def is_over(self) -> bool:
        return self._is_exhausted and not self._ahead

    def take(self) -> Any:
        """The next one; StopIteration where there is none."""
        if not self._ahead and not self._draw():
            raise StopIteration
        return self._ahead.popleft()

    def note_taken(self) -> None:
        """The loop has had a batch."""
        self._taken += 1
        self.keep_ahead()

    def keep_ahead(self) -> None:
        while self._drawn < self._taken + self._depth and self._draw():
            pass

    def _draw(self) -> bool:
        if self._is_exhausted:
            return False
        try:
            self._ahead.append(next(self._indices))
        except StopIteration:
            self._is_exhausted = True
            return False
        self._drawn += 1
        return True


class Gate:
    """Stands for the sampler of a pool's iterator, and gives it indices of the stream while fewer than `limit` of its batches are
    in work. Otherwise it looks exhausted."""

    def __init__(self, stream: IndexStream) -> None:
        self._stream = stream
        self.limit = 0
        self.owes = 0
        self.is_taken_from = False  # Its iterator gives a batch right now, which is still counted among those that it owes.

    def __iter__(self) -> Gate:
        self._stream.begin()
        return self

    def __len__(self) -> int:
        return len(self._stream.sampler)

    def __next__(self) -> Any:
        if self.owes - self.is_taken_from >= self.limit:
            raise StopIteration
        index = self._stream.take()
        self._stream.owed.append(self)
        self.owes += 1
        return index

    @property
    def has_room(self) -> bool:
        return self.owes < self.limit and not self._stream.is_over

    def settle(self, batches: int) -> None:
        """So many of those that it owed are gone to the loop, or are lost."""
        for _ in range(batches):
            self._stream.owed.remove(self)
            self.owes -= 1
            self._stream.note_taken()


class Pool:
    """torch's own iterator behind a gate: worker processes, or with 0 the caller itself."""

    def __init__(self, gate: Gate, batches: Any, workers: int, number: int) -> None:
        """number: of the epoch that it is ready for."""
        self.gate, self.batches, self.workers, self.number = gate, batches, workers, number
        self._dealt_to = workers

    def begin_again(self, source: DataLoader, number: int) -> None:
        """For another epoch. What it had in work of the one before is thrown away, as torch does it."""
        self.gate.limit = self.gate.owes = 0  # torch asks for indices before it is known whom they are dealt to.
        self.batches._reset(source)
        self._dealt_to, self.number = self.workers, number

    def open(self, workers: int, prefetch: int) -> None:
        """Deals to the first `workers` of its processes from now on."""
        if self.workers == 0:
            self.gate.limit = 1
            return
        batches = self.batches
        batches._prefetch_factor = max(batches._prefetch_factor, prefetch)  # torch checks it; the gate is what limits.
        if workers != self._dealt_to:
            batches._worker_queue_idx_cycle = itertools.cycle(range(workers))
            self._dealt_to = workers
        self.gate.limit = workers * prefetch

    def fill(self) -> None:
        """Gives its workers as much as they may have."""
        while self.workers > 0 and self.gate.has_room:
            owes = self.gate.owes
            self.batches._try_put_index()
            if self.gate.owes == owes:
                return  # The epoch has no more.

    def next(self) -> Any:
        """The next of its batches. StopIteration where it owes none and the epoch has no more."""
        gate = self.gate
        owes, received = gate.owes, self._received()
        gate.is_taken_from = owes > 0
        try:
            return next(self.batches)
        finally:
            gate.is_taken_from = False
            # An exception in the batch's place is the batch; after a timeout, Ctrl-C or the end of a worker it is still owed.
            gate.settle(gate.owes if self.workers == 0 else self._received() - received)

    def _received(self) -> int:
        return self.batches._rcvd_idx if self.workers > 0 else 0

    def end(self) -> None:
        if self.workers > 0:
            self.batches._shutdown_workers()
