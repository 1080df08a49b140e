"""headrace.DataPipelineOptimizer: a script's own loader or data set under other settings, with the same samples."""

from __future__ import annotations

import copy
import difflib
import json
import os
import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler

from ._dataloader import change, epoch_of
from ._loader import Loader, awaited
from ._native_loader import draws, native_loader_for
from ._page_lock import pinning_refusal
from .errors import Error, InvalidArgumentError

_DEFAULTS: dict[str, Any] = {"num_workers": 4, "batch_size": None, "pin_memory": True, "persistent_workers": True,
                             "prefetch_factor": 2, "enable_async_data_loading": True}
_BATCH_SIZE = 32  # Of a data set that comes without a loader.
_RANGES = {"num_workers": (0, 256), "batch_size": (1, 65536), "prefetch_factor": (1, 64)}
_DEPTH_MAX = 64  # Batches that a headrace.Loader prepares ahead.
_SWITCHES = ("pin_memory", "persistent_workers", "enable_async_data_loading")
_NO_WORKERS = "there are no workers"


@dataclass(frozen=True)
class LoaderChange:
    """What became of one setting of a loader."""

    option: str
    old: Any  # None: a data set came without a loader.
    new: Any  # As it was asked for.
    applied: bool  # Whether it is in force.
    reason: str  # Why it is not; of what is, what comes with it, or nothing.

    def __str__(self) -> str:
        outcome = "applied" if self.applied else "not applied"
        return f"{self.option}: {self.old} -> {self.new}, {outcome}{f': {self.reason}' if self.reason else ''}"


class PipelineReport(list[LoaderChange]):
    """What DataPipelineOptimizer changed and what it could not change, a LoaderChange each; str() has a line for each."""

    @property
    def changed(self) -> list[LoaderChange]:
        """What is in force and was not before."""
        return [entry for entry in self if entry.applied and entry.old != entry.new]

    @property
    def not_applied(self) -> list[LoaderChange]:
        """What was asked for and is not in force."""
        return [entry for entry in self if not entry.applied]

    def __str__(self) -> str:
        return "\n".join(map(str, self))


