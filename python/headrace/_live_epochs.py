"""Epochs of a DataLoader whose worker processes change while one is under way: the same batches in the same order."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from ._dataloader import change
from ._gated_pool import Gate, IndexStream, Pool
from ._loader_class import set_class, subclass_of
from .errors import UnsupportedError

PREFETCH_FACTOR = 2  # Where the loader as written has none: torch's default.


class Arm(NamedTuple):
    """What loads. None: as the loader is written."""

    workers: int | None = None  # Processes; 0: whoever asks for a batch.
    prefetch: int | None = None  # Batches that each of them prepares.


class LiveEpoch:
    """Stands for a DataLoader's iterator. Its batches, their order and what is drawn from the script's generators meanwhile are
    those of the loader as written, whatever loads them.

    What is in work when another pool takes over is still given out first, while the new one fills: nothing waits for the change
    but the start of new processes. Where fewer workers are wanted than a pool has, the others of it get nothing to do. Further
    pools draw their seeds from a generator of the epoch's own. Used by one thread; ask() may come from any."""

    def __init__(self, loader: DataLoader, arm: Arm, *, is_settled: bool, running: Any = None) -> None:
        """is_settled: as settle(). running: torch's own iterator that the loader has already; it goes on with the next epoch."""
        self._source = copy.copy(loader)  # The loader itself would hold this, and be held by it.
        change(self._source)
        self._written = (loader.num_workers, loader.prefetch_factor or PREFETCH_FACTOR)
        self._persists = loader.persistent_workers and loader.num_workers > 0
        self._stream = IndexStream(loader)
        self._seeds: torch.Generator | None = None  # None: the first pool draws where the loader as written does.
        self._pools: list[Pool] = []
        self._arm = self._wanted = arm
        self._is_settled, self._is_retired = is_settled, False
        self._number = 0
        self.thread = threading.get_ident()  # That took the last batch.
        self.is_over = running is not None
        if running is None:
            self._begin(2 if loader.num_workers > 0 else 1)  # As often as torch's iterators begin their sampler.
        else:
            self._active = self._adopted(running)

    def __iter__(self) -> LiveEpoch:
        return self

    def __len__(self) -> int:
        return len(self._stream.sampler)  # TypeError where it has none.

    def __next__(self) -> Any:
        self.thread = threading.get_ident()
        if self.is_over:
            raise StopIteration
        if self._wanted != self._arm:
            self._activate(self._wanted)
        if self._active.gate.has_room:
            self._active.fill()
        owed = self._stream.owed
        pool = next(pool for pool in self._pools if pool.gate is owed[0]) if owed else self._active
        try:
            batch = pool.next()
        except StopIteration:
            self._end()
            raise
        if self._is_settled and len(self._pools) > 1:
            self._end_idle()
        return batch

    def __getattr__(self, name: str) -> Any:
        if name == "_active":  # Not there yet.
            raise AttributeError(name)
        return getattr(self._active.batches, name)

    def use(self, arm: Arm) -> None:
        """Batches that are in nobody's work yet are loaded so. Starts worker processes where that takes them; OSError where they
        cannot be started, and nothing has changed then."""
        if not self.is_over:
            self._activate(arm)
        self._wanted = arm

    def ask(self, arm: Arm) -> None:
        """As use(), but when the next batch is asked for."""
        self._wanted = arm

    def settle(self) -> None:
        """From now on no pool is kept for later: those that are not in use end when they have given what they owe."""
        self._is_settled = True

    def retire(self) -> None:
        """With the next epoch torch's own iterator is in the loader again, where workers persist."""
        self._is_retired = True

    def revive(self) -> None:
        """It is to go on after all."""
        self._is_settled = self._is_retired = False

    @property
    def queue(self) -> int:
        """Batches in work, of whatever pool; at least as many as the one in use will have."""
        return max(len(self._stream.owed), self._active.gate.limit if self._active.workers > 0 else 0)

    def plain(self) -> Any:
        """torch's iterator with the workers that the loader is written with, without what is ours; None: there is none."""
        pool = next((pool for pool in self._pools if pool.workers == self._written[0]), None)
        if pool is None:
            return None
        for other in self._pools:
            if other is not pool:
                other.end()
        pool.batches._index_sampler = self._stream.sampler
        pool.batches._prefetch_factor = self._source.prefetch_factor
        return pool.batches

    def _reset(self, loader: DataLoader, first_iter: bool = False) -> None:
        """torch begins an epoch of workers that persist by this."""
        if self._is_retired:
            if (plain := self.plain()) is None:
                self._start(*self._written)
                plain = self.plain()
            plain._reset(loader)
            loader._iterator = plain
            return
        self.thread = threading.get_ident()
        self._number += 1
        self._begin(1)

    def _shutdown_workers(self) -> None:
        """As torch's iterator has it, for those who end it by hand."""
        self._end()
        for pool in self._pools:
            pool.end()

    def _begin(self, begins: int) -> None:
        self._stream.renew(begins)
        for pool in self._pools:
            pool.gate.owes = 0
        self._activate(self._wanted)
        while self._stream.begin():
            pass
        self.is_over = False
        self._active.fill()
        self._stream.keep_ahead()

    def _activate(self, arm: Arm) -> None:
        workers, prefetch = (written if wanted is None else wanted for wanted, written in zip(arm, self._written))
        fitting = [pool for pool in self._pools if pool.workers == workers or pool.workers > workers > 0]
        # While it is tried, a pool has the workers that the loop may need next.
        more = workers if workers == 0 or self._is_settled else max(workers, self._written[0])
        pool = min(fitting, key=lambda one: one.workers) if fitting else self._start(more, prefetch)
        if pool.number != self._number:
            pool.begin_again(self._source, self._number)
        for other in self._pools:
            other.gate.limit = 0
        pool.open(workers, prefetch)
        self._active, self._arm = pool, arm

    def _start(self, workers: int, prefetch: int) -> Pool:
        source, gate = copy.copy(self._source), Gate(self._stream)
        change(source, num_workers=workers, prefetch_factor=prefetch if workers > 0 else None)
        change(source, **{"batch_sampler" if source._auto_collation else "sampler": gate})
        if workers == 0:
            change(source, persistent_workers=False, timeout=0)
        if self._seeds is not None:
            change(source, generator=self._seeds)
        pool = Pool(gate, source._get_iterator(), workers, self._number)
        if self._seeds is None:
            self._seeds = torch.Generator().manual_seed(pool.batches._base_seed)
        self._pools.append(pool)
        return pool

    def _adopted(self, running: Any) -> Pool:
        pool = Pool(Gate(self._stream), running, running._num_workers, -1)
        running._index_sampler = pool.gate  # It asks for it when the next epoch begins.
        self._seeds = torch.Generator().manual_seed(running._base_seed)
        self._pools.append(pool)
        return pool

    def _end(self) -> None:
        self.is_over = True
        if not self._persists:
            for pool in self._pools:
                pool.end()
        elif self._is_settled:
            self._end_idle()

    def _end_idle(self) -> None:
        for pool in [one for one in self._pools if one is not self._active and one.gate.owes == 0]:
            pool.end()
            self._pools.remove(pool)


