"""hr.profile: which operators take the time and the memory of some steps of a loop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import torch

from . import _core, _engine_door
from ._diagnosis import Diagnosis, diagnose
from ._operator_table import KeyAverages, OperatorRow
from .errors import InvalidArgumentError, UnsupportedError

_IDLE, _WARMUP, _RECORD, _RECORD_AND_SAVE = "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"  # torch.profiler.ProfilerAction's names.
_EVENTS_PER_THREAD = 1 << 20


class Schedule(NamedTuple):
    """What is done in a step: call it with the step's number, from 0. hr.schedule() makes one."""

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0

    def __call__(self, step: int) -> str:
        return _core.profile_action(*self, step)


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Schedule:
    """For hr.profile: of every wait + warmup + active steps the first are left alone, the next observed and thrown away, and the last
    recorded. repeat: how often, 0 for as long as the profile runs. skip_first: steps before all of this.

    torch.profiler.schedule() has the same words, and its result will do, too. InvalidArgumentError: a number below 0, or active below 1.
    """
    numbers = {"wait": wait, "warmup": warmup, "active": active, "repeat": repeat, "skip_first": skip_first}
    for name, number in numbers.items():
        least = 1 if name == "active" else 0
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise InvalidArgumentError(f"schedule: {name}: wanted an integer of at least {least}, found {number!r}")
    return Schedule(**numbers)


def write_traces(folder: str | os.PathLike[str], form: str = "chrome") -> Callable[[Profile], None]:
    """For hr.profile's on_trace_ready: writes each recorded window into the folder as trace-PID-N.json, where N counts from 1.

    form: of headrace.Trace.write(); what torch.profiler recorded is a Chrome trace in any case.
    The folder is made with the first trace. InvalidArgumentError: another form. OSError: it cannot be written.
    """
    suffix = _core.trace_suffix(form)
    place = Path(folder)

    def write(profile: Profile) -> None:
        place.mkdir(parents=True, exist_ok=True)
        name = f"trace-{os.getpid()}-{profile.windows}"
        if profile.source == "engine":
            profile.export(place / f"{name}{suffix}", form)
        else:
            profile.export(place / f"{name}.json")

    return write


class _Window(Protocol):
    """What records one stretch of steps."""

    def warm_up(self) -> None: ...  # Observes as start() does, and keeps nothing.
    def start(self) -> None: ...  # With or without a warm-up before it.
    def begin_step(self, number: int) -> None: ...
    def end_step(self, number: int) -> None: ...
    def stop(self) -> None: ...
    def key_averages(self, by_shapes: bool) -> KeyAverages: ...
    def write(self, path: Path, form: str) -> list[Path]: ...


class _EngineWindow:
    """By headrace's observer of operators, as spans of a headrace.Trace."""

    def __init__(self, record_shapes: bool, profile_memory: bool) -> None:
        self.trace = _core.Trace(_EVENTS_PER_THREAD)
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
            self.trace = _core.Trace(_EVENTS_PER_THREAD)
            self.trace.__enter__()
        else:
            self.warm_up()

    def begin_step(self, number: int) -> None:
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


class _TorchWindow:
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


