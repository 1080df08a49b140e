#!/usr/bin/env python3
"""Runs clang-tidy on the sources that it has not passed as they are now, in a bounded time.

A source that passed before on this machine with the same headers, command and .clang-tidy is unchanged (tools/passed.py) and
left out, but for one in ten, drawn by the commit. First come those that differ from the last commit, then what the newest
commits touched (a changed header stands for the source of the same name), then the rest. What does not fit into the time is
counted in the last line, and is not a failure: `make check` reads every source, and takes no result from before.

usage: tidy.py [--all] [--budget SECONDS]
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import passed
from test_programs import file_hash

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


def compiled_sources() -> dict[str, str]:
    """The command of each source of ours."""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    found = {os.path.relpath(entry["file"], ROOT): entry["command"] for entry in entries}
    return {name: command for name, command in sorted(found.items()) if not name.startswith(("build", ".."))}


def newest_first(sources: list[str]) -> list[str]:
    by_stem: dict[str, list[str]] = {}
    for name in sources:
        by_stem.setdefault(Path(name).stem, []).append(name)
    chosen = []
    for name in changed_files():
        if name.endswith((".h", ".cpp")):
            chosen += [source for source in by_stem.get(Path(name).stem, []) if name.endswith(".h") or source == name]
    return list(dict.fromkeys(chosen + sources))


def read_dependencies(listing: str) -> dict[str, list[str]]:
    """By object file, from `ninja -t deps`: the object's line, then its files indented, then an empty line."""
    found: dict[str, list[str]] = {}
    for block in listing.split("\n\n"):
        first, *files = block.strip("\n").split("\n")
        if first.endswith("(VALID)"):
            found[first.split(":")[0]] = [file.strip() for file in files]
    return found


def keys_of(commands: dict[str, str]) -> dict[str, str]:
    """The hash of all that decides what clang-tidy says, by source. A source that was not compiled since it changed has none."""
    version = subprocess.run(["clang-tidy", "--version"], check=True, capture_output=True, text=True).stdout
    shared = [version, file_hash(ROOT / ".clang-tidy"), file_hash(Path(__file__))]
    listing = subprocess.run(["ninja", "-C", str(BUILD), "-t", "deps"], capture_output=True, text=True).stdout
    dependencies = read_dependencies(listing)
    keys = {}
    for source, command in commands.items():
        target = re.search(r" -o (\S+)", command)
        files = dependencies.get(target[1], []) if target else []
        paths = [BUILD / file for file in files]
        if paths and all(path.is_file() for path in paths):
            contents = [f"{path} {file_hash(path)}" for path in paths]
            text = "\0".join([*shared, command, *contents]).replace(str(ROOT), ".")
            keys[source] = hashlib.sha256(text.encode()).hexdigest()
    return keys


def check(source: str, deadline: float | None) -> str | None:
    """What clang-tidy found, empty when nothing; None when the time was up before it could say. No deadline: it takes what it
    takes."""
    remaining = None if deadline is None else deadline - time.monotonic()
    if remaining is not None and remaining < 1:
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
    parser = argparse.ArgumentParser(description="clang-tidy on sources that have not passed as they are, or on all.")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--budget", type=float, default=180, help="seconds; --all has no limit")
    arguments = parser.parse_args()
    if not (BUILD / "compile_commands.json").exists():
        print("tidy: build/release is not configured; run make first", file=sys.stderr)
        return 2
    commands = compiled_sources()
    keys = keys_of(commands)
    memory = passed.open_passed()
    if memory.damage and not arguments.all:
        print(f"tidy: the memory of what passed is damaged, all sources are read: {memory.damage}")
    commit = "".join(git_lines("rev-parse", "HEAD"))
    unchanged = [source for source in commands if not arguments.all and memory.cases(keys.get(source)) is not None
                 and not passed.drawn(commit, f"tidy {source}")]
    sources = [source for source in newest_first(list(commands)) if source not in unchanged]
    deadline = None if arguments.all else time.monotonic() + arguments.budget
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = dict(zip(sources, pool.map(lambda source: check(source, deadline), sources)))
    for answer in filter(None, answers.values()):
        print(answer)
    good = {keys[source]: 1 for source, answer in answers.items() if answer == "" and source in keys}
    bad = [source for source, answer in answers.items() if answer]
    unchecked = sum(answer is None for answer in answers.values())
    try:
        memory.remember(good, used=[keys[source] for source in unchanged],
                        forgotten=[keys[source] for source in bad if source in keys])
    except OSError as error:
        print(f"tidy: what passed is not remembered: {error}")
    print(f"tidy: {len(sources) - unchecked} sources checked, {len(bad)} with findings, {len(unchanged)} unchanged since they "
          f"passed, no time for {unchecked}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