class DataPipelineOptimizer:
    """Gives an existing loader or data set other settings, and says which of them took effect. The samples stay the same, in the
    same order; the report says where what the data set itself draws at random may change.

        loader, report = hr.DataPipelineOptimizer(num_workers=4).optimize_loader(loader)
        print(report)

    config: a mapping, or an object with attributes, of num_workers=4, batch_size=None, pin_memory=True,
    persistent_workers=True, prefetch_factor=2 (batches a worker prepares ahead) and enable_async_data_loading=True;
    keywords go before it. batch_size=None keeps a loader's own and gives a data set 32.

    native=True puts a headrace.Loader in the place of a DataLoader over torchvision's ImageFolder or MNIST-like data sets
    where their transforms are known: the same samples and transforms, read by threads in C++, with pixels the same to within
    rounding; what is drawn at random, a plain shuffle included, is drawn by other generators. A sampler or batch sampler of
    another kind is taken as it is, and decides the order."""

    def __init__(self, config: Any = None, *, native: bool = False, **options: Any) -> None:
        self._takes_place = native
        self._wanted = {**_DEFAULTS, **_settings_of(config), **_settings_of(options)}
        for name, (low, high) in _RANGES.items():
            value = self._wanted[name]
            if name == "batch_size" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InvalidArgumentError(f"{name} is {value!r}; wanted {low} to {high}")
        for name in _SWITCHES:
            if not isinstance(self._wanted[name], bool):
                raise InvalidArgumentError(f"{name} is {self._wanted[name]!r}; wanted True or False")

    @property
    def config(self) -> dict[str, Any]:
        """What every loader is asked to have."""
        return dict(self._wanted)

    def __repr__(self) -> str:
        wanted = ", ".join(f"{name}={value!r}" for name, value in self._wanted.items())
        return f"headrace.DataPipelineOptimizer({wanted}{', native=True' if self._takes_place else ''})"

    def optimize_loader(self, loader: Any) -> tuple[OptimizedLoader | Loader, PipelineReport]:
        """The loader under the settings asked for, and what became of each setting.

        loader: a DataLoader, which stays as it is (its data set, samplers and generators are shared); a data set with
        __getitem__ and __len__, or torch's IterableDataset, which is batched in its order; a headrace.Loader, which is changed
        in place, between two batches too; or whatever else gives batches, as a list, or a function that makes a generator."""
        if isinstance(loader, Loader):
            return loader, self._change_native(loader)
        if isinstance(loader, DataLoader):
            return self._of_dataloader(loader, dict(_settings_in(loader)))
        if isinstance(loader, Dataset) or _is_dataset(loader):
            plain = DataLoader(loader, batch_size=self._wanted["batch_size"] or _BATCH_SIZE)
            return self._of_dataloader(plain, dict.fromkeys(_DEFAULTS))
        if isinstance(loader, (str, bytes, Mapping)) or not (hasattr(loader, "__iter__") or callable(loader)):
            raise InvalidArgumentError(f"loader is a {type(loader).__name__}; wanted a DataLoader, a data set, a "
                                       "headrace.Loader or something that gives batches")
        return self._of_batches(loader)

    def _of_dataloader(self, loader: DataLoader, old: dict[str, Any]) -> tuple[OptimizedLoader | Loader, PipelineReport]:
        plan = _Plan(self._wanted, old)
        tuned = copy.copy(loader)
        _set_batch_size(tuned, plan)
        if self._takes_place and (native_loader := self._native_loader(tuned, plan)) is not None:
            return native_loader, plan.report
        _set_workers(tuned, plan)
        if plan.wanted["pin_memory"] and not torch.cuda.is_available():
            plan.refuse("pin_memory", "no CUDA")
            change(tuned, pin_memory=False)
        else:
            plan.apply("pin_memory")
            change(tuned, pin_memory=plan.wanted["pin_memory"])
        plan.apply("enable_async_data_loading")
        return OptimizedLoader(tuned, plan.wanted["enable_async_data_loading"], plan.report, loader), plan.report

    def _native_loader(self, loader: DataLoader, plan: _Plan) -> Loader | None:
        wanted = plan.wanted
        found = native_loader_for(loader, takes_samplers=True, num_workers=wanted["num_workers"], prefetch_batches=_depth(wanted),
                                  **{key: wanted[key] for key in _SWITCHES})
        if isinstance(found, str):
            plan.add("loader", type(loader).__name__, "headrace.Loader", False, found)
            return None
        drawn = "random transforms" if found.takes_own_order else "the order and random transforms"
        note = f"{drawn} are drawn by other generators" if draws(found) else "pixels are the same to within rounding"
        plan.add("loader", type(loader).__name__, "headrace.Loader", True, note)
        plan.follow(found, ("num_workers", "prefetch_factor", *_SWITCHES))
        return found

    def _change_native(self, loader: Loader) -> PipelineReport:
        wanted = self._wanted
        plan = _Plan(wanted, {key: value for key, (value, _) in _state_of(loader).items()})
        try:
            loader.set_num_workers(wanted["num_workers"])
            loader.set_prefetch_batches(_depth(wanted))
        except Error as refused:
            plan.refusal = str(refused)
        plan.follow(loader, [key for key in wanted if wanted[key] is not None])
        return plan.report

    def _of_batches(self, loader: Any) -> tuple[OptimizedLoader, PipelineReport]:
        plan = _Plan(self._wanted, dict.fromkeys(_DEFAULTS))
        kind = type(loader).__name__
        for key in ("num_workers", "batch_size", "persistent_workers", "prefetch_factor"):
            plan.refuse(key, f"the batches of a {kind} come whole, one after the other")
        if plan.wanted["pin_memory"]:
            plan.refuse("pin_memory", pinning_refusal() or f"the batches of a {kind} are made elsewhere")
        plan.apply("enable_async_data_loading")
        return OptimizedLoader(loader, plan.wanted["enable_async_data_loading"], plan.report, None), plan.report