class Profile:
    """A recording of the operators of this thread and of the backward that it starts, as hr.profile() has it. Not for several threads at once."""

    def __init__(self, activities: Iterable[Any] | None, schedule: Callable[[int], Any] | None,
                 on_trace_ready: Callable[[Any], Any] | None, record_shapes: bool, profile_memory: bool, with_stack: bool,
                 source: str) -> None:
        for name, value in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            if value is not None and not callable(value):
                raise InvalidArgumentError(f"profile: {name}: wanted a function, found {type(value).__name__}")
        self._activities = _checked_activities(activities)
        self._applied = [name for name in self._activities if name == "cpu" or _has_cuda()] or ["cpu"]
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        self._wanted = {"record_shapes": bool(record_shapes), "profile_memory": bool(profile_memory), "with_stack": bool(with_stack)}
        self._requested = source
        self.source, self._reason = _chosen_source(source, self._applied, self._wanted["with_stack"])
        self.step_num = 0
        self.windows = 0  # That were recorded whole.
        self._action = _IDLE
        self._runs = False
        self._open: _Window | None = None
        self._last: _Window | None = None

    def start(self) -> None:
        """As the beginning of a with block. InvalidArgumentError: it runs already, or another headrace.Trace records."""
        if self._runs:
            raise InvalidArgumentError("profile: start: wanted one that is not running, found that it runs")
        self._move_to(self._action_of(self.step_num))
        self._runs = True
        if self._open is not None:
            self._open.begin_step(self.step_num)

    def step(self) -> None:
        """The end of a step: call it once after each one. What the schedule says of the next one holds from here on.
        InvalidArgumentError: it does not run."""
        if not self._runs:
            raise InvalidArgumentError("profile: step: wanted one that runs, found that it has not begun or is over")
        if self._open is not None:
            self._open.end_step(self.step_num)
        self.step_num += 1
        self._move_to(self._action_of(self.step_num))
        if self._open is not None:
            self._open.begin_step(self.step_num)

    def stop(self) -> None:
        """As the end of a with block. A window that is not over is kept as far as it came. Nothing where it does not run."""
        is_kept = self._action in (_RECORD, _RECORD_AND_SAVE)
        self._action, self._runs = _IDLE, False
        self._close(is_kept)

    def __enter__(self) -> Profile:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def key_averages(self, group_by_input_shape: bool = False) -> KeyAverages:
        """The operators of the last window that was recorded, by name or by name and shapes. InvalidArgumentError: there is none yet, or
        shapes were not recorded."""
        if group_by_input_shape and not self._wanted["record_shapes"]:
            raise InvalidArgumentError("profile: key_averages: group_by_input_shape: wanted a profile with record_shapes=True")
        return self._recorded("key_averages").key_averages(group_by_input_shape)

    def export(self, path: str | os.PathLike[str], form: str = "chrome") -> list[Path]:
        """Writes the last window in a form of headrace.Trace.write(), and returns the files. Of a profile by torch a Chrome trace as torch
        writes it, compressed where the name ends in .gz. InvalidArgumentError: another form, or no window. OSError: it cannot be written."""
        return self._recorded("export").write(Path(path), form)

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """As torch.profiler has it, so that its tensorboard_trace_handler() serves here."""
        self.export(path)

    def diagnose(self, samples_per_step: int, *, skip: int = 0) -> Diagnosis:
        """What limits the last window's steps, without its first `skip`, as hr.diagnose() has it: their parts are those that operators show
        of a torch DataLoader, of a forward, a backward and a torch optimizer in this thread. InvalidArgumentError: there is no window, or
        torch.profiler recorded it."""
        window = self._recorded("diagnose")
        if not isinstance(window, _EngineWindow):
            raise InvalidArgumentError("profile: diagnose: wanted a window that headrace's engine recorded, found one of torch.profiler"
                                       + (f": {self._reason}" if self._reason else ""))
        return diagnose(window.trace, samples_per_step, skip=skip)

    def explain(self) -> dict[str, dict[str, str]]:
        """By name what was asked for, what is in force, and why it is not the same."""
        told = {"source": {"requested": self._requested, "applied": self.source, "reason": self._reason}}
        told["activities"] = {"requested": ", ".join(self._activities), "applied": ", ".join(self._applied),
                              "reason": "" if self._applied == self._activities else "cuda: torch finds no CUDA device here"}
        for name, value in self._wanted.items():
            told[name] = {"requested": json.dumps(value), "applied": json.dumps(value), "reason": ""}
        return told

    @property
    def trace(self) -> _core.Trace | None:
        """The last window as a headrace.Trace, for time_split(), summary() and reports; None where torch recorded it, or nobody yet."""
        return self._last.trace if isinstance(self._last, _EngineWindow) else None

    def __repr__(self) -> str:
        return f"<headrace.Profile by {self.source}: {self.windows} windows recorded, step {self.step_num}>"

    def _action_of(self, step: int) -> str:
        if self._schedule is None:
            return _RECORD
        action = self._schedule(step)
        name = getattr(action, "name", action)  # torch.profiler.ProfilerAction has one.
        if name not in (_IDLE, _WARMUP, _RECORD, _RECORD_AND_SAVE):
            raise InvalidArgumentError(f"profile: schedule: wanted NONE, WARMUP, RECORD or RECORD_AND_SAVE, found {action!r}")
        return str(name)

    def _move_to(self, action: str) -> None:
        before, self._action = self._action, action
        if before == _RECORD_AND_SAVE or (before == _RECORD and action in (_IDLE, _WARMUP)):
            self._close(is_kept=True)
        if action == _IDLE:
            self._close(is_kept=False)  # A warm-up that nothing follows.
        elif self._open is None or (before == _WARMUP and action != _WARMUP):
            window = self._open or self._new_window()
            try:
                begin = window.warm_up if action == _WARMUP else window.start
                begin()
            except BaseException:
                self._action = _IDLE
                raise
            self._open = window

    def _close(self, is_kept: bool) -> None:
        window, self._open = self._open, None
        if window is None:
            return
        window.stop()
        if not is_kept:
            return
        self._last = window
        self.windows += 1
        if self._on_trace_ready is not None:
            self._on_trace_ready(self)

    def _new_window(self) -> _Window:
        wanted = self._wanted
        if self.source == "engine":
            return _EngineWindow(wanted["record_shapes"], wanted["profile_memory"])
        activities = [getattr(torch.profiler.ProfilerActivity, name.upper()) for name in self._applied]
        return _TorchWindow(activities, wanted["record_shapes"], wanted["profile_memory"], wanted["with_stack"])

    def _recorded(self, asker: str) -> _Window:
        if self._last is None:
            raise InvalidArgumentError(f"profile: {asker}: wanted a window that was recorded, found none: call it after the with block, "
                                       "or in on_trace_ready")
        return self._last


