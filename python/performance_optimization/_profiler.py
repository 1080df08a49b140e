"""Scopes, batches, operators and memory of a training loop under the names that published examples use."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ._bottlenecks import find_bottlenecks

if TYPE_CHECKING:
    import torch
    from headrace import watch
    from headrace._operator_profile import Profile
    from headrace._operator_table import KeyAverages

_SERIES = ("training_speed", "memory_usage", "data_loading_time", "forward_pass_time", "backward_pass_time", "optimizer_time")
_MEMORY = ("net_bytes", "peak_bytes", "cuda_net_bytes", "cuda_peak_bytes")
_OPERATIONS_MAX = 65536
_GB = 1e9
_Kind = TypeVar("_Kind")


@dataclass
class Operation:
    """One scope that is over. begin_ns and end_ns: of time.perf_counter_ns(). parent: the scope around it on its thread. failed: an
    exception left it. Bytes that tensors on the CPU, and on the CUDA device, kept, and the most they held, since its beginning: None
    where nobody measured it."""

    name: str
    thread: int
    begin_ns: int
    end_ns: int = 0
    parent: Operation | None = None
    failed: bool = False
    net_bytes: int | None = None
    peak_bytes: int | None = None
    cuda_net_bytes: int | None = None
    cuda_peak_bytes: int | None = None
    cuda_most: int = field(default=0, repr=False)  # That torch's tensors held, as far as scopes within this one have told.

    @property
    def seconds(self) -> float:
        return 1e-9 * (self.end_ns - self.begin_ns)


class PerformanceProfiler:
    """Scopes with names, and the parts of batches; both method sets of the published examples in one class.

        profiler = PerformanceProfiler()
        with profiler.profile("training_step"):
            ...
        profiler.get_profile_summary()

        profiler.start_batch_timer()
        ...
        profiler.record_batch_metrics(batch_size, forward_time, backward_time, optimizer_time)
        profiler.get_performance_report()
        profiler.identify_bottlenecks()

        with PerformanceProfiler() as profiler:      # headrace.watch measures the steps of any loop in the block.
            for batch in loader:
                ...
        profiler.get_performance_report()

    As a context manager it fills all six series of `metrics` at the end of the block, also where that raises: one value a training step, as
    headrace.watch() finds them, which the first time on a machine takes half a second; memory is then what of the process is resident.
    `metrics_reason`: why there are none, as of a block without steps, or what is to be known of them, as that a device was not waited for.
    One recording at a time in a process: headrace.errors.InvalidArgumentError, a ValueError, if another one runs.

    enable_profiling: False: scopes cost a call, and neither they nor a block record anything. enable_memory_profiling: scopes count their
    memory, too: what their own thread allocates on the CPU, by headrace's engine, which takes the place of a torch.profiler in that thread;
    on CUDA what torch's allocator says of all threads, whose peak statistics it sets back. `memory_reason` says why it is unavailable.
    clock: seconds, for tests. Scopes of any thread; the newest 65,536 are kept. Batches are for one thread.
    """

    def __init__(self, enable_profiling: bool = True, enable_memory_profiling: bool = False,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.enable_profiling = enable_profiling
        self.enable_memory_profiling = enable_memory_profiling
        self.memory_reason = "" if enable_memory_profiling else "enable_memory_profiling is off"
        self.metrics_reason = "" if enable_profiling else "enable_profiling is off"
        self.operations: collections.deque[Operation] = collections.deque(maxlen=_OPERATIONS_MAX)
        self.metrics: dict[str, list[float]] = {name: [] for name in _SERIES}
        self._clock = clock
        self._batch_start: float | None = None
        self._total_time = 0.0
        self._recorded = 0
        self._thread_numbers = itertools.count()
        self._of_thread = threading.local()
        self._nothing = contextlib.nullcontext()
        self._watch: watch | None = None  # While its block runs.

    def __enter__(self) -> PerformanceProfiler:
        if self.enable_profiling:
            import headrace

            self._watch = headrace.watch(title="PerformanceProfiler").__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        watched, self._watch = self._watch, None
        if watched is None:
            return
        from headrace.errors import Error

        watched.__exit__(kind, error, trace)
        try:
            found = watched.document
        except Error as reason:  # As where the block has no training step.
            self.metrics_reason = str(reason)
            return
        self.metrics_reason = found["host_time"] or ""
        self.take_metrics(found["metrics"])

    def profile(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A context manager: its block is one operation of this name, which an exception marks as failed and passes through."""
        return self._scope(name) if self.enable_profiling else self._nothing

    def get_profile_summary(self) -> dict[str, Any]:
        """total_operations; total_duration, the seconds with any scope open, nested time once, added up over threads; operations, for each
        name count, total_s, mean_s, std_s, min_s, max_s, p50_s, p95_s, p99_s; memory, by name the most bytes kept and held at once by a
        scope, None where unavailable, with memory_reason; dropped_operations, which were too many to keep."""
        from headrace import _core

        done = list(self.operations)
        summary: dict[str, Any] = _core.summarize_spans([(one.name, one.thread, one.begin_ns, one.end_ns) for one in done])
        by_name: dict[str, list[Operation]] = {}
        for one in done:
            by_name.setdefault(one.name, []).append(one)
        memory = {name: {key: _largest(getattr(one, key) for one in named) for key in _MEMORY} for name, named in by_name.items()}
        return {**summary, "memory": memory, "memory_reason": self.memory_reason, "dropped_operations": max(self._recorded - len(done), 0)}

    def tree(self) -> list[dict[str, Any]]:
        """The operations as they lay within each other: name, seconds, failed, and children in the order in which they began."""
        done = sorted(self.operations, key=lambda one: one.begin_ns)
        nodes = {id(one): {"name": one.name, "seconds": one.seconds, "failed": one.failed, "children": []} for one in done}
        roots: list[dict[str, Any]] = []
        for one in done:
            around = nodes.get(id(one.parent)) if one.parent is not None else None
            (roots if around is None else around["children"]).append(nodes[id(one)])
        return roots

    def start_batch_timer(self) -> None:
        """Call it before a batch is asked for."""
        self._batch_start = self._clock()

    def record_batch_metrics(self, batch_size: int, forward_time: float, backward_time: float, optimizer_time: float) -> None:
        """Call it once after the batch's update, with the samples in it and the seconds of its parts; loading is what these leave of the
        time since start_batch_timer(). On CUDA the parts must be waited for, or their work counts as loading; the memory that torch's
        tensors hold there is noted, and without CUDA none.

        InvalidArgumentError, a ValueError: start_batch_timer() was not called for this batch, or a number that cannot be.
        """
        from headrace.errors import InvalidArgumentError

        if self._batch_start is None:
            raise InvalidArgumentError("record_batch_metrics: wanted start_batch_timer() before each batch, found none since the last one")
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InvalidArgumentError(f"record_batch_metrics: batch_size: wanted an integer of at least 1, found {batch_size!r}")
        parts = {"forward_time": forward_time, "backward_time": backward_time, "optimizer_time": optimizer_time}
        for name, value in parts.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise InvalidArgumentError(f"record_batch_metrics: {name}: wanted seconds, at least 0, found {value!r}")
        seconds = self._clock() - self._batch_start
        if seconds <= 0:
            raise InvalidArgumentError(f"record_batch_metrics: wanted a batch that takes time, found {seconds} s")
        self._batch_start = None
        self._total_time += seconds
        self.metrics["training_speed"].append(batch_size / seconds)
        self.metrics["data_loading_time"].append(max(seconds - sum(parts.values()), 0.0))
        self.metrics["forward_pass_time"].append(forward_time)
        self.metrics["backward_pass_time"].append(backward_time)
        self.metrics["optimizer_time"].append(optimizer_time)
        if (memory := _cuda_allocated()) is not None:
            self.metrics["memory_usage"].append(memory / _GB)

    def take_metrics(self, metrics: Mapping[str, Mapping[str, Any]]) -> None:
        """Appends series that headrace has measured by itself: "metrics" of headrace.watch's document, or of `headrace profile`'s JSON."""
        for name in _SERIES:
            self.metrics[name] += metrics[name]["values"] or []
        self._total_time += sum(sum(metrics[name]["values"] or []) for name in _SERIES[2:])

    def get_performance_report(self) -> dict[str, Any]:
        """total_training_time (seconds), average_training_speed and peak_training_speed (samples/s), average_memory_usage and
        peak_memory_usage (10^9 bytes), and time_breakdown, the mean seconds of data_loading, forward_pass, backward_pass and optimizer.
        What nobody recorded is 0; recorded_batches and memory_available say whether it was."""
        speed, memory = self.metrics["training_speed"], self.metrics["memory_usage"]
        parts = {"data_loading": "data_loading_time", "forward_pass": "forward_pass_time", "backward_pass": "backward_pass_time",
                 "optimizer": "optimizer_time"}
        return {
            "total_training_time": self._total_time,
            "average_training_speed": _mean(speed),
            "peak_training_speed": max(speed, default=0),
            "average_memory_usage": _mean(memory),
            "peak_memory_usage": max(memory, default=0),
            "time_breakdown": {name: _mean(self.metrics[series]) for name, series in parts.items()},
            "recorded_batches": len(speed),
            "memory_available": bool(memory),
        }

    def identify_bottlenecks(self, thresholds: Mapping[str, float] | None = None) -> list[dict[str, str]]:
        """What slows the recorded batches down, each with code, sentence and advice; empty where nothing does. Data loading above 0.3 of
        forward, backward and optimizer together, memory above 8 x 10^9 bytes on average, speed of the last ten batches below 0.8 of that
        of all; `thresholds` sets others."""
        if not self.metrics["training_speed"]:
            return []
        compute = sum(_mean(self.metrics[name]) for name in _SERIES[3:])
        memory = self.metrics["memory_usage"]
        return find_bottlenecks(_mean(self.metrics["data_loading_time"]), compute, _GB * _mean(memory) if memory else None,
                                self.metrics["training_speed"], thresholds=thresholds)

    def clear(self) -> None:
        """Forgets all scopes that are over and all batches."""
        self.operations.clear()
        self.metrics = {name: [] for name in _SERIES}
        self._batch_start, self._total_time, self._recorded = None, 0.0, 0

    @contextlib.contextmanager
    def _scope(self, name: str) -> Iterator[Operation]:
        import headrace

        mine = self._of_thread.__dict__
        if not mine:
            mine.update(number=next(self._thread_numbers), open=[])
        stack: list[Operation] = mine["open"]
        one = Operation(name, mine["number"], 0, parent=stack[-1] if stack else None)
        stack.append(one)
        try:
            with self._memory_of(one), headrace.span(name):  # A headrace.Trace that records has it, too.
                one.begin_ns = time.perf_counter_ns()
                try:
                    yield one
                except BaseException:
                    one.failed = True
                    raise
                finally:
                    one.end_ns = time.perf_counter_ns()
        finally:
            stack.pop()
            self.operations.append(one)
            self._recorded += 1

    @contextlib.contextmanager
    def _memory_of(self, one: Operation) -> Iterator[None]:
        scope = self._engine_scope() if self.enable_memory_profiling else None
        cuda_before = _cuda_allocated() if self.enable_memory_profiling else None
        if cuda_before is not None:
            _begin_cuda_peak(one)
        try:
            yield
        finally:
            if cuda_before is not None:
                one.cuda_net_bytes = (_cuda_allocated() or 0) - cuda_before
                one.cuda_peak_bytes = _end_cuda_peak(one) - cuda_before
            if scope is not None:
                one.net_bytes, one.peak_bytes = scope.stop()

    def _engine_scope(self) -> Any:
        """None, and the reason in memory_reason: it cannot be had."""
        from headrace import _engine_door
        from headrace.errors import UnsupportedError

        try:
            scope = _engine_door.engine("PerformanceProfiler: memory").MemoryScope()
            scope.start()
        except UnsupportedError as error:
            self.memory_reason = str(error)
            return None
        return scope


