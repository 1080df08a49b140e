"""hr.profile: which operators take the time and the memory of some steps of a loop."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch

from . import _core, _engine_door
from ._diagnosis import Diagnosis, diagnose
from ._operator_table import KeyAverages
from ._profile_windows import EngineWindow, TorchWindow, Window
from ._trace_choice import ALL, TraceChoice, checked_choice
from .errors import InvalidArgumentError, UnsupportedError

_IDLE, _WARMUP, _RECORD, _RECORD_AND_SAVE = "NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"  # torch.profiler.ProfilerAction's names.
_NO_KINETO = "this torch has no Kineto, with which torch.profiler records"


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


class Profile:
    """A recording of the operators of this thread and of the backward that it starts, as hr.profile() has it. Not for several threads at once."""

    def __init__(self, activities: Iterable[Any] | None, schedule: Callable[[int], Any] | None,
                 on_trace_ready: Callable[[Any], Any] | None, record_shapes: bool, profile_memory: bool, with_stack: bool,
                 source: str, choice: TraceChoice = ALL) -> None:
        for name, value in (("schedule", schedule), ("on_trace_ready", on_trace_ready)):
            if value is not None and not callable(value):
                raise InvalidArgumentError(f"profile: {name}: wanted a function, found {type(value).__name__}")
        self._activities = _checked_activities(activities)
        self._applied = [name for name in self._activities if name == "cpu" or not _why_no_cuda()] or ["cpu"]
        self._schedule = schedule
        self._on_trace_ready = on_trace_ready
        self._wanted = {"record_shapes": bool(record_shapes), "profile_memory": bool(profile_memory), "with_stack": bool(with_stack)}
        self._requested, self._choice = source, choice
        self.source, self._reason = _chosen_source(source, self._applied, self._wanted["with_stack"])
        self.step_num = 0
        self.windows = 0  # That were recorded whole.
        self._action = _IDLE
        self._runs = False
        self._open: Window | None = None
        self._last: Window | None = None

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
        if not isinstance(window, EngineWindow):
            raise InvalidArgumentError("profile: diagnose: wanted a window that headrace's engine recorded, found one of torch.profiler"
                                       + (f": {self._reason}" if self._reason else ""))
        if self._choice["names"]:
            raise InvalidArgumentError("profile: diagnose: wanted a window with every operator, found one of chosen names")
        return diagnose(window.trace, samples_per_step, skip=skip)

    def explain(self) -> dict[str, dict[str, str]]:
        """By name what was asked for, what is in force, and why it is not the same."""
        told = {"source": {"requested": self._requested, "applied": self.source, "reason": self._reason}}
        told["activities"] = {"requested": ", ".join(self._activities), "applied": ", ".join(self._applied),
                              "reason": "" if self._applied == self._activities else f"cuda: {_why_no_cuda()}"}
        for name, value in self._wanted.items():
            has_no_stack = name == "with_stack" and value and self.source == "engine"
            told[name] = {"requested": json.dumps(value), "applied": json.dumps(value and not has_no_stack),
                          "reason": _NO_KINETO if has_no_stack else ""}
        for name, chosen in self._choice.items():
            applied = chosen if self.source == "engine" else ALL[name]  # type: ignore[literal-required]
            told[name] = {"requested": json.dumps(chosen), "applied": json.dumps(applied),
                          "reason": "" if chosen == applied else "torch.profiler records all of a window's steps"}
        return told

    def step_histogram(self) -> dict[str, Any]:
        """How often a step of the last window took how long, as hr.watch has it. InvalidArgumentError: there is no window, or torch.profiler
        recorded it."""
        window = self._recorded("step_histogram")
        if not isinstance(window, EngineWindow):
            raise InvalidArgumentError("profile: step_histogram: wanted a window that headrace's engine recorded, found one of torch.profiler")
        return window.trace.histogram("profiler_step")

    @property
    def trace(self) -> _core.Trace | None:
        """The last window as a headrace.Trace, for time_split(), summary() and reports; None where torch recorded it, or nobody yet."""
        return self._last.trace if isinstance(self._last, EngineWindow) else None

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

    def _new_window(self) -> Window:
        wanted = self._wanted
        if self.source == "engine":
            return EngineWindow(wanted["record_shapes"], wanted["profile_memory"], self._choice)
        activities = [getattr(torch.profiler.ProfilerActivity, name.upper()) for name in self._applied]
        return TorchWindow(activities, wanted["record_shapes"], wanted["profile_memory"], wanted["with_stack"])

    def _recorded(self, asker: str) -> Window:
        if self._last is None:
            raise InvalidArgumentError(f"profile: {asker}: wanted a window that was recorded, found none: call it after the with block, "
                                       "or in on_trace_ready")
        return self._last


def profile(activities: Iterable[Any] | None = None, schedule: Callable[[int], Any] | None = None,
            on_trace_ready: Callable[[Any], Any] | None = None, record_shapes: bool = False, profile_memory: bool = False,
            with_stack: bool = False, *, source: str = "auto", names: Sequence[str] = (), every_steps: int = 1, from_s: float = 0.0,
            length_s: float = 0.0) -> Profile:
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
        engine, and torch.profiler where the engine cannot be had (another torch), for the device's times, and for with_stack; explain(),
        `source` and the trace's file say which, the first one why.
    names, every_steps, from_s, length_s: as hr.Trace has them, within each window of the engine's: only operators and spans of these names,
        steps whose number is a multiple, and what begins within this time of the window. A profile of chosen names has no diagnose().

    InvalidArgumentError: a word or a kind that is not known. UnsupportedError: source="engine" or "torch" where that cannot be had, or, when
    it starts, profile_memory while a torch.profiler runs.
    """
    choice = checked_choice("profile", names, every_steps, from_s, length_s)
    return Profile(activities, schedule, on_trace_ready, record_shapes, profile_memory, with_stack, source, choice)


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
        if not _has_kineto():
            raise UnsupportedError(f"profile: source: wanted torch: not applicable: {_NO_KINETO}")
        return "torch", ""
    why_not = _engine_door.why_not()
    if why_not is not None and not _has_kineto():
        raise UnsupportedError(f"profile: source: wanted {source}: not applicable: {why_not}; and {_NO_KINETO}")
    if why_not is None and with_stack and (source == "engine" or _has_kineto()):
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


def _has_kineto() -> bool:
    return bool(torch.profiler.kineto_available())


def _why_no_cuda() -> str:
    """Why a device's times cannot be had; empty: they can."""
    if not _has_cuda():
        return "torch finds no CUDA device here"
    return "" if _has_kineto() else _NO_KINETO
