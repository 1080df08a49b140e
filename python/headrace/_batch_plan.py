"""hr.plan_batch_size: how many samples fit into memory at once, and how many of them pay, found by a few steps whose effects are undone.
The probes, the fit and what is put back are the engine's (include/headrace/batch_planner.h)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from . import _engine_door
from ._batch_parts import is_batch, repeated
from ._charts import paragraph, table
from ._compiled import paused, warn_of_another_size
from ._dataloader import change
from ._loader import Loader
from ._pipeline import OptimizedLoader
from ._progress import tell_line
from ._state import Generators
from ._tensor_memory import MIB, checked_bytes
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from ._engine import Trainer

_HEAD = ("batch size", "peak memory, MiB", "ms a step", "samples/s", "result")


@dataclasses.dataclass(frozen=True)
class BatchProbe:
    """A batch size that was tried: the most bytes that tensors held in it, None where memory ran out, and the seconds of a step,
    the middle of several and how far they lie apart, None where nobody timed it."""

    batch_size: int
    peak_bytes: int | None
    step_s: float | None
    spread_s: float | None
    ran_out: bool

    @property
    def samples_per_second(self) -> float | None:
        return None if self.step_s is None else self.batch_size / self.step_s


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """What plan_batch_size() found. batch_size is what to compute at once, and gradient_accumulation_steps how many such micro-batches
    make the global batch; largest_batch_size is what memory_limit, in bytes of tensors, would hold. A step holds fixed_bytes
    (parameters, buffers, gradients, optimizer state, and all other tensors that are there), activation_bytes, and bytes_per_sample
    for each sample: predicted_peak, which is memory_fraction of the limit. samples_per_second is None where the size itself was not
    tried."""

    batch_size: int
    gradient_accumulation_steps: int
    largest_batch_size: int
    probes: tuple[BatchProbe, ...]
    fixed_bytes: int
    activation_bytes: float
    bytes_per_sample: float
    predicted_peak: int
    memory_limit: int
    memory_fraction: float
    samples_per_second: float | None
    search_s: float
    reason: str

    def largest_for(self, memory_bytes: float) -> int | None:
        """The largest batch size that memory of this many bytes would hold by what was measured, not tried; 0: none fits. None: the
        probes do not tell what a sample takes."""
        if self.bytes_per_sample <= 0:  # Else as predict_batch_size() of include/headrace/batch_planner.h.
            return None
        return max(0, math.floor((memory_bytes - self.fixed_bytes - self.activation_bytes) / self.bytes_per_sample))

    def search_share(self, samples: int) -> float | None:
        """The search's part of the time of a run over this many samples, search included. None: nobody measured the throughput."""
        if self.samples_per_second is None:
            return None
        return self.search_s / (self.search_s + samples / self.samples_per_second)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    def __repr__(self) -> str:
        lines = [f"<headrace.BatchPlan: {self._sentence()}", "  ".join(f"{name:>16}" for name in _HEAD).rstrip()]
        lines += ["  ".join(f"{cell:>16}" for cell in row).rstrip() for row in self._rows()]
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        return paragraph(self._sentence()) + table(_HEAD, self._rows())

    def _sentence(self) -> str:
        steps = self.gradient_accumulation_steps
        accumulated = f" x {steps} micro-batches" if steps > 1 else ""
        return f"batches of {self.batch_size}{accumulated}; {self.reason}"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for probe in self.probes:
            rate = probe.samples_per_second
            yield (str(probe.batch_size), "unavailable" if probe.peak_bytes is None else f"{probe.peak_bytes / MIB:.1f}",
                   "unavailable" if probe.step_s is None else f"{1e3 * probe.step_s:.2f}",
                   "unavailable" if rate is None else f"{rate:.1f}",
                   "ran out of memory" if probe.ran_out else "chosen" if probe.batch_size == self.batch_size else "")


