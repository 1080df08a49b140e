"""The epochs that a loop makes of its loader, seen while the loop's `for` stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from . import _core
from ._loader import Loader
from ._loader_class import InPlaceOf, set_class, subclass_of
from ._pipeline import OptimizedLoader
from .errors import InvalidArgumentError

_OWNER = "_headrace_epochs"  # Of a watched loader's class.


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
        self.is_watching = False
        self.refusal = ""  # Why nothing can be seen.
        self.counts = _core.EpochCounts()

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
        self.is_watching = self.counts.is_watched = True

    def release(self) -> None:
        """The loader is of its own class again. An epoch that is under way goes on and is not seen any more."""
        if self._plain is not None and vars(type(self._loader)).get(_OWNER) is self:
            set_class(self._loader, self._plain)
        self._plain = None
        self.is_watching = self.counts.is_watched = False

    @property
    def length(self) -> int | None:
        """Batches of an epoch: of the last that came to its end, or as the loader says; None: unknown."""
        if self.counts.length is not None:
            return self.counts.length
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

    def begin(self) -> WatchedEpoch:
        assert self._plain is not None
        since = self.clock()
        batches = self._plain.__iter__(self._loader)
        self.counts.note_begin(self.clock() - since)
        return WatchedEpoch(self, batches)

    def is_of(self, loader: Any) -> bool:
        return loader is self._loader and self._plain is not None


class WatchedEpoch(InPlaceOf):
    """One epoch of a watched loader. Has what the loader's own iterator has, and is that alone once nobody watches."""

    def __init__(self, epochs: LoaderEpochs, batches: Iterator[Any]) -> None:
        super().__init__(batches)
        self._epochs = epochs
        (self._note_batch,) = epochs.counts.hooks
        self._count = 0

    def __next__(self) -> Any:
        epochs = self._epochs
        if not epochs.is_watching:
            return next(self._batches)
        clock = epochs.clock
        since = clock()
        try:
            batch = next(self._batches)
        except StopIteration:
            epochs.counts.note_end(clock() - since, self._count)
            raise
        except BaseException:
            epochs.counts.note_failure()
            raise
        self._count += 1
        self._note_batch(clock() - since)
        return batch


def _watched_class(plain: type, epochs: LoaderEpochs) -> type:
    """A subclass of `plain` that tells `epochs` of its loader. Its other objects, as a copy that `plain` makes by a way of its
    own, are as those of `plain`."""
    def begin(self: Any) -> Any:
        return epochs.begin() if epochs.is_of(self) else plain.__iter__(self)

    return subclass_of(plain, {"__iter__": begin, _OWNER: epochs})
