"""How the loader of a run that goes on loads its batches: switched between two updates, and given back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, MapDataPipe

from ._live_epochs import PREFETCH_FACTOR, Arm, LiveEpochs
from ._loader import Loader
from ._loader_settings import NUM_WORKERS, PREFETCH, LoaderSettings
from ._worker_look import Look, look_at
from .errors import InvalidArgumentError, UnsupportedError

_KEYS = (NUM_WORKERS, PREFETCH)


class LiveLoader:
    """The settings data.* of a loader in use, as TOML texts by the keys of their knobs. The batches, their order and what is
    drawn for it stay as written, each sample comes once in an epoch, and what workers raise comes out as it is.

    A headrace.Loader takes workers and prefetch by its own live settings. A DataLoader gets both, too: fewer workers by dealing to
    some of those that run; more, or none where there were some, or some where there were none, by a second pool on the same
    indices, which takes over while the first one is used up (LiveEpoch). Other loaders have no such settings.

    Where samples are drawn in the processes that load them, other workers draw others: `workers_change_batches` of context().

    set() belongs between two updates, in the thread that takes the batches. Where nothing is to start it takes microseconds, and
    the start of workers otherwise, every time that an epoch begins, too, unless they persist."""

    def __init__(self, loader: Any) -> None:
        """Leaves it as it is. Accelerate's loaders go over one of torch's within them, one batch ahead."""
        inner = vars(loader).get("base_dataloader") if isinstance(loader, DataLoader) else None
        self._kind = type(loader).__name__
        self._lag = int(isinstance(inner, DataLoader))
        self._loader = inner if isinstance(inner, DataLoader) else loader
        self._settings = LoaderSettings(loader, "autotune") if isinstance(loader, Loader) else None
        can_change = isinstance(loader, DataLoader) and _why_as_it_is(self._loader) is None
        self._epochs = LiveEpochs(self._loader) if can_change else None
        self._look: Look | None = None
        self._in_force: dict[str, str] | None = {}  # None: a switch has failed.
        self._queue_before = 0  # Of a headrace.Loader, under the settings before.

    def follow(self) -> None:
        """Epochs that begin from now on can be changed under way; one that began before goes on as it began. Belongs before
        Boundary.install(), which swaps the loader's class, too."""
        if self._epochs is not None:
            self._epochs.follow()

    @property
    def needs_epoch(self) -> bool:
        """Whether settings do nothing until an epoch has begun behind follow()."""
        return self._epochs is not None

    def context(self, fixed: Sequence[str] = (), only: Sequence[str] = ()) -> dict[str, Any]:
        """What _core.offer() asks about the loader. Looks at a DataLoader's samples in worker processes, once, unless `fixed`
        and `only` leave nothing to ask for; that takes what look_at() takes."""
        is_fixed = any(NUM_WORKERS == key or NUM_WORKERS.startswith(f"{key}.") for key in fixed)
        is_wanted = not is_fixed and (not only or any(name.startswith("num_workers") for name in only))
        looks = self._epochs is not None and is_wanted
        return {
            "loader": self._loader if self._settings is not None else None,
            "dataloader": self._workers() if isinstance(self._loader, DataLoader) else None,
            "loader_type": self._kind, "has_replacement": False, "replacement_draws": False,
            "workers_change_batches": looks and self._looked_at().draws,
        }

    def refusals(self) -> dict[str, str]:
        """By key, why not. What only a look can tell is there after context()."""
        if not isinstance(self._loader, DataLoader):
            return {}
        if self._epochs is None:
            return dict.fromkeys((NUM_WORKERS, PREFETCH), str(_why_as_it_is(self._loader)))
        if self._loader.num_workers > 0 or (reason := self._no_workers(1, looks=False)) is None:
            return {}
        return {NUM_WORKERS: reason}

    def refused_values(self, workers_most: int) -> dict[tuple[str, str], str]:
        """By key and value, why not, of the numbers of workers up to `workers_most` that cannot be where others can. What only a
        look can tell is there after context()."""
        if self._epochs is None:
            return {}
        reasons = {workers: self._no_workers(workers, looks=False) for workers in range(workers_most + 1)}
        return {(NUM_WORKERS, str(workers)): reason for workers, reason in reasons.items() if reason is not None}

    def written(self) -> dict[str, Any]:
        """What the loader is written with, of each key that it has."""
        if self._settings is not None:
            return self._settings.written
        if self._epochs is None:
            return {}
        depth = {} if self._loader.prefetch_factor is None else {PREFETCH: self._loader.prefetch_factor}
        return {NUM_WORKERS: self._loader.num_workers, **depth}

    def check(self, key: str, value: str) -> None:
        """InvalidArgumentError where a setting of one of these keys takes no such value."""
        if key not in _KEYS:
            return
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        least = int(key == PREFETCH)
        if type(found) is not int or found < least:
            raise InvalidArgumentError(f"autotune: {key}: wanted a whole number of at least {least}, found {value}")

    def set(self, settings: Mapping[str, str]) -> None:
        """Makes exactly these of the keys hold, others of `settings` aside. headrace.Error where one cannot be: set() what held
        before is then to be called, which takes back what was done until then."""
        ours = {key: value for key, value in settings.items() if key in _KEYS}
        if ours == self._in_force:
            return
        self._in_force = None
        if self._settings is not None:
            self._queue_before = self._ahead()
            self._settings.apply(ours)
        elif self._epochs is not None:
            self._use(ours)
        elif ours:
            key = min(ours)
            raise UnsupportedError(f"autotune: {key}: {self.refusals().get(key, f'a {self._kind} has no such setting')}")
        self._in_force = ours

    def queue(self) -> int:
        """Batches between what is loaded under the settings in force and what the loop takes next. After a switch no more than
        these can have been loaded under the settings before."""
        if self._settings is not None:
            return max(self._queue_before, self._ahead())
        return 0 if self._epochs is None else self._epochs.queue() + self._lag

    def keep_only(self) -> None:
        """Lets go of what was kept ready for settings that are not in force: further workers."""
        if self._epochs is not None:
            self._epochs.settle()

    def undo(self) -> None:
        """The loader as it was. An epoch under way comes to its end in its order, and workers that it was not written with end
        when they have given what they have in work."""
        if self._settings is not None:
            self.set({})
        elif self._epochs is not None:
            self._epochs.release()
        self._in_force = {}

    def _use(self, settings: Mapping[str, str]) -> None:
        assert self._epochs is not None
        arm = Arm(*(json.loads(settings[key]) if key in settings else None for key in (NUM_WORKERS, PREFETCH)))
        if arm.workers is not None and (reason := self._no_workers(arm.workers, looks=True)) is not None:
            raise UnsupportedError(f"autotune: {NUM_WORKERS}: {reason}")
        try:
            self._epochs.use(arm)
        except OSError as error:
            raise UnsupportedError(f"autotune: {NUM_WORKERS}: worker processes cannot be started: {error}") from error

    def _no_workers(self, workers: int, *, looks: bool) -> str | None:
        """Why not so many; nothing is started to find out unless it `looks`."""
        written = self._loader.num_workers
        if workers == written or 0 < workers < written:
            return None
        if (method := _start_method(self._loader)) != "fork":
            return f"worker processes start by {method}, and import the script anew while the loop waits; wanted fork"
        if workers > 0 and written > 0:
            return None
        look = self._looked_at() if looks else self._look
        return None if look is None else look.bound or None

    def _workers(self) -> tuple[int, int]:
        return self._loader.num_workers, self._loader.prefetch_factor or PREFETCH_FACTOR

    def _looked_at(self) -> Look:
        if self._look is None:
            is_forked = _start_method(self._loader) == "fork"
            self._look = look_at(self._loader) if is_forked else Look(draws=True)
        return self._look

    def _ahead(self) -> int:
        """Batches that a headrace.Loader prepares."""
        statistics = self._loader.statistics()
        return statistics["prefetch_batches"] if statistics["num_workers"] > 0 else 0


def _why_as_it_is(loader: DataLoader) -> str | None:
    """Why a DataLoader's workers stay as they are; None: they can change."""
    kind = loader.__class__
    if kind._get_iterator is not DataLoader._get_iterator or kind.__iter__ is not DataLoader.__iter__:
        return f"a {kind.__name__} goes over its batches in a way of its own"
    if isinstance(loader.dataset, (IterableDataset, MapDataPipe)):
        return "another number of workers would repeat or reorder the samples of an iterable data set"
    if not loader.in_order:
        return "with in_order=False the order of the batches depends on the workers"
    return None


def _start_method(loader: DataLoader) -> str:
    """How its worker processes start, without deciding it."""
    context = loader.multiprocessing_context or torch.multiprocessing
    return context.get_start_method(allow_none=True) or torch.multiprocessing.get_all_start_methods()[0]
