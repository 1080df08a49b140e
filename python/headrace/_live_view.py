"""A run as a terminal shows it while it goes on: rate, time split, queues, memory, hit rate and time left."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ._charts import PARTS
from ._progress import is_terminal, tell_line

_LINE_EVERY_S = 10.0  # Where lines stay.
_UNAVAILABLE = "unavailable"
_UNITS = ((1e9, "GB"), (1e6, "MB"))


class LiveView:
    """Draws itself over its last drawing where `stream` is a terminal; elsewhere one line each ten seconds. A stream that takes nothing
    any more ends nothing. For one thread at a time.

    It reads these metrics; what nobody records is "unavailable": samples_per_s; time.<part>_s, seconds a step, of data_wait, transfer,
    forward, backward, optimizer and other; every metric with "queue" in its name; process.resident_bytes; cache.hit_rate. The rate and
    the time left come from the steps themselves.
    """

    def __init__(self, total_steps: int | None = None, *, stream: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._total, self._clock = total_steps, clock
        self._first: tuple[int, float] | None = None  # Step and time.
        self._drawn = 0  # Lines of the drawing that stands there.
        self._line_due = clock()

    def show(self, step: int | None, figures: Mapping[str, float]) -> None:
        """The newest step, and the newest value of each metric."""
        lines = self.lines(step, figures)
        if not is_terminal(self._stream) or os.environ.get("TERM") == "dumb":  # Whose cursor does not move.
            if self._clock() >= self._line_due:
                self._line_due = self._clock() + _LINE_EVERY_S
                tell_line("; ".join(lines))
            return
        columns = shutil.get_terminal_size().columns - 1  # A line that is broken would be two to go back over.
        lines = [line[:columns] for line in lines]
        back = f"\x1b[{self._drawn}F\x1b[J" if self._drawn else ""  # To its first line, and all below it away.
        with suppress(OSError, ValueError):
            self._stream.write(back + "".join(f"{line}\n" for line in lines))
            self._stream.flush()
            self._drawn = len(lines)

    def lines(self, step: int | None, figures: Mapping[str, float]) -> list[str]:
        rate = self._rate(step)
        return [_progress(step, self._total, rate, figures), _split(figures), _queues(figures),
                f"memory {_bytes(figures.get('process.resident_bytes'))}; cache hit rate {_share(figures.get('cache.hit_rate'))}"]

    def _rate(self, step: int | None) -> float | None:
        """Steps a second since the first one that was seen; None: not known yet."""
        if step is None:
            return None
        now = self._clock()
        if self._first is None or step < self._first[0]:  # A new run of steps.
            self._first = step, now
        steps, seconds = step - self._first[0], now - self._first[1]
        return steps / seconds if steps > 0 and seconds > 0 else None


def _progress(step: int | None, total: int | None, rate: float | None, figures: Mapping[str, float]) -> str:
    place = _UNAVAILABLE if step is None else f"{step}" if total is None else f"{step} of {total}"
    speed = _UNAVAILABLE if rate is None else f"{rate:.2f} steps/s"
    if (samples := figures.get("samples_per_s")) is not None:
        speed += f", {samples:.0f} samples/s"
    left = None if total is None or rate is None or step is None else max(total - step, 0) / rate
    return f"step {place}; rate {speed}; time left {_UNAVAILABLE if left is None else _duration(left)}"


def _split(figures: Mapping[str, float]) -> str:
    seconds = {part: figures[f"time.{part}_s"] for part in PARTS if f"time.{part}_s" in figures}
    total = sum(seconds.values())
    if not total > 0:
        return f"time split {_UNAVAILABLE}"
    return "time split " + ", ".join(f"{part} {value / total:.0%}" for part, value in seconds.items())


def _queues(figures: Mapping[str, float]) -> str:
    depths = [f"{name} {value:g}" for name, value in sorted(figures.items()) if "queue" in name]
    return "queues " + (", ".join(depths) or _UNAVAILABLE)


def _bytes(value: float | None) -> str:
    if value is None:
        return _UNAVAILABLE
    return next((f"{value / size:.2f} {unit}" for size, unit in _UNITS if value >= size), f"{value:.0f} bytes")


def _share(value: float | None) -> str:
    return _UNAVAILABLE if value is None else f"{value:.1%}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
