"""The epochs that a loop makes of its loader, seen while the loop's `for` stays as it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset

from ._loader import Loader
from ._loader_class import InPlaceOf, set_class, subclass_of
from ._pipeline import OptimizedLoader
from .errors import InvalidArgumentError

_OWNER = "_headrace_epochs"  # Of a watched loader's class.
_UPDATES = 48  # Looked at together to find loaders that take turns.


class Taken(NamedTuple):
    """What the loop's thread had of the loader in one update."""

    begun: int  # Epochs.
    ended: int
    failed: int  # Exceptions in a batch's place.
    batches: int
    wait_s: float  # For epochs to begin, and for batches.


class LoaderEpochs:
    """Counts what a loop takes from one loader, and times how long it waits for it. Sees a DataLoader, a headrace.Loader and what
    a DataPipelineOptimizer makes of a loader; of others it says so in `refusal`.

    While it watches, the loader is of a subclass of its class that bears its name. Length, isinstance, `__class__`, settings,
    copies and pickles are as before; type(loader) is another object. iter(loader) gives a WatchedEpoch. A batch that another
    thread takes counts in the totals and in no update. Batches of iter(loader).request() are not seen. Costs some microseconds
    a batch."""

    def __init__(self, loader: Any, clock: Callable[[], float]) -> None:
        self._loader, self.clock = loader, clock
        self._plain: type | None = None  # The loader's own class, while it is watched.
        self.refusal = ""  # Why nothing can be seen.
        self.thread: int | None = None  # Of the loop; None: not known, and nothing is another's.
        self.begun = self.ended = self.batches = 0  # In all.
        self.own_batches = 0  # That the loop's own thread took: of others nobody can say before which step they came.
        self._last_length: int | None = None  # Batches of the last epoch that came to its end.
        self._begun = self._ended = self._failed = self._batches = 0  # In the update at hand.
        self._wait_s = 0.0
        self.serves_loop = False  # A batch was taken by the loop's own thread.
        self.problem: str | None = None
        self._updates = self._with_batch = self._turns = 0  # Of the last updates, up to 48.
        self._had_batch = True

    def watch(self) -> None:
        """InvalidArgumentError where another LoaderEpochs watches this loader."""
        if self._plain is not None:
            return
        plain = type(self._loader)
        if not isinstance(self._loader, (DataLoader, Loader, OptimizedLoader)):
            self.refusal = "no loader was given" if self._loader is None else f"a {plain.__name__} does not tell of its epochs"
            return
        if hasattr(plain, _OWNER):
            raise InvalidArgumentError(f"autotune: loader: wanted one that is not tuned yet, found {plain.__name__}, which "
                                       "another autotune watches")
        try:
            set_class(self._loader, _watched_class(plain, self))
        except TypeError as error:  # A class that wants no subclass, or whose objects cannot change theirs.
            self.refusal = f"a {plain.__name__} does not tell of its epochs: {error}"
            return
        self._plain = plain

    def release(self) -> None:
        """The loader is of its own class again. An epoch that is under way goes on and is not seen any more."""
        if self._plain is not None and vars(type(self._loader)).get(_OWNER) is self:
            set_class(self._loader, self._plain)
        self._plain = None

    @property
    def is_watching(self) -> bool:
        return self._plain is not None

    @property
    def length(self) -> int | None:
        """Batches of an epoch: of the last that came to its end, or as the loader says; None: unknown."""
        if self._last_length is not None:
            return self._last_length
        if isinstance(self._loader, DataLoader) and isinstance(self._loader.dataset, IterableDataset):
            return None  # Asked for its length, a DataLoader warns in every epoch that turns out longer.
        try:
            return len(self._loader)
        except (TypeError, NotImplementedError):
            return None

    @property
    def queue(self) -> int:
        """Batches that a DataLoader as written holds ready at most; 0 of others."""
        loader = self._loader.loader if isinstance(self._loader, OptimizedLoader) else self._loader
        return loader.num_workers * (loader.prefetch_factor or 0) if isinstance(loader, DataLoader) else 0

    def take(self) -> Taken:
        """What there was since this was asked last. Ask it once an update."""
        taken = Taken(self._begun, self._ended, self._failed, self._batches, self._wait_s)
        self._begun = self._ended = self._failed = self._batches = 0
        self._wait_s = 0.0
        if self._plain is not None:
            self._look_for_turns(taken.batches > 0)
        return taken

    def begin(self) -> WatchedEpoch:
        assert self._plain is not None
        since = self.clock()
        batches = self._plain.__iter__(self._loader)
        self.begun += 1
        if self._is_here():
            self._begun += 1
            self._wait_s += self.clock() - since
        return WatchedEpoch(self, batches)

    def note_batch(self, since: float) -> None:
        self.batches += 1
        if self._is_here():
            self.serves_loop = True
            self.own_batches += 1
            self._batches += 1
            self._wait_s += self.clock() - since

    def note_end(self, since: float, batches: int) -> None:
        self.ended += 1
        self._last_length = batches
        if self._is_here():
            self._ended += 1
            self._wait_s += self.clock() - since

    def note_failure(self) -> None:
        if self._is_here():
            self._failed += 1

    def is_of(self, loader: Any) -> bool:
        return loader is self._loader and self._plain is not None

    def _is_here(self) -> bool:
        return self.thread is None or self.thread == threading.get_ident()

    def _look_for_turns(self, has_batch: bool) -> None:
        self._updates += 1
        self._with_batch += has_batch
        self._turns += has_batch != self._had_batch
        self._had_batch = has_batch
        if self._updates < _UPDATES:
            return
        without = _UPDATES - self._with_batch
        if min(self._with_batch, without) * 5 >= _UPDATES * 2 and self._turns * 3 >= _UPDATES:
            self.problem = (f"two loaders take turns, or a batch serves several updates: {without} of {_UPDATES} updates took "
                            "no batch from the loader that was given")
        self._updates = self._with_batch = self._turns = 0


class WatchedEpoch(InPlaceOf):
    """One epoch of a watched loader. Has what the loader's own iterator has, and is that alone once nobody watches."""

    def __init__(self, epochs: LoaderEpochs, batches: Iterator[Any]) -> None:
        super().__init__(batches)
        self._epochs = epochs
        self._count = 0

    def __next__(self) -> Any:
        epochs = self._epochs
        if not epochs.is_watching:
            return next(self._batches)
        since = epochs.clock()
        try:
            batch = next(self._batches)
        except StopIteration:
            epochs.note_end(since, self._count)
            raise
        except BaseException:
            epochs.note_failure()
            raise
        self._count += 1
        epochs.note_batch(since)
        return batch


def _watched_class(plain: type, epochs: LoaderEpochs) -> type:
    """A subclass of `plain` that tells `epochs` of its loader. Its other objects, as a copy that `plain` makes by a way of its
    own, are as those of `plain`."""
    def begin(self: Any) -> Any:
        return epochs.begin() if epochs.is_of(self) else plain.__iter__(self)

    return subclass_of(plain, {"__iter__": begin, _OWNER: epochs})
