"""The test programs of a build tree: which there are, all that decides their outcome, and running one.

A GoogleTest program is one process for all its cases (or one a shard), not one a case: LibTorch takes 0.25 s to load, and longer
under a sanitizer. What the process prints tells the cases apart, also when it crashes among them.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORES = len(os.sched_getaffinity(0))
CASE_TIMEOUT_S = 120
DATASETS = Path("/usr/share/datasets")  # The Debian packages of tools/apt-packages.txt put them there.
# What a program under a sanitizer finds in its environment, besides the sanitizer's own options: the rest decides no outcome.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME")


@dataclass
class Program:
    """One CTest."""

    name: str
    command: list[str]
    folder: str  # Where it is run.
    timeout_s: float
    labels: list[str]
    inputs: list[Path]  # Files and folders of the tree that it reads.
    alone: bool  # Nothing else may run beside it.

    @property
    def is_gtest(self) -> bool:
        return "gtest" in self.labels

    @property
    def is_built(self) -> bool:
        return bool(self.command) and shutil.which(self.command[0]) is not None


def read_programs(build: Path) -> list[Program]:
    command = ["ctest", "--test-dir", str(build), "--show-only=json-v1"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True)
    programs = []
    for test in json.loads(listing.stdout)["tests"]:
        found = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        inputs = [Path(name) for name in found.get("REQUIRED_FILES", [])]
        programs.append(Program(test["name"], test.get("command", []), found.get("WORKING_DIRECTORY", str(build)),
                                found.get("TIMEOUT", 900), found.get("LABELS", []), inputs, found.get("RUN_SERIAL", False)))
    return programs


def case_names(build: Path) -> set[str]:
    """<program>.<suite>.<case> of every case, and the names of the CTests that are no GoogleTest programs."""
    names = set()
    for program in read_programs(build):
        if not program.is_gtest:
            names.add(program.name)
            continue
        if not program.is_built:
            raise SystemExit(f"{program.name} is not built: ninja -C {build} test_programs")
        listing = subprocess.run([*program.command, "--gtest_list_tests"], check=True, capture_output=True, text=True)
        for line in listing.stdout.splitlines():
            word = line.split("#")[0].strip()
            if line.startswith("  "):
                names.add(f"{program.name}.{suite}{word}")
            else:
                suite = word
    return names


# ---- what decides an outcome ----

@cache
def file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_hash(path: Path) -> str:
    """Of a file, or of all files below a folder with their names."""
    if path.is_file():
        return file_hash(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("\n".join(f"{file.relative_to(path)} {file_hash(file)}" for file in files).encode()).hexdigest()


@cache
def machine() -> str:
    """What a program finds here whatever the tree says. The instruction sets decide which kernels run."""
    told = Path("/proc/cpuinfo").read_text().splitlines()
    processor = sorted({line for line in told if line.startswith(("flags", "Features", "model name"))})
    return "\n".join([*processor, platform.release(), f"{CORES} cores", f"python {sys.version}", tree_hash(DATASETS),
                      file_hash(ROOT / "requirements.txt")])


def shared_libraries(binary: Path) -> list[str]:
    """What the loader opens for BINARY, by content. The wheel's libraries are 500 MB, and its folder is named by the hash of
    requirements.txt: their names do."""
    listing = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True).stdout
    found = []
    for line in listing.splitlines():
        words = line.split(" => ")
        if len(words) == 1:
            found.append(words[0].split("(")[0].strip())
            continue
        path = Path(words[1].split(" (")[0])
        found.append(f"{words[0].strip()} {path if 'site-packages' in path.parts or not path.exists() else file_hash(path)}")
    return sorted(found)


def outcome_key(program: Program, wrap: list[str], options: dict[str, str]) -> str:
    """The hash of everything that decides whether PROGRAM passes: equal in each clone of the same content."""
    binary = Path(program.command[0])
    parts = [machine(), file_hash(Path(__file__)), file_hash(binary), *shared_libraries(binary), program.name,
             *program.command[1:], *wrap, *(f"{name}={value}" for name, value in sorted(options.items())),
             *(f"{name}={os.environ[name]}" for name in ("LANG", "LC_ALL") if name in os.environ),
             *(f"{path.relative_to(ROOT)} {tree_hash(path)}" for path in program.inputs)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def working_folder(program: Program, build: Path) -> Path:
    """A working folder that holds, as links, what the program says that it reads, so that it can read nothing else of the tree."""
    folder = build / "inputs" / program.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in program.inputs:
        link = folder / path.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    return folder


def clean_environment(options: dict[str, str]) -> dict[str, str]:
    return {**{name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}, **options}


# ---- running ----

@dataclass
class Failure:
    name: str
    reason: str
    output: str


@dataclass
class Outcome:
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # By case.

    def add(self, other: "Outcome") -> None:
        self.passed += other.passed
        self.failures += other.failures
        self.seconds.update(other.seconds)


class CaseReader:
    """Follows the lines of a GoogleTest program. A case's own output may stand before a line of the program's."""

    BEGIN = re.compile(r"\[ RUN      \] (\S+)")
    END = re.compile(r"\[ (      OK| FAILED | SKIPPED) \] (\S+?)(?:, where .*)? \((\d+) ms\)$")
    ANNOUNCED = re.compile(r"^\[==========\] Running (\d+) tests?")
    DISABLED = re.compile(r"YOU HAVE (\d+) DISABLED TEST")

    def __init__(self, program: str):
        self.program = program
        self.outcome = Outcome()
        self.announced: int | None = None
        self.running: str | None = None
        self.since = time.monotonic()
        self.output: list[str] = []  # Since the running case began.

    def read(self, line: str) -> None:
        if announced := self.ANNOUNCED.search(line):
            self.announced = int(announced[1])
        if begin := self.BEGIN.search(line):
            if self.running is not None:  # Its last line was lost in what the case itself printed.
                self.end(self.running, "failed", time.monotonic() - self.since)
            self.running, self.since, self.output = begin[1], time.monotonic(), []
        self.output.append(line)
        if disabled := self.DISABLED.search(line):
            self.fail("disabled cases", f"{disabled[1]} disabled", count=int(disabled[1]))
        end = self.END.search(line)
        if end is not None and end[2] == self.running:
            self.end(end[2], end[1].strip().lower(), int(end[3]) / 1000)
            self.running = None

    def end(self, case: str, how: str, seconds: float) -> None:
        name = f"{self.program}.{case}"
        self.outcome.seconds[name] = seconds
        if how == "ok":
            self.outcome.passed += 1
        else:
            self.fail(name, how)

    def fail(self, name: str, reason: str, count: int = 1) -> None:
        self.outcome.failures += [Failure(name, reason, "\n".join(self.output))] + [Failure(name, reason, "")] * (count - 1)

    def finish(self, ending: str) -> Outcome:
        """ENDING says how the process ended, empty if by itself and with status 0."""
        if self.running is not None:
            self.end(self.running, ending or "the process ended in it", time.monotonic() - self.since)
        elif self.announced is None:
            self.fail(self.program, ending or "it printed nothing of GoogleTest")
        elif ending and not self.outcome.failures:
            self.fail(self.program, f"every case that ran passed, then {ending}")
        missing = (self.announced or 0) - len(self.outcome.seconds)
        if missing > 0:
            culprit = f"{self.program}.{self.running}" if self.running else self.program
            self.fail(f"a case behind {culprit}", "did not run", count=missing)
        return self.outcome


def said(status: int) -> str:
    if status >= 0:
        return f"status {status}" if status else ""
    return f"signal {-status} ({signal.Signals(-status).name})"


def follow(process: subprocess.Popen, log: Path, timeout_s: float, reader: CaseReader | None, stop: threading.Event) -> str:
    """Waits for the process, reads what it writes meanwhile, and ends it where it, or a case of it, takes too long. How it ended."""
    begin, ending, rest = time.monotonic(), None, ""
    with open(log, errors="replace") as output:
        while ending is None:
            try:
                ending = said(process.wait(0.1))
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    ending = "interrupted"
                elif time.monotonic() - begin > timeout_s:
                    ending = f"stopped after {timeout_s:.0f} s"
                elif reader and reader.running and time.monotonic() - reader.since > CASE_TIMEOUT_S:
                    ending = f"stopped after {CASE_TIMEOUT_S} s of one case"
            *lines, rest = (rest + output.read()).split("\n")
            for line in lines if reader else []:
                reader.read(line)
    if reader and rest:
        reader.read(rest)
    return ending


def run_program(program: Program, log: Path, environment: dict[str, str], folder: Path, wrap: list[str] = [],
                shard: int = 0, shards: int = 1, stop: threading.Event = threading.Event()) -> Outcome:
    """Its output goes to LOG. STOP, set by another thread, ends it."""
    if not program.is_built:
        return Outcome(failures=[Failure(program.name, "it was not built", "")])
    reader = CaseReader(program.name) if program.is_gtest else None
    split = {"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)} if reader else {}
    begin = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen([*wrap, *program.command], cwd=folder, stdout=output, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env={**environment, **split}, start_new_session=True)
    try:
        ending = follow(process, log, program.timeout_s, reader, stop)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if reader:
        return reader.finish(ending)
    outcome = Outcome(seconds={program.name: time.monotonic() - begin})
    if ending:
        outcome.failures.append(Failure(program.name, ending, log.read_text(errors="replace")))
    else:
        outcome.passed = 1
    return outcome
