"""What long benches keep from one call to the next: rows in runs/, a call that ends when its minutes are over, and a line for
each bar."""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness

FORMAT = 1
TRIES = 2  # What failed so often is left alone, and told.


def commit() -> str:
    """Of this tree, with a + where it has changes that are in no commit."""
    words = ["git", "-C", str(harness.ROOT)]
    try:
        found = subprocess.run([*words, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True)
    except OSError:  # A machine that the tree was brought to may have no git.
        return harness.UNAVAILABLE
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
    """A file of one JSON object a line: {"format": 1, "day", "commit", "processor", "cores", "torch", "load_1_min", "key",
    "figures"}. The key names what was measured; a second row of one key is never written, so that the first one counts. A try
    that failed has a "failure", which says why, in place of the figures."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = read_rows(path)
        self._rows = [row for row in found if "figures" in row]
        self._failed = [row for row in found if "figures" not in row]

    def has(self, key: Mapping[str, Any]) -> bool:
        return any(row["key"] == dict(key) for row in self._rows)

    def add(self, key: Mapping[str, Any], figures: Any) -> None:
        if self.has(key):
            raise ValueError(f"{self.path}: there is a row of {dict(key)} already")
        self._rows.append(self._write({"key": dict(key), "figures": figures}))

    def add_failure(self, key: Mapping[str, Any], failure: str) -> None:
        self._failed.append(self._write({"key": dict(key), "failure": failure}))

    def found(self, **wanted: Any) -> list[tuple[dict[str, Any], Any]]:
        """Key and figures of the rows whose key has these entries."""
        return [(row["key"], row["figures"]) for row in self._rows
                if all(row["key"].get(name) == value for name, value in wanted.items())]

    def figures(self, **wanted: Any) -> Any:
        """Of the first such row; None where there is none."""
        return next((figures for _, figures in self.found(**wanted)), None)

    def failures(self, key: Mapping[str, Any]) -> list[str]:
        """Why each try of it failed."""
        return [row["failure"] for row in self._failed if row["key"] == dict(key)]

    def about(self) -> str:
        """When, at which commits and on what the rows were made, and how many tries failed beside them."""
        aside = len(list(self.path.parent.glob(f"{self.path.stem}.*{self.path.suffix}")))
        before = f"; {aside} file{'s'[:aside != 1]} of earlier rows put aside by --anew" if aside else ""
        if failed := len(self._failed):
            before += f"; {failed} failed {'try' if failed == 1 else 'tries'}"
        if not self._rows:
            return f"{self.path}: no row yet{before}"
        days = sorted({row["day"] for row in self._rows})
        commits, machines = (", ".join(dict.fromkeys(words)) for words in (
            [row["commit"] for row in self._rows], [f"{row['cores']} cores of {row['processor']}, torch {row['torch']}"
                                                    for row in self._rows]))
        return (f"{self.path}: {len(self._rows)} rows, {' to '.join(dict.fromkeys([days[0], days[-1]]))} ({commits}), "
                f"{machines}{before}")

    def _write(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """Appended, and on the disk when it returns. What a reader of the file will find."""
        line = json.dumps({
            "format": FORMAT, "day": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit(),
            "processor": harness.processor()[0], "cores": len(os.sched_getaffinity(0)), "torch": harness.version_of("torch"),
            "load_1_min": os.getloadavg()[0], **content})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        return json.loads(line)


@dataclass(frozen=True)
class Item:
    """One thing to measure. `work` returns its figures; `seconds` is about how long that takes."""

    key: Mapping[str, Any]
    seconds: float
    work: Callable[[], Any]


class Session:
    """One call of a bench: measures the items that have no row yet, until the next one would not end within the minutes. The
    first of them is always begun, so that every call gets somewhere. None: no limit. An item that fails costs nobody else's
    rows; it is tried again by the next call, and no more after TRIES."""

    def __init__(self, rows: Rows, minutes: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rows = rows
        self._minutes, self._clock, self._begin = minutes, clock, clock()
        self._begun = 0
        self.failures: list[str] = []  # What items of this call died of.
        self.given_up: list[str] = []  # Items that failed too often, before or now.

    @property
    def lacks(self) -> bool:
        """Whether something failed, so that a run to the end is not all."""
        return bool(self.failures or self.given_up)

    def _has_room(self, seconds: float) -> bool:
        return (self._minutes is None or self._begun == 0
                or self._clock() - self._begin + seconds <= 60 * self._minutes)

    def run(self, items: Iterable[Item]) -> bool:
        """Whether all were reached. The items may be made as they are asked for, from the rows of those before them."""
        for item in items:
            if self.rows.has(item.key):
                continue
            name = ", ".join(f"{value}" for value in item.key.values())
            if len(before := self.rows.failures(item.key)) >= TRIES:
                self.given_up.append(f"{name}: {before[-1]}")
                continue
            if not self._has_room(item.seconds):
                return False
            self._begun += 1
            begun_s = self._clock()
            try:
                figures = item.work()
            except harness.ProgramFailed as failure:
                self._fail(item.key, name, failure.short)
                continue
            except Exception as error:  # noqa: BLE001 - of one item; its row tells of it, and the others are measured.
                traceback.print_exc()
                self._fail(item.key, name, f"{type(error).__name__}: {error}")
                continue
            self.rows.add(item.key, figures)
            took_s, all_s = self._clock() - begun_s, self._clock() - self._begin
            print(f"{name}: {took_s:.0f} s, done after {all_s / 60:.1f} min", file=sys.stderr, flush=True)
        return True

    def _fail(self, key: Mapping[str, Any], name: str, failure: str) -> None:
        self.failures.append(f"{name}: {failure}")
        print(f"FAILED {self.failures[-1]}", flush=True)
        self.rows.add_failure(key, failure)
        if len(self.rows.failures(key)) >= TRIES:
            self.given_up.append(self.failures.pop())


def add_options(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("--minutes", type=positive, help="end after about so many, at the end of an item; the next call goes on")
    parser.add_argument("--rows", type=Path, default=harness.ROOT / "runs" / folder, help=f"folder of the rows (runs/{folder})")
    parser.add_argument("--anew", action="store_true", help="put the rows of earlier calls aside first")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works: figures of no worth, kept apart")


def positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"wanted a number above 0, found {text}")
    return number


def path_of(arguments: argparse.Namespace, name: str) -> Path:
    """Of add_options(): the file NAME.jsonl, or NAME-quick.jsonl."""
    return arguments.rows / f"{name}{'-quick' * arguments.quick}.jsonl"


def open_rows(arguments: argparse.Namespace, name: str) -> Rows:
    path = path_of(arguments, name)
    if arguments.anew and path.exists():
        path.rename(path.with_suffix(f".{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.jsonl"))
    return Rows(path)


@dataclass(frozen=True)
class Bar:
    """What was wanted and what was found. A stretch bar is told and decides nothing."""

    what: str
    wanted: str
    found: str
    met: bool | None  # None: rows are missing, and nothing was missed by those that there are.
    stretch: bool = False

    def __str__(self) -> str:
        verdict = {True: "met", False: "missed", None: "open, as not all is measured"}[self.met]
        return f"{self.what}{' (stretch)' * self.stretch}: wanted {self.wanted}, found {self.found}: {verdict}"


def once_complete(good: bool, complete: bool) -> bool | None:
    """A bar's `met`, where each part of what it takes has to be good: bad ones miss it at once."""
    return (True if complete else None) if good else False


def at_the_end(good: bool, complete: bool) -> bool | None:
    """A bar's `met`, where only all that it takes can tell."""
    return good if complete else None


def tell(session: Session, complete: bool, bars: Sequence[Bar]) -> int:
    """What a part ends with: its rows, what failed, and a line for each bar. The exit status: 3 where one is missed that is no
    stretch, else 0."""
    print(f"\n{session.rows.about()}")
    if not complete:
        print("not all is measured yet: the same command goes on from here")
    for failure in session.failures:
        print(f"failed, and tried again by the next call: {failure}")
    for failure in session.given_up:
        print(f"failed {TRIES} times, and left alone: {failure}")
    for bar in bars:
        print(bar)
    return 3 if any(bar.met is False and not bar.stretch for bar in bars) else 0