class _Plan:
    """What is wanted, and the report of what becomes of it."""

    def __init__(self, wanted: Mapping[str, Any], old: Mapping[str, Any]) -> None:
        self.wanted, self.old = wanted, old
        self.report = PipelineReport()
        self.refusal = ""  # Of a headrace.Loader that could not be changed.

    def add(self, option: str, old: Any, new: Any, applied: bool, reason: str) -> None:
        self.report.append(LoaderChange(option, old, new, applied, reason))

    def apply(self, option: str, note: str = "") -> None:
        self.add(option, self.old[option], self.wanted[option], True, note)

    def refuse(self, option: str, reason: str) -> None:
        if self.wanted[option] is not None:
            self.add(option, self.old[option], self.wanted[option], False, reason)

    def follow(self, loader: Loader, options: Iterable[str]) -> None:
        """Reports what a headrace.Loader has of these options."""
        state = _state_of(loader)
        for key in options:
            value, reason = state[key]
            if value == self.wanted[key]:
                self.apply(key)
            else:
                self.refuse(key, reason or self.refusal or self._limit_of(key))

    def _limit_of(self, option: str) -> str:
        """Why a headrace.Loader that raised nothing and tells no reason has another value."""
        if option == "prefetch_factor" and _batches_ahead(self.wanted) > _DEPTH_MAX:
            return f"a headrace.Loader prepares at most {_DEPTH_MAX} batches ahead"
        return "a headrace.Loader has it from when it was made"


def _state_of(loader: Loader) -> dict[str, tuple[Any, str]]:
    """What a headrace.Loader has of each option, and why it has no other, where it says so."""
    rows = {key: (json.loads(value) if key in _SWITCHES else value, reason) for key, _, value, reason in loader.applied}
    statistics = loader.statistics()
    workers, depth = statistics["num_workers"], statistics["prefetch_batches"]
    factor = depth / workers if workers else 0
    return {**rows, "num_workers": (workers, ""), "batch_size": (loader.batch_size, ""),
            "pin_memory": (loader.pinning[0], loader.pinning[1] or pinning_refusal()),
            "prefetch_factor": (int(factor) if factor == int(factor) else factor,
                                rows["data.prefetch_batches"][1] if workers else _NO_WORKERS)}


class _BaseSeeds:
    """Begins the epochs over a copy of a DataLoader, and lets the generators that both share go on as if the epochs were over
    the original: torch draws a base seed before the order of an epoch, with workers that persist of their first epoch alone."""

    def __init__(self, original: DataLoader) -> None:
        self._once = original.persistent_workers and original.num_workers > 0
        self._is_drawn = self._once and original._iterator is not None
        self._own: torch.Generator | None = None  # Gives the base seeds that the original does not draw.

    def begin(self, loader: DataLoader) -> Iterator[Any]:
        shared = loader.generator
        if not self._is_drawn:
            self._is_drawn = self._once
            if loader._iterator is not None:  # Workers that persist here, where the original has new ones.
                torch.empty((), dtype=torch.int64).random_(generator=shared)
            return epoch_of(loader)
        if self._own is None:
            seed = torch.initial_seed() if shared is None else shared.initial_seed()
            self._own = torch.Generator().manual_seed(seed ^ 1)  # Not the numbers that have been drawn with it.
        loader.generator = self._own
        try:
            return epoch_of(loader)
        finally:
            loader.generator = shared


