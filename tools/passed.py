"""The memory of what passed on this machine: keys of programs, and of sources under clang-tidy, whose every input is the same.

A key is a hash of all that decides an outcome (tools/test_programs.py, tools/tidy.py), so it holds in every clone and after every
commit. The memory is one file in the cache folder. A damaged one is said and counts as empty: then everything runs.
"""

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

FORMAT = 1
ENTRIES_MAX = 4000  # Those used last stay. A run has about 250, so some tens of branches fit; the file has about 500 KB then.
DRAWN_ONE_IN = 10


def cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or f"{os.environ.get('HOME') or '/var/tmp'}/.cache"
    return Path(home) / "headrace"


def drawn(commit: str, name: str) -> bool:
    """Whether NAME runs at COMMIT although it passed: a memory that is wrong must not stay unseen."""
    return int(hashlib.sha256(f"{commit} {name}".encode()).hexdigest(), 16) % DRAWN_ONE_IN == 0


def checksum(entries: dict) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


class Damaged(Exception):
    pass


def parse(text: str) -> dict[str, dict]:
    try:
        document = json.loads(text)
        found, entries, told = document["format"], document["entries"], document["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"not a document of format, entries and checksum ({type(error).__name__})") from error
    if found != FORMAT:
        raise Damaged(f"wanted format {FORMAT}, found {found!r}")
    if told != checksum(entries):
        raise Damaged("the entries are not those of the checksum")
    return entries


@dataclass
class Passed:
    """What passed before. Every change is written at once, into what other runs have written meanwhile."""

    path: Path
    entries: dict[str, dict]
    damage: str = ""  # Why the file could not be used, else empty.

    @classmethod
    def load(cls, path: Path) -> "Passed":
        try:
            return cls(path, parse(path.read_text(errors="replace")))
        except FileNotFoundError:
            return cls(path, {})
        except (OSError, Damaged) as error:
            return cls(path, {}, f"{path}: {error}")

    def cases(self, key: str | None) -> int | None:
        """How many cases passed with these inputs; None: unknown."""
        return self.entries[key]["cases"] if key in self.entries else None

    def remember(self, passed: dict[str, int], used: list[str] = [], forgotten: list[str] = []) -> None:
        """PASSED: cases by key. USED: keys that stood for a run. FORGOTTEN: keys that failed this time."""
        now = int(time.time())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked():
            entries = Passed.load(self.path).entries
            entries.update({key: {"cases": cases, "used": now} for key, cases in passed.items()})
            for key in used:
                if key in entries:
                    entries[key]["used"] = now
            for key in forgotten:
                entries.pop(key, None)
            newest = sorted(entries, key=lambda key: entries[key]["used"], reverse=True)[:ENTRIES_MAX]
            self.entries = {key: entries[key] for key in newest}
            self._write()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write(self) -> None:
        text = json.dumps({"format": FORMAT, "checksum": checksum(self.entries), "entries": self.entries})
        aside = self.path.with_suffix(".partial")
        with open(aside, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)


def open_passed() -> Passed:
    return Passed.load(cache_folder() / "passed.json")
