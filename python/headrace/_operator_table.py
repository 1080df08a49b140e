"""The operators of a profile by name: what a table of hr.profile shows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ._charts import paragraph, table
from .errors import InvalidArgumentError


@dataclass(frozen=True)
class OperatorRow:
    """All calls of one operator, or of one with arguments of the same shapes. Seconds and bytes are sums over the calls.

    input_shapes: one list of sizes an argument, empty for what is no tensor; None where calls were not grouped by them.
    total_s, self_s: on the CPU, with and without the operators that it calls. device_s, self_device_s: of its kernels on the device.
    bytes, self_bytes: allocated less freed for tensors on the CPU; device_bytes: on the device. None: unavailable, as nobody recorded it.
    """

    name: str
    input_shapes: str | None
    calls: int
    total_s: float
    self_s: float
    bytes: int | None
    self_bytes: int | None
    device_s: float | None = None
    self_device_s: float | None = None
    device_bytes: int | None = None


# What a table is sorted by: the names of OperatorRow, and those of torch.profiler's tables.
_OWN = ("calls", "total_s", "self_s", "bytes", "self_bytes", "device_s", "self_device_s", "device_bytes")
_OF_TORCH = {"count": "calls", "cpu_time_total": "total_s", "self_cpu_time_total": "self_s", "cpu_memory_usage": "bytes",
             "self_cpu_memory_usage": "self_bytes", "cuda_time_total": "device_s", "self_cuda_time_total": "self_device_s",
             "device_time_total": "device_s", "self_device_time_total": "self_device_s", "cuda_memory_usage": "device_bytes",
             "device_memory_usage": "device_bytes"}
_ON_CPU = {"device_s": "total_s", "self_device_s": "self_s", "device_bytes": "bytes"}


class KeyAverages(Sequence[OperatorRow]):
    """The rows, the largest time on the CPU of its own first. A notebook and print() show them as a table."""

    def __init__(self, rows: Iterable[OperatorRow], notes: Sequence[str] = ()) -> None:
        self._rows = sorted(rows, key=lambda row: -row.self_s)
        self.notes = tuple(notes)  # What one has to know of them: events that were lost, where they come from.

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def top(self, count: int = 5, sort_by: str = "self_s") -> list[OperatorRow]:
        """The `count` rows with the most of `sort_by`, at most all of them; those of which it is unavailable are last."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InvalidArgumentError(f"key_averages: count: wanted at least 1, found {count!r}")
        return self._sorted(_column(sort_by))[:count]

    def table(self, sort_by: str = "self_s", row_limit: int = 100) -> str:
        """The first `row_limit` rows as text, -1 for all. sort_by: a name of OperatorRow, or of torch.profiler's tables, as
        "self_cpu_time_total" or "cuda_memory_usage". Where nothing of it was recorded, as of CUDA on a machine without, the table says so
        and is sorted by the same of the CPU. InvalidArgumentError: another name."""
        if isinstance(row_limit, bool) or not isinstance(row_limit, int) or (row_limit < 1 and row_limit != -1):
            raise InvalidArgumentError(f"key_averages: row_limit: wanted at least 1, or -1 for all, found {row_limit!r}")
        column = _column(sort_by)
        lines = list(self.notes)
        if self._rows and all(getattr(row, column) is None for row in self._rows):
            instead = _ON_CPU.get(column, "self_s")
            if all(getattr(row, instead) is None for row in self._rows):
                instead = "self_s"
            lines.append(f"{sort_by}: unavailable, as it was not recorded; sorted by {instead}")
            column = instead
        rows = self._sorted(column)
        shown = rows if row_limit == -1 else rows[:row_limit]
        return "\n".join([*lines, *_text_table(shown, len(rows))])

    def _sorted(self, column: str) -> list[OperatorRow]:
        def key(row: OperatorRow) -> tuple[bool, float]:
            value = getattr(row, column)
            return (value is None, -value if value is not None else 0)

        return sorted(self._rows, key=key)

    def __repr__(self) -> str:
        return f"<headrace.KeyAverages of {len(self)} operators>"

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        head, *body = _cells(self._rows[:100])
        return "".join(paragraph(note) for note in self.notes) + table(head, body)


def _column(sort_by: str) -> str:
    if sort_by in _OWN:
        return sort_by
    if sort_by in _OF_TORCH:
        return _OF_TORCH[sort_by]
    near = difflib.get_close_matches(str(sort_by), [*_OWN, *_OF_TORCH], 1)
    advice = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidArgumentError(f"key_averages: sort_by: wanted one of {', '.join([*_OWN, *_OF_TORCH])}, found {sort_by!r}{advice}")


def _text_table(rows: Sequence[OperatorRow], total: int) -> list[str]:
    cells = _cells(rows)
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))]).rstrip()
             for line in cells]
    rest = [f"{total - len(rows)} more operators"] if total > len(rows) else []
    return [lines[0], "-" * sum((*widths, 2 * (len(widths) - 1))), *lines[1:], *rest]


def _cells(rows: Sequence[OperatorRow]) -> list[tuple[str, ...]]:
    """The head and a line a row; columns of which no row has anything are left out, but for memory, of which it is said."""
    has_shapes = any(row.input_shapes is not None for row in rows)
    has_device = any(row.device_s is not None for row in rows)
    head = ["operator", "self CPU", "CPU total", "calls", "self memory", "memory"]
    head += ["self device", "device total", "device memory"] if has_device else []
    head += ["input shapes"] if has_shapes else []
    lines: list[tuple[str, ...]] = [tuple(head)]
    for row in rows:
        line = [row.name, _seconds(row.self_s), _seconds(row.total_s), str(row.calls), _bytes(row.self_bytes), _bytes(row.bytes)]
        line += [_seconds(row.self_device_s), _seconds(row.device_s), _bytes(row.device_bytes)] if has_device else []
        line += [row.input_shapes or ""] if has_shapes else []
        lines.append(tuple(line))
    return lines


def _seconds(value: float | None) -> str:
    if value is None:
        return "unavailable"
    return f"{value:.3f} s" if value >= 1 else f"{1e3 * value:.3f} ms" if value >= 1e-3 else f"{1e6 * value:.3f} us"


def _bytes(value: int | None) -> str:
    if value is None:
        return "unavailable"
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(value) >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value} B"
