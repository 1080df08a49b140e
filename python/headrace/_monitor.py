"""hr.monitor: what a run measures, to files, listeners and people, and alerts on it; the training loop waits for none of it."""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from . import _core
from ._live_view import LiveView
from ._monitor_figures import Figures, LoaderFigures, LoopFigures, TrainerFigures
from ._pickling import refused_pickling
from ._webhook import Webhook
from .errors import InvalidArgumentError

_logger = logging.getLogger("headrace")
_LOOK_EVERY_S = 0.2
_ALERTS_KEPT = 1000
_OWN_EVENTS = ("alert", "setting", "sink")


class Alert:
    """A rule on the values of a metric, which is told of once when it comes to hold, and once more when it is over:

        hr.Alert("cache hit rate", "cache.hit_rate", below=0.5, counted_by="cache.lookups", count_min=100)
        hr.Alert("memory", "process.resident_bytes", above=8e9, action=lambda alert: print(alert["sentence"]))
        hr.Alert("throughput", "samples_per_s", drop=0.8)
        hr.Alert("memory trend", "process.resident_bytes", increasing=True)

    below, above: a value beyond it; at it nothing is told. drop: the mean of the last `window` (10) values is below this share of the mean
    of all. increasing: bytes that grow, by a test of their minima over cycles of `window` (20) values; a second apart for what the machine
    tells. clear: where a raised alert is over; a tenth of the limit away from it unless given. Nothing is told before count_min values, or,
    with counted_by, before that metric has come to count_min.

    action: called with the alert as a dict (name, metric, kind, raised, value, limit, step, sentence), on a thread of the monitor's; what it
    raises is logged. exit_code: 1 to 255, what monitor.exit_code is from the first time on that the alert was raised.
    InvalidArgumentError, a ValueError, names the argument.
    """

    def __init__(self, name: str, metric: str, *, below: float | None = None, above: float | None = None, drop: float | None = None,
                 increasing: bool = False, clear: float | None = None, count_min: int = 1, counted_by: str = "", window: int = 0,
                 action: Callable[[dict[str, Any]], object] | None = None, exit_code: int = 0) -> None:
        kinds: dict[str, float] = {kind: limit for kind, limit in (("below", below), ("above", above), ("drop", drop)) if limit is not None}
        if increasing:
            kinds["increasing"] = 0.0
        if len(kinds) != 1:
            raise InvalidArgumentError(f"Alert: wanted one of below, above, drop and increasing, found {', '.join(kinds) or 'none'}")
        if action is not None and not callable(action):
            raise InvalidArgumentError(f"Alert: action: wanted a function, found {type(action).__name__}")
        if isinstance(exit_code, bool) or not isinstance(exit_code, int) or not 0 <= exit_code <= 255:
            raise InvalidArgumentError(f"Alert: exit_code: wanted 0 to 255, found {exit_code!r}")
        ((self.kind, self.limit),) = kinds.items()
        self.name, self.metric, self.action, self.exit_code = name, metric, action, exit_code
        self.rule = _core.AlertRule(name, metric, self.kind, self.limit, clear, count_min, counted_by, window)

    def __repr__(self) -> str:
        limit = "" if self.kind == "increasing" else f" {self.limit:g}"
        return f"<headrace.Alert {self.name!r}: {self.metric} {self.kind}{limit}>"


def standard_alerts(action: Callable[[dict[str, Any]], object] | None = None) -> list[Alert]:
    """A cache's hit rate below 0.5 once it was asked 100 times (cache.hit_rate, cache.lookups); memory of the process that grows, or is above
    8 x 10^9 bytes; the mean of the last 10 values of samples_per_s below 0.8 of that of all."""
    return [
        Alert("cache hit rate", "cache.hit_rate", below=0.5, counted_by="cache.lookups", count_min=100, action=action),
        Alert("memory trend", "process.resident_bytes", increasing=True, action=action),
        Alert("memory", "process.resident_bytes", above=8e9, action=action),
        Alert("throughput", "samples_per_s", drop=0.8, action=action),
    ]


