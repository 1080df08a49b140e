"""What records one stretch of steps for hr.profile: headrace's observer of operators, or torch.profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import torch

from . import _core, _engine_door
from ._operator_table import KeyAverages, OperatorRow
from ._trace_choice import TraceChoice
from .errors import InvalidArgumentError

_EVENTS_PER_THREAD = 1 << 20
_OWN_NAMES = ("profiler_step", "operator_memory")  # Recorded whatever names are chosen.


class Window(Protocol):
    """What records one stretch of steps."""

    def warm_up(self) -> None: ...  # Observes as start() does, and keeps nothing.
    def start(self) -> None: ...  # With or without a warm-up before it.
    def begin_step(self, number: int) -> None: ...
    def end_step(self, number: int) -> None: ...
    def stop(self) -> None: ...
    def key_averages(self, by_shapes: bool) -> KeyAverages: ...
    def write(self, path: Path, form: str) -> list[Path]: ...


class EngineWindow:
    """By headrace's observer of operators, as spans of a headrace.Trace."""

    def __init__(self, record_shapes: bool, profile_memory: bool, choice: TraceChoice) -> None:
        names = choice["names"]
        self._choice: TraceChoice = {**choice, "names": [*names, *_OWN_NAMES] if names else []}
        self.trace = self._new_trace()
        self._spans = _engine_door.engine("headrace.profile").OperatorSpans(record_shapes, profile_memory)
        self._steps = _core.StepMarks()
        self._is_warm = False

    def warm_up(self) -> None:
        self._spans.start()
        try:
            self.trace.__enter__()
        except BaseException:
            self._spans.stop()
            raise
        self._is_warm = True

    def start(self) -> None:
        if self._is_warm:  # What was recorded so far goes.
            self.trace.__exit__(None, None, None)
            self.trace = self._new_trace()
            self.trace.__enter__()
        else:
            self.warm_up()

    def begin_step(self, number: int) -> None:
        _core.Trace.step(number)
        self._steps = _core.StepMarks()

    def end_step(self, number: int) -> None:
        self._steps.mark(number)

    def stop(self) -> None:
        try:
            self._spans.stop()
        finally:
            self.trace.__exit__(None, None, None)

    def key_averages(self, by_shapes: bool) -> KeyAverages:
        rows = [OperatorRow(one["name"], one["shapes"] if by_shapes else None, one["calls"], 1e-9 * one["total_ns"], 1e-9 * one["self_ns"],
                            one["bytes"], one["self_bytes"]) for one in _core.operator_table(self.trace, by_shapes)]
        lost = self.trace.dropped
        return KeyAverages(rows, [f"{lost} events are missing: a thread keeps {_EVENTS_PER_THREAD}; record fewer steps"] if lost else ())

    def write(self, path: Path, form: str) -> list[Path]:
        return self.trace.write(path, form)

    def _new_trace(self) -> _core.Trace:
        return _core.Trace(_EVENTS_PER_THREAD, **self._choice)


class TorchWindow:
    """By torch.profiler, whose file and figures these are."""

    def __init__(self, activities: list[Any], record_shapes: bool, profile_memory: bool, with_stack: bool) -> None:
        self._record_function = torch.profiler.record_function
        self._has_memory = profile_memory
        self._has_device = any(activity.name != "CPU" for activity in activities)
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=record_shapes, profile_memory=profile_memory,
                                                with_stack=with_stack)
        self._is_warm = self._has_started = False
        self._step: Any = None

    def warm_up(self) -> None:
        self._profiler.prepare_trace()
        self._is_warm = True

    def start(self) -> None:
        if not self._is_warm:
            self.warm_up()
        self._profiler.start_trace()
        self._profiler.add_metadata_json("recorder", json.dumps(f"torch.profiler of torch {torch.__version__}, by headrace.profile"))
        self._has_started = True

    def begin_step(self, number: int) -> None:
        self._step = self._record_function(f"ProfilerStep#{number}")
        self._step.__enter__()

    def end_step(self, number: int) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def stop(self) -> None:
        self.end_step(0)
        if not self._has_started:  # Kineto ends what it has begun alone.
            self.start()
        self._profiler.stop_trace()

    def key_averages(self, by_shapes: bool) -> KeyAverages:
        rows = []
        for one in self._profiler.key_averages(group_by_input_shape=by_shapes):
            if one.key.startswith("ProfilerStep"):
                continue
            # Before torch 2.5 a device was "cuda" in these names.
            device = [getattr(one, f"{name}device_{what}", None) if self._has_device else None
                      for name, what in (("", "time_total"), ("self_", "time_total"), ("", "memory_usage"))]
            rows.append(OperatorRow(
                one.key, json.dumps(one.input_shapes or []) if by_shapes else None, one.count, 1e-6 * one.cpu_time_total,
                1e-6 * one.self_cpu_time_total, one.cpu_memory_usage if self._has_memory else None,
                one.self_cpu_memory_usage if self._has_memory else None, None if device[0] is None else 1e-6 * device[0],
                None if device[1] is None else 1e-6 * device[1], device[2] if self._has_memory else None))
        return KeyAverages(rows)

    def write(self, path: Path, form: str) -> list[Path]:
        if form != "chrome":
            raise InvalidArgumentError(f"profile: export: form: wanted chrome, which torch.profiler writes, found {form!r}")
        self._profiler.export_chrome_trace(str(path))
        return [path]
