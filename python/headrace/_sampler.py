"""A sampler or batch sampler of the user's own, as torch.utils.data has them: any iterable of indices, or of lists of indices.
What it gives for an epoch is drawn whole when the epoch begins, and is that epoch's order."""

from __future__ import annotations

import copy
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ._stream import is_stream
from .errors import InvalidArgumentError

_DRAWN_MAX = 1 << 26  # Indices of an epoch, 512 MiB: a sampler that never ends is told so.
_KEPT_MAX = 1 << 24  # Indices that a state holds, 128 MiB.
# Of a Loader's own order, and what they are beside another.
_CONTRADICTIONS: dict[str, Any] = {"shuffle": False, "world_size": 1, "shuffle_window": 0, "buckets": 0, "val_fraction": 0}


@dataclass
class _Drawn:
    """The order of one epoch."""

    epoch: int
    before: Any  # The sampler's state before it was drawn; None: it has none.
    indices: array[int] | None  # None: of a state that does not hold them.
    ends: array[int] | None  # Where each batch ends; None: batches are of one size.


class SampledOrder:
    """The orders of a Loader's epochs.

    Before an epoch is drawn, set_epoch(epoch) is called where the sampler has it, or the sampler within a BatchSampler. What a
    state of the Loader holds of it: the sampler's own state_dict() where it has one, as it was before the epoch was drawn, and
    the indices of the epoch that runs, but for what gives the same again: a list, a SequentialSampler, and one that has
    set_epoch and no state_dict, whose order is then compared by its hash."""

    def __init__(self, sampler: Any, in_batches: bool) -> None:
        self.sampler = sampler
        self.keyword = "batch_sampler" if in_batches else "sampler"
        self.name = f"{self.keyword} {type(sampler).__name__}"
        inner = getattr(sampler, "sampler", None) if in_batches else None
        self._sources = [source for source in (sampler, inner) if source is not None]
        self._stateful = self._first_with("state_dict", "load_state_dict")
        self._epochs = self._first_with("set_epoch")
        deciding = inner if type(sampler) is _theirs("BatchSampler") else sampler
        in_sequence = _theirs("SequentialSampler")
        is_decided = (isinstance(deciding, Sequence) or hasattr(deciding, "set_epoch")
                      or in_sequence is not None and isinstance(deciding, in_sequence))
        self._is_drawn_again = self._stateful is None and is_decided
        self._drawn: _Drawn | None = None
        self._before: _Drawn | None = None  # In force again where the native half refuses what was drawn.
        self._resumes = False  # `_drawn` is of a state, and its epoch has not begun.

    def batches(self, batch_size: int, drops_last: bool) -> int:
        """Of an epoch, as far as the sampler tells; TypeError where it has no length, as of a DataLoader."""
        count = len(self.sampler)
        if self.keyword == "batch_sampler":
            return count
        return count // batch_size if drops_last else -(-count // batch_size)

    def draw(self, epoch: int) -> tuple[str, array[int], array[int] | None]:
        """What the native half asks for as an epoch begins: a name for messages, indices, and of batches where each ends."""
        if self._epochs is not None:
            self._epochs.set_epoch(epoch)
        before = self._own_state()
        indices, ends = self._read(epoch)
        resumed, self._resumes = self._drawn if self._resumes else None, False
        if resumed is not None and not indices:
            indices, ends = self._read(epoch)  # Its state was one of an epoch that had ended: this is the next.
        if resumed is not None and resumed.epoch == epoch and resumed.indices is not None:
            before, indices, ends = resumed.before, resumed.indices, resumed.ends
        self._before, self._drawn = self._drawn, _Drawn(epoch, before, indices, ends)
        return self.name, indices, ends

    def add_to(self, state: dict[str, Any]) -> dict[str, Any]:
        """`state`: of the native Loader, which has "order" where it stands within an epoch."""
        if "order" not in state:
            own = self._drawn.before if self._resumes and self._drawn is not None else self._own_state()
            return state if self._stateful is None else {**state, "sampler": own}
        drawn = next(order for order in (self._drawn, self._before) if order is not None and order.epoch == state["epoch"])
        added = {} if self._stateful is None else {"sampler": copy.deepcopy(drawn.before)}
        if self._is_drawn_again or drawn.indices is None:
            return {**state, **added}
        if len(drawn.indices) > _KEPT_MAX:
            if self._stateful is not None:
                return {**state, **added}
            raise InvalidArgumentError(
                f"{self.name}: its {len(drawn.indices)} indices of epoch {drawn.epoch} cannot be drawn again, and a state holds at "
                f"most {_KEPT_MAX}; wanted a sampler with set_epoch, or with state_dict and load_state_dict")
        added["indices"] = _tensor(drawn.indices)
        if drawn.ends is not None:
            added["batch_ends"] = _tensor(drawn.ends)
        return {**state, **added}

    def load(self, state: dict[str, Any]) -> None:
        """What add_to() gave; the native Loader has taken its part."""
        if self._stateful is not None and "sampler" in state:
            self._stateful.load_state_dict(copy.deepcopy(state["sampler"]))
        self._drawn = _Drawn(state["epoch"], state.get("sampler"), _array(state.get("indices")), _array(state.get("batch_ends")))
        self._resumes = True

    def _first_with(self, *methods: str) -> Any:
        return next((source for source in self._sources if all(hasattr(source, method) for method in methods)), None)

    def _own_state(self) -> Any:
        return None if self._stateful is None else copy.deepcopy(self._stateful.state_dict())

    def _read(self, epoch: int) -> tuple[array[int], array[int] | None]:
        indices: array[int] = array("q")
        if self.keyword == "sampler":
            self._take(indices, self.sampler, epoch, "wanted an integer; lists of them are a batch_sampler's")
            return indices, None
        ends: array[int] = array("q")
        for number, batch in enumerate(self.sampler):
            if isinstance(batch, (str, bytes)) or not isinstance(batch, Iterable):
                raise InvalidArgumentError(f"{self.name}: batch {number} of epoch {epoch} is {batch!r}; wanted a list of indices")
            self._take(indices, batch, epoch, "wanted an integer")
            ends.append(len(indices))
        return indices, ends

    def _take(self, indices: array[int], given: Any, epoch: int, wanted: str) -> None:
        for index in islice(given, _DRAWN_MAX + 1 - len(indices)):
            try:
                indices.append(index)
            except (TypeError, OverflowError):
                raise InvalidArgumentError(
                    f"{self.name}: the index at position {len(indices)} of epoch {epoch} is {index!r}; {wanted}") from None
        if len(indices) > _DRAWN_MAX:
            raise InvalidArgumentError(f"{self.name}: gave more than {_DRAWN_MAX} indices for epoch {epoch}; an epoch's order is "
                                       "drawn whole before it begins, so a sampler must end")