class monitor:
    """Watches a run:

        with hr.monitor(tensorboard="runs/first", prometheus=9400, alerts=hr.standard_alerts()) as watch:
            for step, batch in enumerate(loader):
                ...
                watch.record(step, {"train.loss": loss.item(), "samples_per_s": rate})

    record() puts the values into a bounded queue and returns; a thread of its own writes them. Where the queue is full they are dropped,
    which is counted and shown. Figures of this process and machine (cores, memory, faults, switches, disks, network, GPUs) join them each
    `system_s` seconds, 0 for none.

    tensorboard: a folder of event files. csv, json_lines: files, appended to. prometheus: a port, or "HOST:PORT", whose /metrics is served at
    127.0.0.1 unless a host is given; port 0 is any free one, which status() tells. events: a file, to which each event is appended as a line of
    JSON (event, level, wall_time, step, sentence, fields). otlp: "http://HOST:4318" of an OpenTelemetry collector.
    webhook: "https://..." to which each alert is sent, never elsewhere. What cannot be opened, or fails later, is "off" or counts what is lost
    in status(), is logged once, and ends nothing.

    Events are what is no figure: alerts ("alert"), which settings are applied ("setting"), a sink that fails ("sink"), and what tell() and
    tell_setting() add. The logger "headrace" has each of them at its level, with `headrace_event` as its structured part, and sinks of C++
    have the same.

    alerts: each is logged as a warning, with `headrace_alert` as a structured part of its own, kept in `fired`, handed to its action and to
    the webhook. live: a view on stderr, which draws over itself in a terminal and tells a line each ten seconds elsewhere;
    total_steps gives it the time left. queue_records: 1 to 2^20.

    histograms: patterns (*, ?) of metrics whose values are seconds, as ["step_s", "time.*"]. Beside each TensorBoard, Prometheus and OTLP
    get "NAME.distribution", a histogram of its values since the monitor began. Of at most 64 names.

    loader, watch, trainer: a headrace.Loader, a headrace.watch and a headrace.Trainer, whose figures are recorded a few times a second
    without any call of record(): loader.queue_depth, cache.hit_rate and cache.lookups; time.<part>_s and samples_per_s; samples_per_s,
    train.loss and train.epoch. watch and trainer count the steps. What fails in that is logged, and that object is not asked again.

    Without `with` it works from its making until close(). Safe to call from any thread. InvalidArgumentError, a ValueError, names the argument.
    """

    def __init__(self, *, tensorboard: str | os.PathLike[str] | None = None, csv: str | os.PathLike[str] | None = None,
                 json_lines: str | os.PathLike[str] | None = None, events: str | os.PathLike[str] | None = None,
                 prometheus: int | str | None = None, otlp: str | None = None, webhook: str | None = None, system_s: float = 1.0,
                 alerts: Iterable[Alert] = (), live: bool = False, total_steps: int | None = None, loader: Any = None, watch: Any = None,
                 trainer: Any = None, queue_records: int = 4096, histograms: Iterable[str] = ()) -> None:
        self._alerts = list(alerts)
        for alert in self._alerts:
            if not isinstance(alert, Alert):
                raise InvalidArgumentError(f"monitor: alerts: wanted headrace.Alert, found {type(alert).__name__}")
        if total_steps is not None and (isinstance(total_steps, bool) or not isinstance(total_steps, int) or total_steps < 1):
            raise InvalidArgumentError(f"monitor: total_steps: wanted a whole number above 0, found {total_steps!r}")
        self._sources: list[Figures] = []
        if loader is not None:
            self._sources.append(LoaderFigures(loader))
        if watch is not None:
            self._sources.append(LoopFigures(watch))
        if trainer is not None:
            self._sources.append(TrainerFigures(trainer))
        self._watcher = _core.Monitor(
            tensorboard=_path(tensorboard), csv=_path(csv), json_lines=_path(json_lines), events=_path(events),
            prometheus="" if prometheus is None else str(prometheus), otlp=otlp or "", system_s=float(system_s),
            queue_records=queue_records, alerts=[alert.rule for alert in self._alerts], histograms=_patterns(histograms))
        self._last_step: int | None = None
        self._exit_code = 0
        self.fired: list[dict[str, Any]] = []  # Alerts as dicts, the newest 1,000.
        self._attending = threading.RLock()  # One thread at a time tells events, in their order; an action may flush().
        try:
            self._webhook = None if webhook is None else Webhook(webhook)
        except BaseException:
            self._watcher.close()
            raise
        self._view = LiveView(total_steps) if live else None
        self._ended = threading.Event()
        self._webhook_told = False  # That it fails.
        self._tell_events()
        # The thread holds no monitor that is not closed: one that is forgotten is closed by its end.
        self._close_watcher = weakref.finalize(self, self._watcher.close)
        self._thread: threading.Thread | None = None
        if self._alerts or self._sources or self._view is not None:
            self._start_attending()

    def __enter__(self) -> monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def record(self, step: int, metrics: Mapping[str, float]) -> bool:
        """False: dropped, as the queue is full, or closed. A value is what float() takes; of a tensor on a GPU that waits for the GPU. NaN and
        infinity pass, and are counted."""
        number = checked_step(step, metrics, "monitor: ")
        taken = self._watcher.record(number, dict(metrics))
        self._last_step = number
        return taken

    def tell(self, sentence: str, *, name: str = "note", level: str = "info", step: int | None = None,
             fields: Mapping[str, str | float | bool] | None = None) -> None:
        """An event of yours, to the logger "headrace" and to every sink that takes events. level: debug, info, warning or error. It is handed
        over on threads of the monitor's, and takes a lock: for what happens now and then, not in every step."""
        if name in _OWN_EVENTS:
            raise InvalidArgumentError(f"monitor: name: wanted one that is not the monitor's own, found {name!r}")
        number = -1 if step is None else checked_step(step, {}, "monitor: ")
        self._watcher.tell(level, name, sentence, dict(fields or {}), number)
        self._start_attending()

    def tell_setting(self, key: str, requested: object, applied: object, reason: str = "") -> None:
        """The event "setting": information where it is applied as it was requested, else a warning. Both as texts."""
        self._watcher.tell_setting(key, str(requested), str(applied), reason)
        self._start_attending()

    def latest(self) -> dict[str, float]:
        """The newest value of each metric, by name; names and units of the machine's are in docs/guides/monitoring.md."""
        return self._watcher.latest()

    def status(self) -> dict[str, Any]:
        """For JSON. sinks: name, requested, applied (an address, or "off"), reason, records, events, lost, of each that was asked for;
        recorded, dropped (records that a full queue did not take), not_finite (values); gpu: empty, or why there are no figures of one."""
        status: dict[str, Any] = self._watcher.status()
        if self._webhook is not None:
            status["sinks"].append(self._webhook.status())
        return status

    @property
    def exit_code(self) -> int:
        """Of the first alert that was raised and has one; 0: none. For sys.exit()."""
        return self._exit_code

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Waits until all that was recorded and told has been handed to the sinks and the logger; False: not in time."""
        self._look()
        done = self._watcher.flush(timeout_s)
        self._attend()
        return done

    def clear(self) -> None:
        """Forgets the newest values, and the events and alerts that were told. What files have stays."""
        self._watcher.clear()
        self.fired.clear()

    def close(self) -> None:
        """Hands over what is left, tells the last events, and ends. A second call does nothing."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._close_watcher()
        self._attend()
        if self._webhook is not None:
            self._webhook.close()

    def __repr__(self) -> str:
        status = self.status()
        sinks = ", ".join(f"{sink['name']}: {sink['applied']}" for sink in status["sinks"]) or "no sinks"
        return f"<headrace.monitor: {status['recorded']} records, {status['dropped']} dropped; {sinks}>"

    __reduce__ = refused_pickling("a headrace.monitor cannot be pickled or copied: it belongs to this process")

    def _start_attending(self) -> None:
        if self._thread is not None and not self._ended.is_set():  # Not by the lock, which an action may hold for long.
            return
        with self._attending:
            if self._ended.is_set():
                self._tell_events()  # No thread is left that would.
            elif self._thread is None:
                self._thread = threading.Thread(target=_attend, args=(weakref.ref(self), self._ended), name="headrace monitor", daemon=True)
                self._thread.start()

    def _look(self) -> None:
        """Records what the loader, the watch and the trainer have done since the last time."""
        if not self._sources:
            return
        with self._attending:
            metrics: dict[str, float] = {}
            for source in list(self._sources):
                try:
                    step, found = source.take()
                except Exception:  # noqa: BLE001 - whatever their own is: it must not end the watching.
                    _logger.exception("monitor: the figures of the %s cannot be read; they are left out from now on", source.name)
                    self._sources.remove(source)
                    continue
                metrics |= found
                self._last_step = self._last_step if step is None else step
            if metrics:
                self._watcher.record(-1 if self._last_step is None else self._last_step, metrics)

    def _attend(self) -> None:
        """Tells of events since the last time, and draws the view."""
        with self._attending:
            self._tell_events()
            if self._view is not None:
                self._view.show(self._last_step, self._watcher.latest())

    def _tell_events(self) -> None:
        self._tell_webhook_s_failure()
        for event in self._watcher.take_events():
            if event["event"] == "alert":
                self._tell_alert(event)
            else:
                _log(event, {"headrace_sink": event["fields"]} if event["event"] == "sink" else {})

    def _tell_alert(self, event: dict[str, Any]) -> None:
        alert = {**event["fields"], "step": event["step"], "sentence": event["sentence"]}
        self.fired.append(alert)
        del self.fired[:-_ALERTS_KEPT]
        _log(event, {"headrace_alert": alert})
        rule = next(rule for rule in self._alerts if (rule.name, rule.metric, rule.kind) == (alert["name"], alert["metric"], alert["kind"]))
        if alert["raised"] and not self._exit_code:
            self._exit_code = rule.exit_code
        if rule.action is not None:
            try:
                rule.action(alert)
            except Exception:  # noqa: BLE001 - a user's own: it must not end the watching.
                _logger.exception("monitor: the action of alert %r failed", rule.name)
        if self._webhook is not None:
            self._webhook.send(alert)

    def _tell_webhook_s_failure(self) -> None:
        if self._webhook is None or self._webhook_told:
            return
        sink = self._webhook.status()
        if sink["reason"]:
            self._webhook_told = True
            self._watcher.tell("warning", "sink", f"monitor: webhook: {sink['reason']}; the run goes on",
                               {"key": "webhook", **{name: sink[name] for name in ("requested", "applied", "reason")}}, -1)