class LiveEpochs:
    """Lets the epochs of a DataLoader begin as LiveEpoch, for which its class is swapped for a subclass under the same name. The
    caller holds the loader."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = weakref.ref(loader)  # Its class holds this.
        self._arm = Arm()
        self._own: type | None = None  # The loader's class while it is swapped,
        self._plain: type | None = None  # and the one before.
        self._is_following = self._is_settled = False
        self._begun: list[weakref.ref[LiveEpoch]] = []

    def follow(self) -> None:
        """From the next epoch on. Where somebody else swaps the loader's class, too: before, and release() after."""
        if self._is_following:
            return
        self._is_following, self._is_settled = True, False
        loader = self._held_loader()
        if self._own is None:
            self._swap_class(type(loader))
        held = loader._iterator
        if isinstance(held, LiveEpoch):  # Of a search before this one.
            self._note(held).revive()
        elif held is not None:
            loader._iterator = self._note(LiveEpoch(loader, self._arm, is_settled=False, running=held))

    def use(self, arm: Arm) -> None:
        """Of the epoch under way the batches that nobody has in work, and of all later ones. UnsupportedError where another
        thread takes the batches; OSError where processes cannot be started. Nothing has changed then. The way back to what is
        written raises nothing, and starts what it may need when the next batch is asked for."""
        if arm == self._arm:
            return
        self.follow()
        if (current := self._current()) is not None and arm != Arm():
            if current.thread != threading.get_ident():
                raise UnsupportedError("autotune: data.num_workers: another thread than the loop's takes the loader's batches")
            current.use(arm)
        self._arm = arm
        for one in self._epochs():
            one.ask(arm)

    def queue(self) -> int:
        """Batches between what is loaded now and what the loop takes next."""
        if (current := self._current()) is not None:
            return current.queue
        loader = self._held_loader()
        workers = loader.num_workers if self._arm.workers is None else self._arm.workers
        prefetch = (loader.prefetch_factor or PREFETCH_FACTOR) if self._arm.prefetch is None else self._arm.prefetch
        return workers * prefetch

    def settle(self) -> None:
        """Nothing is kept ready for another arm any more; nothing is left at all where the loader is as written."""
        if self._arm == Arm():
            self.release()
            return
        self._is_settled = True
        for one in self._epochs():
            one.settle()

    def release(self) -> None:
        """The loader is as it was; an epoch under way comes to its end as written, and its other pools end on the way. To be
        called again where somebody swapped the class after follow() and gives it back only now."""
        self._is_following = False
        self._arm = Arm()
        for one in self._epochs():
            one.ask(self._arm)
            one.settle()
            one.retire()
        if (loader := self._loader()) is None:  # It went with the rest of the loop.
            return
        if self._own is not None and type(loader) is self._own:
            set_class(loader, self._plain)
            self._own = self._plain = None
        held = loader._iterator
        if isinstance(held, LiveEpoch) and held.is_over and (plain := held.plain()) is not None:
            loader._iterator = plain

    def _swap_class(self, plain: Any) -> None:
        def make(loader: DataLoader) -> Any:
            if self._is_following and loader is self._loader():
                return self._note(LiveEpoch(loader, self._arm, is_settled=self._is_settled))
            return plain._get_iterator(loader)

        self._own, self._plain = subclass_of(plain, {"_get_iterator": make}), plain
        set_class(self._held_loader(), self._own)

    def _held_loader(self) -> DataLoader:
        loader = self._loader()
        assert loader is not None
        return loader

    def _note(self, begun: LiveEpoch) -> LiveEpoch:
        self._begun = [one for one in self._begun if one() is not None] + [weakref.ref(begun)]
        return begun

    def _epochs(self) -> list[LiveEpoch]:
        return [one for begun in self._begun if (one := begun()) is not None]

    def _current(self) -> LiveEpoch | None:
        """The one that began last, of those that are under way."""
        return next((one for one in reversed(self._epochs()) if not one.is_over), None)