def sampled_order(source: Any, sampler: Any, batch_sampler: Any, options: dict[str, Any]) -> SampledOrder | None:
    """None: neither is the user's own. `options`: the Loader's other keywords, of which those that contradict it are refused;
    what follows from it is set."""
    if sampler is None and batch_sampler is None:
        return None
    if sampler is not None and batch_sampler is not None:
        raise InvalidArgumentError("sampler and batch_sampler are both given; wanted one of them")
    keyword, given = ("sampler", sampler) if batch_sampler is None else ("batch_sampler", batch_sampler)
    if isinstance(given, (str, bytes)) or not hasattr(type(given), "__iter__"):
        kind = "indices" if batch_sampler is None else "lists of indices"
        raise InvalidArgumentError(f"{keyword} is {given!r}; wanted an iterable of {kind}")
    order = SampledOrder(given, batch_sampler is not None)
    if is_stream(source):
        raise InvalidArgumentError(f"{order.name} is given for {type(source).__name__}, an iterable data set, which comes in its "
                                   "own order; wanted no sampler")
    for key, neutral in _CONTRADICTIONS.items():
        if options.get(key, neutral) != neutral:
            part = ", which gives this rank's part, as torch's DistributedSampler does" if key == "world_size" else ""
            raise InvalidArgumentError(f"{key} is {options[key]!r} beside {order.name}{part}; wanted {neutral!r}")
    options["shuffle"] = False
    options["given_order"] = order.draw
    if batch_sampler is not None:
        options["batch_size"] = _largest_batch(order, options)
    return order


def _largest_batch(order: SampledOrder, options: dict[str, Any]) -> int:
    """For which memory is allocated. No batch is left over, or filled up."""
    if options.get("last_batch", "keep") != "keep":
        raise InvalidArgumentError(f"last_batch is {options['last_batch']!r} beside {order.name}, whose batches are taken as they "
                                   "are; wanted 'keep'")
    for size in (options.get("batch_size"), getattr(order.sampler, "batch_size", None)):
        if size is not None:
            return size
    if isinstance(order.sampler, Sequence) and all(isinstance(batch, Sequence) for batch in order.sampler):
        return max(map(len, order.sampler), default=1) or 1
    raise InvalidArgumentError(f"{order.name} does not tell its largest batch (batch_size), for which memory is allocated; say it: "
                               "batch_size=")


def _theirs(name: str) -> Any:
    """This class of torch.utils.data; None: nobody has loaded it, and there is no object of it."""
    return getattr(sys.modules.get("torch.utils.data"), name, None)


def _tensor(numbers: array[int]) -> Any:
    """A copy, as a tensor; without torch as an array."""
    if (torch := sys.modules.get("torch")) is not None:
        return torch.frombuffer(numbers, dtype=torch.int64).clone()
    import numpy

    return numpy.array(numbers, numpy.int64)


def _array(numbers: Any) -> array[int] | None:
    return None if numbers is None else array("q", numbers.tolist())
