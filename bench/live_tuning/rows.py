"""What long benches keep from one call to the next: rows in runs/live_tuning/, and a call that ends when its minutes are over."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

FOLDER = harness.ROOT / "runs" / "live_tuning"
FORMAT = 1


def commit() -> str:
    """Of this tree, with a + where it has changes that are in no commit."""
    words = ["git", "-C", str(harness.ROOT)]
    found = subprocess.run([*words, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        return harness.UNAVAILABLE
    changed = subprocess.run([*words, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True).stdout
    return found.stdout.strip() + "+" * bool(changed.strip())


def whole_lines(path: Path) -> list[str]:
    """A process that was killed may have left a line without its end, which is cut off."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[:content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.decode().splitlines()


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(whole_lines(path), 1):
        try:
            row = json.loads(line)
        except ValueError:
            raise SystemExit(f"{path}:{number}: wanted a line of JSON, found {line[:40]!r}") from None
        if row.get("format") != FORMAT:
            raise SystemExit(f"{path}:{number}: wanted rows of format {FORMAT}, found {row.get('format')}")
        rows.append(row)
    return rows


class Rows:
    """A file of one JSON object a line: {"format": 1, "day", "commit", "processor", "load_1_min", "key", "figures"}. The key
    names what was measured; a second row of one key is never written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows = read_rows(path)

    def has(self, key: Mapping[str, Any]) -> bool:
        return any(row["key"] == dict(key) for row in self._rows)

    def add(self, key: Mapping[str, Any], figures: Any) -> None:
        if self.has(key):
            raise ValueError(f"{self.path}: there is a row of {dict(key)} already")
        row = {"format": FORMAT, "day": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit(),
               "processor": harness.processor()[0], "load_1_min": os.getloadavg()[0], "key": dict(key), "figures": figures}
        line = json.dumps(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._rows.append(json.loads(line))

    def found(self, **wanted: Any) -> list[tuple[dict[str, Any], Any]]:
        """Key and figures of the rows whose key has these entries."""
        return [(row["key"], row["figures"]) for row in self._rows
                if all(row["key"].get(name) == value for name, value in wanted.items())]

    def figures(self, **wanted: Any) -> Any:
        """Of the first such row; None where there is none."""
        return next((figures for _, figures in self.found(**wanted)), None)

    def about(self) -> str:
        """When, at which commits and on what the rows were made."""
        if not self._rows:
            return f"{self.path}: no row yet"
        days = sorted({row["day"] for row in self._rows})
        commits = ", ".join(dict.fromkeys(row["commit"] for row in self._rows))
        processors = ", ".join(dict.fromkeys(row["processor"] for row in self._rows))
        return f"{self.path}: {len(self._rows)} rows, {' to '.join(dict.fromkeys([days[0], days[-1]]))} ({commits}), {processors}"


@dataclass(frozen=True)
class Item:
    """One thing to measure. `work` returns its figures; `seconds` is about how long that takes."""

    key: Mapping[str, Any]
    seconds: float
    work: Callable[[], Any]


class Session:
    """One call of a bench: measures the items that have no row yet, until the next one would not end within the minutes. The
    first of them is always begun, so that every call gets somewhere. None: no limit."""

    def __init__(self, rows: Rows, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = rows
        self._minutes, self._clock, self._begin = minutes, clock, clock()
        self._begun = 0
        self.failures: list[str] = []  # What items died of. They have no row, and the next call tries them again.

    def _has_room(self, seconds: float) -> bool:
        return (self._minutes is None or self._begun == 0
                or self._clock() - self._begin + seconds <= 60 * self._minutes)

    def run(self, items: Iterable[Item]) -> bool:
        """Whether all were reached. The items may be made as they are asked for, from the rows of those before them."""
        for item in items:
            if self.rows.has(item.key):
                continue
            if not self._has_room(item.seconds):
                return False
            self._begun += 1
            name = ", ".join(f"{value}" for value in item.key.values())
            try:
                figures = item.work()
            except harness.ProgramFailed as failure:
                self.failures.append(f"{name}: {failure.short}")
                print(f"FAILED {self.failures[-1]}", flush=True)
                continue
            self.rows.add(item.key, figures)
            print(f"{name}: done after {self._clock() - self._begin:.0f} s", file=sys.stderr, flush=True)
        return True


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=positive, help="end after about so many, at the end of an item; the next call goes on")
    parser.add_argument("--rows", type=Path, default=FOLDER, help="folder of the rows (runs/live_tuning)")
    parser.add_argument("--anew", action="store_true", help="put the rows of earlier calls aside first")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works: figures of no worth, kept apart")


def positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"wanted a number above 0, found {text}")
    return number


def open_rows(arguments: argparse.Namespace, name: str) -> Rows:
    """Of add_options(): the file NAME.jsonl, or NAME-quick.jsonl."""
    path = arguments.rows / f"{name}{'-quick' * arguments.quick}.jsonl"
    if arguments.anew and path.exists():
        path.rename(path.with_suffix(f".{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.jsonl"))
    return Rows(path)


def told_left(session: Session, complete: bool) -> None:
    print(f"\n{session.rows.about()}")
    if not complete:
        print("not all is measured yet: the same command goes on from here")
    for failure in session.failures:
        print(f"failed, and tried again by the next call: {failure}")
