"""What the bench of what is always on counts and judges. Nothing here imports torch or headrace."""

import json
import re
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

COUNTED_MOST, MEASURED_MOST = 0.001, 0.01  # Shares of a step.
TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Counted:
    """What is always on takes of a step, added up from its parts."""

    events: float  # Spans and gauges a step, of all threads.
    event_ns: float
    record_ns: float  # Of the loop's call that hands a step's figures to the monitor.
    monitor_ns: float  # CPU time of the monitor's threads, a step.
    step_s: float  # Without any of it.

    @property
    def ns(self) -> float:
        return self.events * self.event_ns + self.record_ns + self.monitor_ns

    @property
    def share(self) -> float:
        return 1e-9 * self.ns / self.step_s

    @property
    def is_met(self) -> bool:
        return self.share <= COUNTED_MOST

    def __str__(self) -> str:
        return (f"counted: {self.events:.1f} events a step x {self.event_ns:.1f} ns + {self.record_ns:,.0f} ns of the loop's call + "
                f"{self.monitor_ns:,.0f} ns of the monitor's threads = {1e-3 * self.ns:.2f} us of a step of {1e3 * self.step_s:.2f} ms: "
                f"{self.share:.4%}, wanted {COUNTED_MOST:.1%} at most: {'met' if self.is_met else 'MISSED'}")


def measured(added: Sequence[float]) -> tuple[str, bool]:
    """Of what the steps of a pair take more with it, a pair after a pair: the line, and whether the interval's upper end is low enough."""
    low, high = harness.interval(added)
    is_met = high < MEASURED_MOST
    return (f"measured: {statistics.median(added):+.3%} [{low:+.3%}, {high:+.3%}] of a step in {len(added):,} pairs, wanted an upper end below "
            f"{MEASURED_MOST:.0%}: {'met' if is_met else 'MISSED'}", is_met)


def span_ns(text: str) -> float:
    """Nanoseconds of a span that is recorded, of what trace_bench prints. ValueError: it has no such line."""
    found = re.search(r"^span, a trace records +(\d+\.\d+) ns ", text, re.MULTILINE)
    if found is None:
        raise ValueError("always_on: trace_bench printed no line 'span, a trace records'")
    return float(found[1])


def events_in(lines: Iterable[str]) -> int:
    """Spans and gauges of a trace that was written as JSON lines."""
    return sum(json.loads(line)["kind"] in ("span", "gauge") for line in lines)


def threads(tasks: Path = TASKS) -> set[str]:
    """Of this process."""
    return {path.name for path in tasks.iterdir()}


def cpu_ns(names: Iterable[str], tasks: Path = TASKS) -> int:
    """That threads have run on a core since they began. OSError: one has ended, or the kernel keeps no such figure."""
    return sum(int((tasks / name / "schedstat").read_text().split()[0]) for name in names)