def profile_performance(train_step: Callable[[Any], Any], dataloader: Iterable[Any], *, log_dir: str | os.PathLike[str] = "./log/profile",
                        wait: int = 1, warmup: int = 1, active: int = 3, repeat: int = 2, record_shapes: bool = True,
                        profile_memory: bool = True, with_stack: bool = True, source: str = "auto") -> Profile:
    """Calls train_step(batch) for each batch of `dataloader`, and writes a trace of every `active` steps into log_dir: with the defaults
    one of steps 2 to 4 and one of 7 to 9. Returns the headrace profile, for key_averages() and explain().

    with_stack has torch.profiler record, as it alone knows the lines of Python; without it headrace's engine does, at less cost.
    Exceptions of train_step pass through; what was recorded by then is written.
    """
    import headrace

    with headrace.profile(("cpu", "cuda"), headrace.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat),
                          headrace.write_traces(log_dir), record_shapes, profile_memory, with_stack, source=source) as profile:
        for batch in dataloader:
            train_step(batch)
            profile.step()
    return profile


def profile_memory(model: torch.nn.Module, inputs: Any, target: Any, criterion: Callable[[Any, Any], torch.Tensor] | None = None, *,
                   sort_by: str = "cuda_memory_usage", row_limit: int = 10, source: str = "auto") -> KeyAverages:
    """Runs model(inputs), criterion(output, target) and backward() once, prints which operators keep most memory, and returns them.

    criterion: cross entropy unless given. sort_by: as headrace's KeyAverages.table(); of a device that is not here the table says so and is
    sorted by the same of the CPU. Gradients are added to the model's, as by any backward.
    """
    import headrace
    from torch.nn.functional import cross_entropy

    with headrace.profile(("cpu", "cuda"), record_shapes=True, profile_memory=True, source=source) as profile:
        (cross_entropy if criterion is None else criterion)(model(inputs), target).backward()
    averages = profile.key_averages()
    print(averages.table(sort_by=sort_by, row_limit=row_limit))
    return averages