def _log(event: dict[str, Any], parts: dict[str, Any]) -> None:
    level = logging.getLevelNamesMapping()[event["level"].upper()]
    _logger.log(level, "%s", event["sentence"], extra={"headrace_event": event, **parts})


def checked_step(step: Any, metrics: Any, asker: str = "") -> int:
    """The step of a record. InvalidArgumentError, which begins with what asks for it: it is none, or the metrics have no names."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or operator.index(step) < 0:
        raise InvalidArgumentError(f"{asker}step: wanted a whole number of at least 0, found {step!r}")
    if not isinstance(metrics, Mapping):
        raise InvalidArgumentError(f"{asker}metrics: wanted numbers by name, found {type(metrics).__name__}")
    return operator.index(step)


def _attend(watched: weakref.ref[monitor], ended: threading.Event) -> None:
    while not ended.wait(_LOOK_EVERY_S):
        found = watched()
        if found is None:
            return
        if found._attending.acquire(blocking=False):  # Else another thread tells them, whose action may close() and join this one.
            try:
                found._look()
                found._attend()
            finally:
                found._attending.release()
        del found  # Or it would be held while this waits.


def _patterns(histograms: Iterable[str]) -> list[str]:
    patterns = [histograms] if isinstance(histograms, str) else list(histograms)
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern:
            raise InvalidArgumentError(f"monitor: histograms: wanted patterns of names, found {pattern!r}")
    return patterns


def _path(path: str | os.PathLike[str] | None) -> str:
    return "" if path is None else os.fspath(path)
