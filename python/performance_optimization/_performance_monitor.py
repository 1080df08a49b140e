"""A training run's own figures by step, its event files, and a report of them."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace import monitor

_logger = logging.getLogger(__package__)
_OURS = "performance/"
_HISTORY_STEPS = 100_000
_DEFAULT_LOG_DIR = os.path.join("runs", "performance_optimization")


class PerformanceMonitor:
    """Takes a run's metrics by step, writes them as TensorBoard events into log_dir, and adds its own: performance/step_time (seconds) and
    performance/memory_{current,peak,mean}_bytes, resident between two steps.

        monitor = PerformanceMonitor()
        monitor.record_metrics(step=100, metrics={"training_loss": 0.5, "validation_accuracy": 0.9})
        monitor.get_performance_summary()["average_step_time"]
        monitor.log_performance_report()

    The time of a step is the metric "step_time", in seconds, where that is given; else the time since the record before, divided by the
    steps between the two.

    log_dir: made at the first record; None: no event files. monitor_options: as headrace.monitor takes them (prometheus, json_lines, alerts,
    live, ...). clock: seconds. Writing is on a thread of its own and ends no run (see sinks in the summary). For one thread at a time.
    """

    def __init__(self, log_dir: str | os.PathLike[str] | None = _DEFAULT_LOG_DIR, *, clock: Callable[[], float] = time.perf_counter,
                 **monitor_options: Any) -> None:
        self.log_dir = None if log_dir is None else os.fspath(log_dir)
        self._clock, self._options = clock, monitor_options
        self._monitor: monitor | None = None
        self._last_status: dict[str, Any] | None = None  # Of the one that was closed.
        self._memory_reader: Any = None
        self._forget()

    def _forget(self) -> None:
        from headrace import _core

        self._history: dict[int, dict[str, float]] = {}
        self._step_times = _core.MetricSeries()
        self._total_steps, self._total_time = 0, 0.0
        self._last: tuple[int, float] | None = None  # Step and moment.
        self._memory: dict[str, float] | None = None
        self._memory_steps = 0

    def record_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """metrics: any names, each with a number. Of a step that was recorded before they join what it has; get_metrics() keeps 100,000 steps.

        headrace.errors.InvalidArgumentError, a ValueError: the step is below 0, or a value is no number.
        """
        from headrace._monitor import checked_step

        step = checked_step(step, metrics)
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        now = self._clock()
        ours: dict[str, float] = {}
        if (seconds := self._step_seconds(step, now, numbers)) is not None:
            ours["step_time"] = seconds
        if (memory := self._read_memory()) is not None:
            ours |= {f"memory_{name}_bytes": value for name, value in memory.items()}
        recorded = numbers | {_OURS + name: value for name, value in ours.items()}
        self._open().record(step, recorded)
        self._history.setdefault(step, {}).update(recorded)
        if len(self._history) > _HISTORY_STEPS:
            del self._history[next(iter(self._history))]

    def get_metrics(self, step: int | None = None) -> dict[Any, Any]:
        """By step all that was recorded, with what this object added; of one step alone where that is given: empty if it was not recorded."""
        if step is not None:
            return dict(self._history.get(step, {}))
        return {one: dict(found) for one, found in self._history.items()}

    def get_performance_summary(self) -> dict[str, Any]:
        """For JSON. What is None nobody could measure.

        average_step_time: seconds; of total_steps in total_time seconds. step_time: of the newest 1,000 steps mean, p50, p95, p99, min, max,
            slope (seconds a step), and slowdown, {"found_at", "ratio"} where steps have come to take longer for good.
        memory: resident bytes current, peak and mean.
        gpu: available, reason, and by number utilization (0 to 1), memory_used_bytes, power_watts, temperature_celsius and clocks.
        recorded, dropped, not_finite, sinks: headrace.monitor's status().
        """
        figures = self._step_times.statistics()
        status = self._status()
        average = self._total_time / self._total_steps if self._total_steps else None
        return {"average_step_time": average, "total_steps": self._total_steps, "total_time": self._total_time,
                "step_time": figures and {"mean": figures["rolling_mean"],
                                          **{name: figures[name] for name in ("p50", "p95", "p99", "min", "max", "slope", "slowdown")}},
                "memory": None if self._memory is None else dict(self._memory),
                "gpu": self._gpu(status["gpu"]),
                **{name: status[name] for name in ("recorded", "dropped", "not_finite", "sinks")}}

    def log_performance_report(self, form: str = "text") -> str:
        """The summary as "text" or "json", which it also logs, as information, by the logger "performance_optimization".

        ValueError: another form.
        """
        if form not in ("text", "json"):
            raise ValueError(f"form: wanted 'text' or 'json', found {form!r}")
        summary = self.get_performance_summary()
        report = json.dumps(summary, allow_nan=False) if form == "json" else _text_of(summary)
        _logger.info("%s", report, extra={"performance_report": summary})
        return report

    def clear_metrics(self) -> None:
        """Forgets steps, times and memory; configuration, event files and their counts stay."""
        self._forget()
        if self._monitor is not None:
            self._monitor.clear()

    def flush(self) -> None:
        """Waits, for at most ten seconds, until the files have what was recorded."""
        if self._monitor is not None:
            self._monitor.flush()

    def close(self) -> None:
        """Writes what is left and ends; the summary stays, and a further record begins a new event file."""
        if self._monitor is not None:
            self._monitor.close()
            self._last_status = self._status()
        self._monitor, self._memory_reader = None, None

    def _open(self) -> monitor:
        if self._monitor is None:
            import headrace

            self._monitor = headrace.monitor(**({"tensorboard": self.log_dir} | self._options))
        return self._monitor

    def _status(self) -> dict[str, Any]:
        if self._monitor is not None:
            return self._monitor.status()
        return self._last_status or {"sinks": [], "recorded": 0, "dropped": 0, "not_finite": 0, "gpu": "unavailable: nothing was recorded"}

    def _step_seconds(self, step: int, now: float, numbers: Mapping[str, float]) -> float | None:
        last, self._last = self._last, (step, now)
        steps = 1 if last is None else step - last[0]
        if "step_time" in numbers:
            seconds, steps = numbers["step_time"], 1
        elif last is None or steps <= 0:  # The first one, the same step again, or a new run.
            return None
        else:
            seconds = (now - last[1]) / steps
        if not 0 <= seconds < float("inf"):
            return None
        self._total_steps += steps
        self._total_time += seconds * steps
        self._step_times.add(seconds)
        return seconds

    def _read_memory(self) -> dict[str, float] | None:
        from headrace import _core

        if self._memory_reader is None:
            self._memory_reader = _core.StepMemoryReader()
        found: dict[str, float] | None = self._memory_reader.take()
        if found is None:
            return None
        before, self._memory_steps = self._memory or {"peak": 0, "mean": 0.0}, self._memory_steps + 1
        self._memory = {"current": found["current"], "peak": max(before["peak"], found["peak"]),
                        "mean": before["mean"] + (found["mean"] - before["mean"]) / self._memory_steps}
        return found

    def _gpu(self, reason: str) -> dict[str, Any]:
        devices: dict[str, dict[str, float]] = {}
        for name, value in (self._monitor.latest() if self._monitor is not None else {}).items():
            if name.startswith("gpu."):
                number, figure = name.removeprefix("gpu.").split(".", 1)
                devices.setdefault(number, {})[figure] = value
        return {"available": bool(devices), "reason": "" if devices else reason or "unavailable: not read yet", "devices": devices}


def _number(name: Any, value: Any) -> float:
    from headrace.errors import InvalidArgumentError

    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"metrics: wanted names, found the key {name!r}")
    refusal = f"metrics[{name!r}]: wanted a number, found {type(value).__name__}"
    if isinstance(value, (str, bytes, bytearray)):  # float() would read a number in a text.
        raise InvalidArgumentError(refusal)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # Of a tensor of many numbers, too.
        raise InvalidArgumentError(refusal) from error


def _text_of(summary: Mapping[str, Any]) -> str:
    steps, memory, gpu = summary["step_time"], summary["memory"], summary["gpu"]
    average = summary["average_step_time"]
    lines = ["Performance report",
             f"  steps: {summary['total_steps']} in {summary['total_time']:.3f} s",
             "  average step time: " + ("unavailable" if average is None else f"{average:.6f} s")]
    if steps:
        lines.append(f"  step time of the newest: mean {steps['mean']:.6f} s, p50 {steps['p50']:.6f}, p95 {steps['p95']:.6f}, "
                     f"p99 {steps['p99']:.6f}")
        if steps["slowdown"]:
            lines.append(f"  steps take {steps['slowdown']['ratio']:.2f} times as long since some before the {steps['slowdown']['found_at']}th")
    lines.append("  memory: unavailable" if memory is None else
                 f"  memory: {memory['current']:.0f} bytes now, {memory['peak']:.0f} at most, {memory['mean']:.0f} on average")
    if not gpu["available"]:
        lines.append(f"  GPU utilization: {gpu['reason']}")
    for number, figures in sorted(gpu["devices"].items()):
        use = figures.get("utilization")
        lines.append(f"  GPU {number} utilization: " + ("unavailable" if use is None else f"{use:.0%}"))
    lines.append(f"  records: {summary['recorded']} taken, {summary['dropped']} dropped")
    lines += [f"  {sink['name']}: {sink['applied']}" + (f" ({sink['reason']})" if sink["reason"] else "") for sink in summary["sinks"]]
    return "\n".join(lines)
