#!/usr/bin/env python3
"""Runs clang-tidy on the sources that changed, in a bounded time.

Changed are: what differs from the last commit, and what the newest commits touched. A changed header stands for the
source of the same name. The newest come first; what does not fit into the time is named in the last line, and is not
a failure: `make tidy` checks every source.

usage: tidy.py [--all] [--budget SECONDS]
"""

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
COMMITS = 20


def git_lines(*words: str) -> list[str]:
    listing = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return listing.stdout.splitlines() if listing.returncode == 0 else []  # A tree without history has no changes.


def changed_files() -> list[str]:
    """Newest change first."""
    uncommitted = git_lines("diff", "--name-only", "HEAD") + git_lines("ls-files", "--others", "--exclude-standard")
    committed = git_lines("log", f"-{COMMITS}", "--name-only", "--format=")
    return list(dict.fromkeys(uncommitted + committed))


def sources_to_check(everything: bool) -> list[str]:
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    compiled = [os.path.relpath(entry["file"], ROOT) for entry in entries]
    compiled = [name for name in compiled if not name.startswith(("build", ".."))]
    if everything:
        return sorted(set(compiled))
    by_stem: dict[str, list[str]] = {}
    for name in compiled:
        by_stem.setdefault(Path(name).stem, []).append(name)
    chosen = []
    for name in changed_files():
        if name.endswith((".h", ".cpp")):
            chosen += [source for source in by_stem.get(Path(name).stem, []) if name.endswith(".h") or source == name]
    return list(dict.fromkeys(chosen))


def check(source: str, deadline: float) -> str | None:
    """What clang-tidy found, empty when nothing; None when the time was up before it could say."""
    remaining = deadline - time.monotonic()
    if remaining < 1:
        return None
    try:
        done = subprocess.run(["clang-tidy", "--quiet", "-p", str(BUILD), source], cwd=ROOT, capture_output=True,
                              text=True, timeout=remaining)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == 0:
        return ""
    return done.stdout.strip() or done.stderr.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="clang-tidy on changed sources, or on all.")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--budget", type=float, default=240, help="seconds; --all has no limit")
    arguments = parser.parse_args()
    if not (BUILD / "compile_commands.json").exists():
        print("tidy: build/release is not configured; run make first", file=sys.stderr)
        return 2
    sources = sources_to_check(arguments.all)
    deadline = time.monotonic() + (1e9 if arguments.all else arguments.budget)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = dict(zip(sources, pool.map(lambda source: check(source, deadline), sources)))
    for answer in filter(None, answers.values()):
        print(answer)
    unchecked = [source for source, answer in answers.items() if answer is None]
    bad = [source for source, answer in answers.items() if answer]
    left = f"; no time for {' '.join(unchecked)}" if unchecked else ""
    print(f"tidy: {len(sources) - len(unchecked)} of {len(sources)} sources checked, {len(bad)} with findings{left}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