class OptimizedLoader:
    """What DataPipelineOptimizer makes of a DataLoader or another giver of batches. It iterates, and has the length and the
    attributes, of `loader`, the one it goes over. `iter(loader).request()` asks for the next batch, and returns at once where
    loading is asynchronous; "async for batch in loader" iterates under asyncio. Where workers persist, they serve one epoch
    at a time: a new one ends the one before."""

    def __init__(self, loader: Any, asynchronous: bool, report: PipelineReport, original: DataLoader | None) -> None:
        self.loader = loader
        self._report = report
        self._asynchronous = asynchronous
        self._seeds = None if original is None else _BaseSeeds(original)
        self._epochs = 0  # That have begun.
        self._asked: weakref.ref[Future[Any]] | None = None  # Of the last request; gone when nobody loads or holds it any more.

    def __iter__(self) -> OptimizedEpoch:
        if self._asked is not None and (batch := self._asked()) is not None:
            wait([batch])  # Its thread would take what the workers answer to the new epoch.
        self._epochs += 1
        return OptimizedEpoch(self, epoch_of(self.loader) if self._seeds is None else self._seeds.begin(self.loader))

    def __len__(self) -> int:
        return len(self.loader)

    def __repr__(self) -> str:
        return f"<headrace.OptimizedLoader over a {type(self.loader).__name__}: {len(self._report.changed)} settings changed>"

    async def __aiter__(self) -> AsyncIterator[Any]:
        batches = iter(self)
        while (batch := await batches.request()) is not None:
            yield batch

    def __getattr__(self, name: str) -> Any:
        if name == "loader" or name.startswith("__"):  # Not there yet while a copy is made.
            raise AttributeError(name)
        return getattr(self.loader, name)  # dataset, batch_size, sampler: as a DataLoader's.

    @property
    def applied(self) -> list[tuple[str, str, str, str]]:
        """Each setting as asked for and as in force: (key, requested, applied, reason), as headrace.Loader.applied."""
        now = dict(_settings_in(self.loader)) if isinstance(self.loader, DataLoader) else {}
        return [(entry.option, json.dumps(entry.new),
                 json.dumps(entry.new if entry.applied else now.get(entry.option)), entry.reason) for entry in self._report]


