"""headrace.Loader with the keywords and attributes of torch.utils.data.DataLoader, and for asyncio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from . import _core
from ._loader_help import docstring, signature
from ._loader_options import DataOptions
from ._own_order import OwnOrder
from ._page_lock import PageLock
from ._sampler import sampled_order
from ._source import name_of
from ._source_dataset import SourceDataset
from ._stream import is_stream, no_length, stream_of
from .errors import InvalidArgumentError
from .transforms import operations_of

if TYPE_CHECKING:
    from ._fields import Field

AUTOTUNE = "auto"  # A number that the Loader finds by itself while it runs. It takes -1 for it, too.

_Row = tuple[str, str, str, str]  # Key, requested, applied, reason.
_SWITCHES = ("pin_memory", "persistent_workers", "enable_async_data_loading")


class LoaderOptions(DataOptions, total=False):
    """Keywords of Loader that go to its native half as they are."""

    split: str
    training: bool | None
    seed: int
    fields: Sequence[str] | Mapping[str, Field] | None
    collate_fn: Callable[[list[Any]], Any] | None
    worker_type: str
    worker_timeout_s: float
    persistent_workers: bool
    enable_async_data_loading: bool


class Loader(_core.Loader):
    __doc__ = docstring(_core.Loader.__doc__, """
        num_workers and prefetch_batches may be AUTOTUNE: the Loader finds them while it runs, from what its stages and the loop take
        (decisions() lists what it changed and why, settings is what holds now as keywords of a Loader that decides nothing). With
        auto_tune=False they stay as they begin, and nothing is decided.

        It has what scripts ask of a DataLoader: dataset, batch_size, sampler, batch_sampler, len() and set_epoch(), and beside these classes and
        class_to_idx, as torchvision's data sets have them. Of DataLoader's keywords it takes drop_last, prefetch_factor,
        persistent_workers, worker_init_fn, collate_fn and pin_memory; applied lists each as asked for and as in force.
        torch.utils.data.get_worker_info() knows nothing in its worker processes. Unlike a DataLoader it shuffles in training
        unless shuffle=False.

        sampler and batch_sampler may be of your own, as a DataLoader takes them: any iterable of indices, or of lists of indices. What
        it gives for an epoch is drawn whole when the epoch begins, after set_epoch(epoch) where it has that, and is the order, in
        training or not. Each process of several has a sampler of its own, and world_size=1. state_dict() holds what gives the same
        order again: the sampler's state_dict() where it has one, and the epoch's indices (a tensor) unless the epoch's number or a list
        decides them. Batches may differ in size; batch_size is the largest, where the batch sampler does not tell. Transforms draw by
        sample, the second time that one comes in an epoch anew.

        A source may be an iterable data set, too: it comes in its own order, read by one iterator an epoch, whatever num_workers. One
        thread asks it at a time, now this one and now that. length=N says how many samples an epoch has where the data set does not;
        where nobody does, an epoch ends where the iterator does, len(loader) raises TypeError, and world_size is 1. Its
        state_dict(), where it has one, is kept with every batch, so that an epoch goes on without what was read before.

        "async for batch in loader" iterates under asyncio; iter(loader).request() asks for a batch without waiting.
        """)

    def __init__(
        self,
        source: Any,
        *,
        prefetch_factor: int | str | None = None,
        drop_last: bool | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], Any] | None = None,
        length: int | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        **keywords: Unpack[LoaderOptions],
    ) -> None:
        options: dict[str, Any] = {**keywords}
        if drop_last is not None:
            _set(options, "drop_last", "last_batch", "drop" if drop_last else "keep")
        if isinstance(sampler, str):  # One of the Loader's own.
            options["sampler"], sampler = sampler, None
        self._order = sampled_order(source, sampler, batch_sampler, options)
        self._stream = stream_of(source, length, options) if is_stream(source) else None
        given = source
        if self._stream is not None:
            source = self._stream
        elif length is not None:
            raise InvalidArgumentError(f"length is {length}; wanted where the source is an iterable data set, others tell theirs")
        for key in ("transforms", "eval_transforms"):
            if key in options:
                options[key] = operations_of(options[key], key)
        if worker_init_fn is not None:
            options["worker_init_fn"] = worker_init_fn
        if prefetch_factor is not None:
            workers = options.get("num_workers")
            _set(options, "prefetch_factor", "prefetch_batches",
                 _prefetch_batches(prefetch_factor, 1 if workers is None else workers))
        self._given = {"num_workers": options.get("num_workers"), "prefetch_factor": prefetch_factor,
                       "pin_memory": bool(pin_memory),
                       **{key: options[key] for key in _SWITCHES if key in options}}
        self._page_lock = PageLock(self._given["pin_memory"])
        super().__init__(source, **options)
        self._page_lock.note_made()
        self._split = options.get("split") or "train"
        self._yours = None if isinstance(given, str) or hasattr(given, "__fspath__") else given  # The source, if it is an object.
        self._name = str(given) if self._yours is None else name_of(given)
        # Of a part of an object, as of a text, nobody has a data set.
        self._dataset = None if options.get("val_fraction") else self._yours

    __init__.__signature__ = signature()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        if "_name" not in vars(self):  # Its making has failed.
            return object.__repr__(self)
        is_endless = self._stream is not None and self._stream.length is None
        samples = "samples" if is_endless else f"{self.samples:,} samples"
        classes = "" if self.num_classes is None else f", {self.num_classes} classes"
        return (f"<headrace.Loader {self._name}, {self._split}: {samples}{classes}; batches of {self.batch_size}, "
                f"num_workers {self.options['num_workers']}>")

    @property
    def dataset(self) -> Any:
        """What it reads: your own data set; of one that was named by a text, or a part of yours, its length, classes, class_to_idx,
        samples (name and label) and targets. Of a part of yours labels are known when a sample is read: targets raises
        UnsupportedError, and samples has -1."""
        if self._dataset is not None:
            return self._dataset
        return SourceDataset(self, f"{self._name}, {self._split}", knows_labels=self._yours is None)

    @property
    def classes(self) -> list[str] | None:
        """Names of the classes, in the order of the labels; None where the source has numbers only, or does not tell."""
        names = self._class_names if self._yours is None else getattr(self._yours, "classes", None)
        return list(names) if isinstance(names, Sequence) and not isinstance(names, str) and len(names) > 0 else None

    @property
    def class_to_idx(self) -> dict[str, int] | None:
        """The label of each class by its name, as torchvision's data sets have it; None where classes is."""
        names = self.classes
        return None if names is None else {name: label for label, name in enumerate(names)}

    @property
    def sampler(self) -> Any:
        """What gives the order: yours, or that of your batch sampler; else the Loader itself does, and this has set_epoch() and a
        length."""
        yours = None if self._order is None else self._order.sampler
        if self._order is not None and self._order.keyword == "batch_sampler":
            yours = getattr(yours, "sampler", None)
        return OwnOrder(self) if yours is None else yours

    @property
    def takes_own_order(self) -> bool:
        """Whether a sampler or batch sampler of yours gives the order."""
        return self._order is not None

    @property
    def batch_sampler(self) -> Any:
        """The batch sampler that was given; None: none was."""
        return self._order.sampler if self._order is not None and self._order.keyword == "batch_sampler" else None

    def __len__(self) -> int:
        if self._stream is not None and self._stream.length is None:
            raise TypeError(no_length(self._stream.source))
        if self._order is None:
            return super().__len__()
        options = super().options
        return self._order.batches(self.batch_size, options["training"] and options["last_batch"] == "drop")

    def set_prefetch_batches(self, batches: int | str) -> None:
        """Or AUTOTUNE. Live; changes no byte."""
        if self._stream is not None:
            self._stream.reads_ahead(batches)
        super().set_prefetch_batches(batches)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self._stream is not None and self._stream.is_stateful:
            state["data_set"] = self._stream.state_at(state["epoch"], state["position"])
        return state if self._order is None else self._order.add_to(state)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self._stream is not None and self._stream.is_stateful and "data_set" in state_dict:
            self._stream.load(state_dict["epoch"], state_dict["data_set"])
        if self._order is not None:
            self._order.load(state_dict)

    @property
    def options(self) -> dict[str, Any]:
        """Every keyword with its value in force."""
        given = {} if self._order is None else {self._order.keyword: self._order.sampler}
        return {**super().options, **given}

    @property
    def applied(self) -> list[_Row]:
        """What was asked for and what is in force: (key, requested, applied, reason), of options that change no byte, and of
        DataLoader's keywords by their own names."""
        rows = super().applied
        return [*rows, *self._keyword_rows({row[0]: row for row in rows})]

    @property
    def settings(self) -> dict[str, Any]:
        """num_workers, prefetch_batches and cache as they are in force, and auto_tune=False: keywords under which a Loader of the
        same source is from its first batch on as this one is now, whatever of it was asked for or found."""
        now = {key: applied for key, _, applied, _ in super().applied}
        return {"num_workers": int(now["data.num_workers"]), "prefetch_batches": int(now["data.prefetch_batches"]),
                "cache": now["data.cache"], "auto_tune": False}

    @property
    def pinning(self) -> tuple[bool, str]:
        """Whether its batches lie in page-locked memory, and why that is not what was asked for; "": it is."""
        return self._page_lock.state

    @property
    def not_applied(self) -> dict[str, str]:
        """Keywords that were given and change nothing here, each with the reason."""
        return {key: reason for key, requested, applied, reason in self.applied
                if key in _SWITCHES and self._given.get(key) and requested != applied}

    def _keyword_rows(self, rows: dict[str, _Row]) -> Iterator[_Row]:
        options, workers = self.options, self.statistics()["num_workers"]
        no_workers = "" if workers else "no workers: the one that iterates loads"
        yield "batch_size", str(self.batch_size), str(self.batch_size), ""
        if self._given["num_workers"] is not None:
            yield "num_workers", *rows["data.num_workers"][1:]
        if (factor := self._given["prefetch_factor"]) is not None:
            _, _, depth, reason = rows["data.prefetch_batches"]
            ahead = int(depth) / workers if workers else 0
            yield "prefetch_factor", _text(factor), f"{ahead:g}", no_workers or reason
        is_pinned, reason = self.pinning
        yield "pin_memory", _text(self._given["pin_memory"]), _text(is_pinned), reason
        yield "persistent_workers", *_granted(options["persistent_workers"], no_workers)
        yield "enable_async_data_loading", *_granted(options["enable_async_data_loading"], no_workers)

    async def __aiter__(self) -> AsyncIterator[Any]:
        batches = iter(self)
        while (batch := await batches.request()) is not None:
            yield batch


async def awaited(request: Any) -> Any:
    """What awaiting a request gives. Another thread waits only, so that an await that is cancelled takes nothing."""
    await asyncio.get_running_loop().run_in_executor(None, request.wait)
    return request.result()


def _granted(requested: bool, refusal: str) -> tuple[str, str, str]:
    """Requested, applied, reason of a switch."""
    return _text(requested), _text(requested and not refusal), refusal if requested else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _prefetch_batches(factor: int | str, workers: int | str) -> int | str:
    if factor in (AUTOTUNE, -1):
        return AUTOTUNE
    if workers in (AUTOTUNE, -1):
        raise InvalidArgumentError(
            f"prefetch_factor is {factor} batches a worker, and num_workers is AUTOTUNE; wanted AUTOTUNE for it, too, or "
            "prefetch_batches, which counts them all")
    if isinstance(factor, str) or isinstance(workers, str):
        raise InvalidArgumentError(f"prefetch_factor is {factor!r} and num_workers {workers!r}; wanted numbers or AUTOTUNE")
    return factor * max(1, workers)


def _set(options: dict[str, Any], given: str, name: str, value: Any) -> None:
    if name in options:
        raise InvalidArgumentError(f"{given} and {name} are the same; wanted one of them")
    options[name] = value