def profile(activities: Iterable[Any] | None = None, schedule: Callable[[int], Any] | None = None,
            on_trace_ready: Callable[[Any], Any] | None = None, record_shapes: bool = False, profile_memory: bool = False,
            with_stack: bool = False, *, source: str = "auto") -> Profile:
    """Records which operators run, how long they take and what memory they keep, in the thread that opens the with block and in the
    backward that it starts:

        with hr.profile(schedule=hr.schedule(wait=1, warmup=1, active=3, repeat=2), on_trace_ready=hr.write_traces("log/profile"),
                        record_shapes=True, profile_memory=True) as profile:
            for batch in loader:
                train_step(batch)
                profile.step()
        print(profile.key_averages().table(sort_by="cpu_memory_usage", row_limit=10))

    activities: "cpu" and "cuda", or torch.profiler.ProfilerActivity; both where there is a CUDA device when it is left out.
    schedule: which steps, from 0; all of them when it is left out.
    on_trace_ready: a function of the profile, called after each window that was recorded; torch.profiler.tensorboard_trace_handler() will do.
    record_shapes, profile_memory: shapes of the arguments, and bytes that each call keeps.
    with_stack: the lines of Python that called the operators.
    source: "engine" is headrace's own observer, whose spans lie in a headrace.Trace. "torch" is torch.profiler. "auto" takes the
        engine, and torch.profiler where the engine cannot be had (another torch), for the device's times, and for with_stack; explain()
        and `source` say which and why.

    InvalidArgumentError: a word or a kind that is not known. UnsupportedError: source="engine" where that cannot be had, or, when it starts,
    profile_memory while a torch.profiler runs.
    """
    return Profile(activities, schedule, on_trace_ready, record_shapes, profile_memory, with_stack, source)


def _checked_activities(activities: Iterable[Any] | None) -> list[str]:
    if activities is None:
        return ["cpu", "cuda"] if _has_cuda() else ["cpu"]
    if isinstance(activities, (str, bytes)):
        raise InvalidArgumentError(f"profile: activities: wanted a list, found {activities!r}")
    names = set()
    for activity in activities:
        name = str(getattr(activity, "name", activity)).lower()
        if name not in ("cpu", "cuda"):
            raise InvalidArgumentError(f"profile: activities: wanted cpu and cuda, found {activity!r}")
        names.add(name)
    if not names:
        raise InvalidArgumentError("profile: activities: wanted at least one of cpu and cuda, found none")
    return sorted(names)


def _chosen_source(source: str, activities: list[str], with_stack: bool) -> tuple[str, str]:
    """The source, and why it is not the engine."""
    if source not in ("auto", "engine", "torch"):
        raise InvalidArgumentError(f"profile: source: wanted auto, engine or torch, found {source!r}")
    if source == "torch":
        return "torch", ""
    why_not = _engine_door.why_not()
    if why_not is None and with_stack:
        why_not = "with_stack: the lines of Python are torch.profiler's alone"
    if why_not is None and "cuda" in activities:
        why_not = "activities: the times of a CUDA device are Kineto's, which torch.profiler reads on the same clock as its operators"
    if why_not is None:
        return "engine", ""
    if source == "engine":
        raise UnsupportedError(f"profile: source: wanted engine: not applicable: {why_not}")
    return "torch", why_not


def _has_cuda() -> bool:
    return bool(torch.cuda.is_available())
