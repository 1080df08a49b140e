"""A trace.json and a ledger.json of a job that never ran, the same ones each time: for reports that tests and bench/report_page make of
them. Times are drawn from a seed; none is measured."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARTS = (("data_wait", 3_000), ("transfer", 400), ("forward", 14_000), ("backward", 21_000), ("optimizer", 4_000))  # Microseconds.
OPERATORS = ("aten::conv2d", "aten::batch_norm", "aten::relu_", "aten::max_pool2d", "aten::linear", "aten::cross_entropy_loss")
WITHIN = {"aten::conv2d": ("aten::convolution", "aten::_convolution", "aten::mkldnn_convolution")}
MEGABYTE = 1_000_000


class _Events:
    """In microseconds, with three decimals as our own traces have them."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.found: list[tuple[float, float, int, str, str, dict[str, int]]] = []

    def near(self, microseconds: float) -> float:
        return round(microseconds * self._draw.uniform(0.85, 1.15), 3)

    def span(self, begin: float, length: float, thread: int, name: str, category: str, value: int = 0) -> float:
        self.found.append((round(begin, 3), round(length, 3), thread, name, category, {"value": value}))
        return begin + length

    def gauge(self, at: float, thread: int, name: str, category: str, values: dict[str, int]) -> None:
        self.found.append((round(at, 3), 0.0, thread, name, category, values))


def _add_operators(events: _Events, begin: float, length: float, names: Sequence[str]) -> None:
    each = length / (len(names) + 1)
    for place, name in enumerate(names):
        at, long = begin + each * (place + 0.2), each * 0.9
        events.span(at, long, 0, name, "operator")
        for inner in WITHIN.get(name, ()):
            at, long = at + 0.02 * long, 0.95 * long
            events.span(at, long, 0, inner, "operator")


def _add_step(events: _Events, begin: float, number: int, slower: float, names: Sequence[str]) -> float:
    at, is_slow = begin, number % 37 == 36  # A step now and then takes longer, as on a real machine.
    for part, microseconds in PARTS:
        length = events.near(microseconds * slower * (1.8 if is_slow else 1))
        if part in ("forward", "backward"):
            _add_operators(events, at, length, names)
        at = events.span(at, length, 0, part, "step") + 20
    events.span(begin, at + 150 - begin, 0, "step", "step", number)
    return at + 160


def _add_loading(events: _Events, end: float, thread: int) -> None:
    at = 0.0
    while at + 24_000 < end:
        at = events.span(at, events.near(2_000), thread, "read", "work") + 5
        at = events.span(at, events.near(9_000), thread, "decode", "work") + 5
        at = events.span(at, events.near(4_000), thread, "transform", "work") + 5
        at = events.span(at, events.near(6_000), thread, "wait for room", "wait") + 5


def _add_memory(events: _Events, end: float, thread: int) -> None:
    count = 80
    for place in range(count):
        filled = min(1.0, place / 20)
        values = {"parameters": 45 * MEGABYTE, "gradients": 45 * MEGABYTE * (place % 3 > 0), "optimizer": 90 * MEGABYTE,
                  "batches": int(77 * MEGABYTE * filled), "cache": int(220 * MEGABYTE * filled), "other": 210 * MEGABYTE}
        at = end * place / count
        events.gauge(at, thread, "memory", "stack", values)
        events.gauge(at, thread, "memory.resident", "mark", {"value": sum(values.values())})


def write_trace(path: Path, steps: int = 120, slower: float = 1.0, seed: int = 1, operators: Sequence[str] = OPERATORS,
                loaders: int = 2) -> None:
    """Of `steps` training steps with operators in them, threads that load beside them, and memory over time."""
    events = _Events(seed)
    end = 0.0
    for number in range(steps):
        end = _add_step(events, end, number, slower, operators)
    for loader in range(loaders):
        _add_loading(events, end, 1 + loader)
    _add_memory(events, end, 1 + loaders)
    threads = ["main", *(f"loader {loader}" for loader in range(loaders)), "memory"]
    rows: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
                                  for tid, name in enumerate(threads)]
    for at, length, thread, name, category, arguments in sorted(events.found, key=lambda event: (event[0], -event[1])):
        row = {"ph": "X", "pid": 1, "tid": thread, "ts": at, "dur": length, "name": name, "cat": category, "args": arguments}
        if length == 0:
            row = {key: value for key, value in row.items() if key != "dur"} | {"ph": "C"}
        rows.append(row)
    facts = {"format": "headrace-trace", "version": 1, "dropped": 0, "duration_ns": int((end + 1) * 1000), "counters": {}}
    path.write_text(json.dumps({"displayTimeUnit": "ns", "otherData": facts, "traceEvents": rows}))


def write_ledger(path: Path, recorded: Path, pairs: int = 24, seed: int = 1) -> None:
    """`recorded`, a ledger that kept something, completed by the last comparison that it lacks."""
    ledger = json.loads(recorded.read_text())
    draw = random.Random(seed)
    before = [0.05 * draw.uniform(0.95, 1.05) for _ in range(pairs)]
    after = [second / draw.uniform(1.42, 1.62) for second in before]
    ledger["speedup"] = {"median": 1.52, "low": 1.47, "high": 1.58, "pairs": pairs, "baseline_s": before, "best_s": after}
    ledger["baseline"]["samples_per_second"], ledger["best"]["samples_per_second"] = 3104.2, 4718.6
    path.write_text(json.dumps(ledger))