def profile_memory_usage(model: Any = None, optimizer: Any = None, *, batch: Any = None,
                         loss: torch.Tensor | None = None) -> dict[str, Any]:
    """What lies in the memory of the current CUDA device, in 10^9 bytes; {} without CUDA:

    memory_stats: allocated, reserved, max_allocated, max_reserved, of torch's allocator.
    tensor_breakdown: the ten largest groups, the largest first, by role and module, as "parameters layer4" and "activations
        ReluBackward0"; "other" is what is allocated and in none. Each block of memory counts once, whatever the views.

    model, optimizer: one or several; those that this process holds when they are left out. batch, loss: as headrace.memory_by_role() has
    them, which tells the same of the CPU.
    """
    import torch

    if not torch.cuda.is_available():
        return {}
    import headrace

    models = _top_modules() if model is None else model
    optimizers = _living(torch.optim.Optimizer) if optimizer is None else optimizer
    device = torch.device("cuda", torch.cuda.current_device())
    memory = headrace.memory_by_role(models, optimizers, batch=batch, loss=loss, device=device)
    groups: dict[str, int] = {}
    for block in memory.blocks:
        part = block.name if block.role in ("batches", "activations") else block.name.split(".")[0]
        groups[f"{block.role} {part}"] = groups.get(f"{block.role} {part}", 0) + block.bytes
    groups["other"] = memory.other or 0
    largest = sorted(groups.items(), key=lambda group: -group[1])[:10]
    return {"memory_stats": {"allocated": torch.cuda.memory_allocated() / _GB, "reserved": torch.cuda.memory_reserved() / _GB,
                             "max_allocated": torch.cuda.max_memory_allocated() / _GB,
                             "max_reserved": torch.cuda.max_memory_reserved() / _GB},
            "tensor_breakdown": {name: size / _GB for name, size in largest if size > 0}}


def _top_modules() -> list[torch.nn.Module]:
    """The modules of this process that are in no other one."""
    from torch import nn

    modules = _living(nn.Module)
    inner = {id(child) for one in modules for child in one.children()}
    return [one for one in modules if id(one) not in inner]


def _living(kind: type[_Kind]) -> list[_Kind]:
    """By their types: isinstance() asks a weakref.proxy for its __class__, which raises where its object is gone."""
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0


def _largest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _cuda_allocated() -> int | None:
    """None without CUDA, and before anything of this process has used it."""
    import torch

    return torch.cuda.memory_allocated() if torch.cuda.is_initialized() else None


def _begin_cuda_peak(one: Operation) -> None:
    """From here on torch's peak is that of this scope."""
    import torch

    if one.parent is not None:
        one.parent.cuda_most = max(one.parent.cuda_most, torch.cuda.max_memory_allocated())
    torch.cuda.reset_peak_memory_stats()


def _end_cuda_peak(one: Operation) -> int:
    """The most that torch's tensors held in this scope."""
    import torch

    one.cuda_most = max(one.cuda_most, torch.cuda.max_memory_allocated())
    if one.parent is not None:
        one.parent.cuda_most = max(one.parent.cuda_most, one.cuda_most)
    return one.cuda_most