def plan_batch_size(trainer: Trainer, loader_or_batch: Any, *, initial_batch_size: int = 32, max_batch_size: int = 512,
                    memory_limit_mib: float | None = None, target_throughput: float | None = None,
                    global_batch_size: int | None = None, progress: bool = False) -> BatchPlan:
    """Finds how many samples a step of this Trainer should compute at once: up to four sizes are tried, the first initial_batch_size
    and none above max_batch_size, and memory of every other follows from these. No out-of-memory is needed for it; one that
    happens is survived. Training is as it was afterwards, bit for bit: parameters, buffers, gradients, optimizer, averages, counts,
    generators, and the loader's place. A model of headrace.compiled() is probed as it is written.

    trainer: of headrace.Trainer, with the model, the optimizer and the settings of the run.
    loader_or_batch: a loader, whose first batch is taken, or a batch: a tensor, a dict, a tuple, or a list with a tensor in it. Its
        samples are repeated where more are wanted. The loader must be one that can be gone through again. One that allows one iteration at
        a time is refused where this would end one: a headrace.Loader within an epoch, a DataLoader with persistent_workers after
        its first epoch has begun. Give a batch of it there.
    memory_limit_mib: what tensors on the CPU may hold; None: the limit in force (set_tensor_memory_limit()), else nine tenths of what
        the machine has left.
    target_throughput: samples per second that are enough; the smallest size that reaches them is chosen. None: the best throughput.
    global_batch_size: samples of an optimizer step, to be kept by accumulating gradients; None: the size is the batch.
    progress: a line on stderr for each size that is tried, and one for what was found.

    A model of headrace.compiled() that has run compiled for batches of other sizes alone gets a RuntimeWarning: the planned size
    may compile it again. Meanwhile it needs a copy of the training state beside the limit. No other thread may make tensors then,
    or they count.

    UnsupportedError: headrace's engine cannot be had, the model is not on the CPU, or tensors cannot be counted here. OutOfMemoryError:
    one sample does not fit.
    """
    engine = _engine_door.engine("headrace.plan_batch_size")
    if not isinstance(trainer, engine.Trainer):
        raise InvalidArgumentError(f"plan_batch_size: trainer: wanted a headrace.Trainer, found {type(trainer).__name__}")
    _check_sizes(initial_batch_size, max_batch_size, global_batch_size)
    if target_throughput is not None and not target_throughput > 0:
        raise InvalidArgumentError(f"plan_batch_size: target_throughput: wanted samples per second above 0, found {target_throughput}")
    limit = 0 if memory_limit_mib is None else checked_bytes(memory_limit_mib)
    if memory_limit_mib is not None and limit == 0:
        raise InvalidArgumentError(f"plan_batch_size: memory_limit_mib: wanted MiB above 0, or None, found {memory_limit_mib}")

    def batch_of(samples: int) -> Any:
        if progress:
            tell_line(f"plan_batch_size: trying batches of {samples}")
        return repeated(batch, samples)

    engine.watch_tensor_memory()  # So that a loader's batch counts as what is held; the search says where nobody can count.
    with paused() as called, _first_batch(loader_or_batch) as batch:
        found = trainer._plan_batch_size(  # type: ignore[attr-defined]
            batch_of, initial_batch_size=initial_batch_size, max_batch_size=max_batch_size, memory_limit=limit,
            target_throughput=target_throughput or 0.0, global_batch_size=global_batch_size or 0)
    plan = _plan_of(found)
    warn_of_another_size(called, plan.batch_size)
    if progress:
        tell_line(f"plan_batch_size: {plan._sentence()}")
    return plan


def _check_sizes(initial: int, largest: int, global_size: int | None) -> None:
    for name, value in (("initial_batch_size", initial), ("max_batch_size", largest), ("global_batch_size", global_size)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidArgumentError(f"plan_batch_size: {name}: wanted a whole number of at least 1, found {value!r}")
    if initial > largest:
        raise InvalidArgumentError(f"plan_batch_size: initial_batch_size: wanted at most max_batch_size, which is {largest}, found "
                                   f"{initial}")


@contextmanager
def _first_batch(given: Any) -> Iterator[Any]:
    """With the generators and the loader's place as before at the end."""
    loader = None if is_batch(given) else given.loader if isinstance(given, OptimizedLoader) else given
    _refuse_open_iteration(loader)
    generators = Generators(loader)
    try:
        yield given if loader is None else _first_of(loader)
    finally:
        generators.restore()


def _refuse_open_iteration(loader: Any) -> None:
    """Of a loader whose next iteration would end the one that is open, or leave out what is left of one."""
    if getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is not None:
        raise InvalidArgumentError("plan_batch_size: loader: wanted a batch of it, or one whose first epoch has not begun, as with "
                                   "persistent_workers it allows one iteration at a time, found one that has begun")
    if isinstance(loader, Loader) and (place := loader.state_dict())["position"] > 0:
        raise InvalidArgumentError("plan_batch_size: loader: wanted a batch of it, or one between two epochs, as it allows one "
                                   f"iteration at a time, found one within epoch {place['epoch']}, at position {place['position']}")


def _first_of(loader: Any) -> Any:
    if hasattr(loader, "__next__"):
        raise InvalidArgumentError("plan_batch_size: wanted a loader that can be gone through again, or a batch, found an iterator")
    batches = loader() if callable(loader) and not isinstance(loader, Iterable) else loader
    try:
        for batch in batches:
            return batch
    finally:
        if isinstance(loader, DataLoader) and loader.persistent_workers:
            change(loader)  # Lets its workers go: they would load beside the search, and the first epoch draws where it starts them.
    raise InvalidArgumentError("plan_batch_size: loader: gave no batch")


def _plan_of(found: dict[str, Any]) -> BatchPlan:
    """What was not measured of a size that ran out is 0 there, or what was held until then."""
    probes = tuple(BatchProbe(probe["batch_size"], None, None, None, True) if probe["ran_out"] else BatchProbe(**probe)
                   for probe in found["probes"])
    return BatchPlan(**{**found, "probes": probes})
