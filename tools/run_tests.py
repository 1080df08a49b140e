#!/usr/bin/env python3
"""Runs the parts of the test suite, goes on after a part that fails, and ends with one line "N passed, N failed".

Every test case counts one; a build or a check that has no cases counts one as a whole. Output of a part goes to
build/test/<part>.log; what failed is shown here.

usage: run_tests.py [part...]    (no part: all; "fast": those that build no sanitizer tree)
"""

import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "test"
CORES = len(os.sched_getaffinity(0))
SHOWN_LINES = 60  # Of the end of a log, or of a case's output, when it failed.
SHOWN_OUTPUTS = 5
SHOWN_CASES = 50


@dataclass
class Result:
    passed: int = 0
    failures: list[str] = field(default_factory=list)  # One a failed case.
    note: str = ""  # Shown behind the part's count.

    def add(self, other: "Result") -> None:
        self.passed += other.passed
        self.failures += other.failures


def gigabytes_of_memory() -> float:
    """What may be used here: the machine's memory, or the container's limit where that is lower."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            limits.append(int(Path(path).read_text()))
        except (OSError, ValueError):
            continue  # No such cgroup version here, or "max": no limit.
    return min(limits) / 1e9


def build_jobs() -> int:
    """A file that includes LibTorch takes up to 2 GB to compile under the address sanitizer."""
    return max(1, min(CORES, int(gigabytes_of_memory() / 2)))


def run_logged(name: str, command: list[str], timeout_s: int, environment: dict[str, str] | None = None) -> int:
    """Appends the output to build/test/<name>.log. Exit status, or 124 when the time ran out."""
    with open(LOGS / f"{name}.log", "ab") as log:
        log.write(f"$ {' '.join(map(str, command))}\n".encode())
        log.flush()
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **(environment or {})}, start_new_session=True)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.write(f"stopped after {timeout_s} s\n".encode())
            return 124
        finally:
            if process.poll() is None:  # Also after Ctrl-C: the whole group, or compilers would go on.
                os.killpg(process.pid, 9)
                process.wait()


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-SHOWN_LINES:])


def log_end(name: str) -> str:
    return indented((LOGS / f"{name}.log").read_text(errors="replace"))


def one(name: str, command: list[str], timeout_s: int) -> Result:
    """A part that passes or fails as a whole."""
    status = run_logged(name, command, timeout_s)
    if status == 0:
        return Result(passed=1)
    print(f"  {name} failed with status {status}; the end of build/test/{name}.log:\n{log_end(name)}", flush=True)
    return Result(failures=[f"{name} (status {status})"])


def read_junit(path: Path, prefix: str) -> Result:
    """Counts the cases of a JUnit file. A skipped case counts as failed: nothing here may be skipped silently."""
    result = Result()
    if not path.exists():
        return Result(failures=[f"{prefix}: wrote no results"])
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        status = case.get("status", "run")
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if bad or status not in ("run", "passed"):
            group = case.get("classname", "")
            name = case.get("name", "")
            result.failures.append(f"{prefix}: {name if group == name else f'{group} {name}'}")
            output = case.findtext("system-out") or "".join(child.text or "" for child in bad)
            if len(result.failures) <= SHOWN_OUTPUTS:
                print(f"  {result.failures[-1]} ({status if bad == [] else bad[0].tag})\n{indented(output)}", flush=True)
        else:
            result.passed += 1
    if result.passed + len(result.failures) == 0:
        result.failures.append(f"{prefix}: ran no test")
    return result


def build(name: str, preset: str, timeout_s: int) -> Result:
    """Configures and builds a preset, as far as it goes: one file that does not compile must not hide other tests."""
    if run_logged(name, ["cmake", "--preset", preset], 120) != 0:
        print(f"  {name}: cmake failed:\n{log_end(name)}", flush=True)
        return Result(failures=[f"{name}: cmake"])
    return one(name, ["ninja", "-C", f"build/{preset}", "-k", "0", "-j", str(build_jobs())], timeout_s)


def ctest(name: str, preset: str, timeout_s: int, wrap: list[str] = [], **environment: str) -> Result:
    junit = LOGS / f"{name}.xml"
    junit.unlink(missing_ok=True)
    command = [*wrap, "ctest", "--test-dir", f"build/{preset}", "-j", str(CORES), "--output-on-failure",
               "--no-tests=error", "--output-junit", str(junit)]
    status = run_logged(name, command, timeout_s, environment)
    result = read_junit(junit, name)
    return with_status(result, name, status)


def with_status(result: Result, name: str, status: int) -> Result:
    """A runner that failed although no case did, or that could not say which, must not pass."""
    no_cases = result.passed == 0
    if status != 0 and (no_cases or not result.failures):
        print(f"  the end of build/test/{name}.log:\n{log_end(name)}", flush=True)
    if status != 0 and not result.failures:
        result.failures.append(f"{name}: ended with status {status}")
    return result


def release() -> Result:
    result = build("release", "release", 1500)
    result.add(ctest("release-ctest", "release", 900))
    return result


def python_tests() -> Result:
    junit = LOGS / "pytest.xml"
    junit.unlink(missing_ok=True)
    status = run_logged("pytest", [sys.executable, "-m", "pytest", "-q", f"--junit-xml={junit}"], 1200)
    return with_status(read_junit(junit, "pytest"), "pytest", status)


def formatting() -> Result:
    files = subprocess.run(["git", "ls-files", "*.h", "*.cpp"], cwd=ROOT, check=True, capture_output=True, text=True)
    present = [name for name in files.stdout.splitlines() if (ROOT / name).exists()]
    return one("format", ["clang-format", "--dry-run", "-Werror", *present], 120)


def thread_sanitizer() -> Result:
    result = build("tsan", "tsan", 900)
    # The runtime of g++ 12 stops with "unexpected memory mapping" on kernels that randomise addresses in 32 bits.
    fixed = ["setarch", "-R"]
    wrap = fixed if subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []
    result.add(ctest("tsan-ctest", "tsan", 600, wrap, TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1"))
    return result


def address_sanitizer() -> Result:
    result = build("asan", "asan", 1500)
    result.add(ctest("asan-ctest", "asan", 900, ASAN_OPTIONS="detect_stack_use_after_return=1 strict_string_checks=1",
                     UBSAN_OPTIONS="print_stacktrace=1"))
    return result


def tidy() -> Result:
    result = one("tidy", [sys.executable, "tools/tidy.py"], 600)
    result.note = (LOGS / "tidy.log").read_text(errors="replace").splitlines()[-1]  # How much there was time for.
    return result


PARTS: dict[str, Callable[[], Result]] = {
    "release": release,
    "pytest": python_tests,
    "format": formatting,
    "tsan": thread_sanitizer,
    "asan": address_sanitizer,
    "tidy": tidy,
}
FAST = ["release", "pytest", "format"]


def run_part(name: str) -> Result:
    start = time.monotonic()
    for log in LOGS.glob(f"{name}*.log"):
        log.unlink()
    print(f"{name} ...", flush=True)
    try:
        result = PARTS[name]()
    except (OSError, subprocess.SubprocessError, ElementTree.ParseError) as error:
        result = Result(failures=[f"{name}: {error}"])
    seconds = time.monotonic() - start
    print(f"{name}: {result.passed} passed, {len(result.failures)} failed, {seconds:.0f} s"
          f"{' (' + result.note + ')' if result.note else ''}", flush=True)
    return result


def write_count(passed: int, failed: int) -> None:
    count = f"{passed} passed, {failed} failed"
    (LOGS / "count").write_text(count + "\n")
    print(count, flush=True)


def main() -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    names = sys.argv[1:] or list(PARTS)
    names = FAST if names == ["fast"] else names
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part named {', '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        write_count(0, 1)
        return 2
    start = time.monotonic()
    total = Result()
    try:
        for name in names:
            total.add(run_part(name))
    except KeyboardInterrupt:
        total.failures.append("interrupted")
    if total.failures:
        print(f"\nfailed ({time.monotonic() - start:.0f} s in all):")
        for failure in total.failures[:SHOWN_CASES]:
            print(f"  {failure}")
        if len(total.failures) > SHOWN_CASES:
            print(f"  and {len(total.failures) - SHOWN_CASES} more")
    else:
        print(f"\nall parts passed in {time.monotonic() - start:.0f} s")
    write_count(total.passed, len(total.failures))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