class OptimizedEpoch:
    """One epoch of an OptimizedLoader."""

    def __init__(self, loader: OptimizedLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches
        self._number = loader._epochs
        self._thread: ThreadPoolExecutor | None = None
        self._is_open = False  # A request is.

    def __iter__(self) -> OptimizedEpoch:
        return self

    def __next__(self) -> Any:
        self._require_free()
        return next(self._batches)

    def request(self) -> BatchRequest:
        """Asks for the next batch, without waiting where loading is asynchronous. One request may be open at a time; take it
        before the next."""
        self._require_free()
        if self._loader._asynchronous:
            self._thread = self._thread or ThreadPoolExecutor(1, "headrace request")
            batch = self._thread.submit(next, self._batches, None)
            self._loader._asked = weakref.ref(batch)
        else:
            batch = Future()
            try:
                batch.set_result(next(self._batches, None))
            except Exception as error:
                batch.set_exception(error)
        self._is_open = True
        return BatchRequest(self, batch)

    def _require_free(self) -> None:
        # Workers that persist have one iterator, which torch begins anew for each epoch.
        if self._number != self._loader._epochs and self._batches is getattr(self._loader.loader, "_iterator", None):
            raise InvalidArgumentError(
                "python: a newer epoch of this loader has begun; workers that persist serve one at a time")
        if self._is_open:
            raise InvalidArgumentError("python: the batch that was requested before has not been taken")


class BatchRequest:
    """A batch that was asked for. Await it, or take its result()."""

    def __init__(self, batches: OptimizedEpoch, batch: Future[Any]) -> None:
        self._epoch: OptimizedEpoch | None = batches
        self._batch = batch

    def done(self) -> bool:
        """Whether result() would not wait."""
        return self._batch.done()

    def wait(self) -> None:
        """Waits until result() would not, and takes nothing."""
        wait([self._batch])

    def result(self) -> Any:
        """The batch, or None at the epoch's end. Waits, and raises what the iteration would have raised."""
        if self._epoch is None:
            raise InvalidArgumentError("python: this batch has been taken already")
        self.wait()  # A Ctrl-C leaves the request open.
        self._epoch._is_open = False
        self._epoch = None
        return self._batch.result()

    def __await__(self) -> Generator[Any, None, Any]:
        return awaited(self).__await__()


def _settings_of(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        return {name: getattr(config, name) for name in _DEFAULTS if hasattr(config, name)}
    for name in config:
        if name not in _DEFAULTS:
            near = difflib.get_close_matches(str(name), _DEFAULTS, 1)
            raise InvalidArgumentError(f"unknown option {name}" + (f", did you mean {near[0]}?" if near else ""))
    return dict(config)


def _is_dataset(loader: Any) -> bool:
    """Whether it gives samples by index, and is no list of batches."""
    return all(hasattr(type(loader), name) for name in ("__getitem__", "__len__")) and not isinstance(
        loader, (list, tuple, Mapping)) and not hasattr(type(loader), "__iter__")


def _settings_in(loader: DataLoader) -> Iterator[tuple[str, Any]]:
    for name in ("num_workers", "batch_size", "pin_memory", "persistent_workers"):
        yield name, getattr(loader, name)
    yield "prefetch_factor", loader.prefetch_factor or 0
    yield "enable_async_data_loading", False


def _batches_ahead(wanted: Mapping[str, Any]) -> int:
    """Of all workers."""
    return wanted["prefetch_factor"] * max(1, wanted["num_workers"])


def _depth(wanted: Mapping[str, Any]) -> int:
    """As a headrace.Loader takes it."""
    return min(_DEPTH_MAX, _batches_ahead(wanted))


def _set_batch_size(loader: DataLoader, plan: _Plan) -> None:
    wanted = plan.wanted["batch_size"]
    if wanted is None or wanted == loader.batch_size:
        if plan.old["batch_size"] != loader.batch_size:  # A data set's.
            plan.add("batch_size", plan.old["batch_size"], loader.batch_size, True, "")
        elif wanted is not None:
            plan.apply("batch_size")
    elif type(loader.batch_sampler) is not BatchSampler:
        plan.refuse("batch_size", "the loader has no batches of a plain size")
    else:
        batches = loader.batch_sampler  # Where it was given, the loader's own sampler is another.
        change(loader, batch_size=wanted, batch_sampler=BatchSampler(batches.sampler, wanted, batches.drop_last))
        plan.apply("batch_size")


def _set_workers(loader: DataLoader, plan: _Plan) -> None:
    workers, now = plan.wanted["num_workers"], loader.num_workers
    if isinstance(loader.dataset, IterableDataset) and workers != now:
        plan.refuse("num_workers", "another number of workers would repeat or reorder the samples of an iterable data set")
        workers = now
    else:
        plan.apply("num_workers", _worker_note(workers, loader))
    if workers == 0:
        change(loader, num_workers=0, persistent_workers=False, prefetch_factor=None, timeout=0)
        for key in ("persistent_workers", "prefetch_factor"):
            if plan.wanted[key]:
                plan.refuse(key, _NO_WORKERS)
            else:
                plan.apply(key)
        return
    ahead = {key: plan.wanted[key] for key in ("persistent_workers", "prefetch_factor")}
    change(loader, num_workers=workers, **ahead)
    for key in ahead:
        plan.apply(key)


def _worker_note(workers: int, loader: DataLoader) -> str:
    notes = []
    before = loader.num_workers
    if workers != before:
        notes.append("what the data set itself draws at random comes from other generators")
    if (workers == 0) != (before == 0) and _orders_by_torchs_generator(loader):
        notes.append("a data set that draws from torch's may have another order from the second epoch on")
    if workers > (cores := len(os.sched_getaffinity(0))):
        notes.append(f"more than the {cores} cores that this process may use")
    return "; ".join(notes)


def _orders_by_torchs_generator(loader: DataLoader) -> bool:
    """Whether the order may be drawn from the generator that a data set in the same process may draw from, too."""
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    return type(sampler) is not SequentialSampler and getattr(sampler, "generator", None) is None
