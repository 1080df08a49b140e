#!/usr/bin/env python3
"""Runs the parts of the test suite, goes on after a part that fails, and ends with one line "N passed, N failed".

Every test case counts one; a build or a check that has no cases counts one as a whole. Output of a part goes to
build/test/<part>.log and build/test/<part>/; what failed is shown here.

A sanitizer's program whose every input passed before on this machine (tools/passed.py) is not run, and its cases are counted
apart as unchanged; one in ten is run anyway, drawn by the commit. With --anew all of them run, clang-tidy reads every source,
without-engine runs all of the Python suite, and there are three parts more: the bindings under the address sanitizer, the adapters to
other frameworks, and fuzzing.

With --minutes the sanitizers and clang-tidy end when so many minutes have passed since the start. What they leave out is named and
is no failure: the next run on this machine finds what was compiled and what passed, and goes on behind it.

usage: run_tests.py [--anew] [--minutes N] [part...]    (no part: all; "fast": those that build no sanitizer tree)
"""

import argparse
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Iterator

import passed
import test_programs
from test_programs import CORES, ROOT, Outcome, Program

LOGS = ROOT / "build" / "test"
SLOW = ROOT / "tests" / "slow_tests.txt"
SLOW_S = 20  # A test that takes longer says why in that file.
SLOWEST_SHOWN = 10
SHARDS = min(CORES, 4)  # Each loads LibTorch once more.
SHOWN_LINES = 60  # Of the end of a log, or of a case's output, when it failed.
SHOWN_OUTPUTS = 5
SHOWN_CASES = 50


@dataclass
class Result:
    passed: int = 0
    failures: list[str] = field(default_factory=list)  # One a failed case.
    note: str = ""  # Shown behind the part's count.
    left_out: list[str] = field(default_factory=list)  # What there was no time for.
    unchanged: int = 0  # Cases that were not run, because they passed before with the same inputs. Not among the passed.
    seconds: dict[str, float] = field(default_factory=dict)  # By case.

    def add(self, other: "Result") -> None:
        self.passed += other.passed
        self.failures += other.failures
        self.note = self.note or other.note
        self.unchanged += other.unchanged
        self.left_out += other.left_out
        self.seconds.update(other.seconds)


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


@contextmanager
def logged(name: str, command: list[str], environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """Appends the output to build/test/<name>.log. What still runs at the end is killed with its whole group, also after Ctrl-C,
    or compilers would go on."""
    with open(LOGS / f"{name}.log", "ab") as log:
        log.write(f"$ {' '.join(map(str, command))}\n".encode())
        log.flush()
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env={**os.environ, **(environment or {})}, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


def status_of(name: str, process: subprocess.Popen, begin_s: float, timeout_s: int) -> int:
    """Exit status, or 124 when the time ran out."""
    try:
        return process.wait(max(0, begin_s + timeout_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        with open(LOGS / f"{name}.log", "ab") as log:
            log.write(f"stopped after {timeout_s} s\n".encode())
        return 124


def run_logged(name: str, command: list[str], timeout_s: int) -> int:
    with logged(name, command) as process:
        return status_of(name, process, time.monotonic(), timeout_s)


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
        file, name = case.get("classname", "").replace(".", "/"), case.get("name", "")
        name = f"{file}.py::{name}" if file else name  # A file that could not be read has no class.
        result.seconds[f"{prefix} {name}"] = float(case.get("time", 0))
        bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
        if bad:
            result.failures.append(f"{prefix} {name}")
            if len(result.failures) <= SHOWN_OUTPUTS:
                output = "".join(child.text or "" for child in bad)
                print(f"  {result.failures[-1]} ({bad[0].tag})\n{indented(output)}", flush=True)
        else:
            result.passed += 1
    return result


def build(name: str, preset: str, timeout_s: int, *targets: str) -> Result:
    """Configures and builds a preset, as far as it goes: one file that does not compile must not hide other tests."""
    if run_logged(name, ["cmake", "--preset", preset], 120) != 0:
        print(f"  {name}: cmake failed:\n{log_end(name)}", flush=True)
        return Result(failures=[f"{name}: cmake"])
    return one(name, ["ninja", "-C", f"build/{preset}", "-k", "0", "-j", str(build_jobs()), *targets], timeout_s)


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip()  # Empty in a tree without history: then the same programs are drawn every time.


@dataclass
class Runs:
    """The programs of one part: which of them run, and what came of it."""

    part: str
    environment: dict[str, str]
    folder: Callable[[Program], Path]
    wrap: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)  # By program, where what passes is remembered.
    end_s: float = math.inf  # No program starts behind it; of time.monotonic().
    result: Result = field(default_factory=Result)
    stop: threading.Event = field(default_factory=threading.Event)

    def start(self, pool: ThreadPoolExecutor, program: Program) -> dict[Future, Program]:
        folder, shards = self.folder(program), SHARDS if program.is_gtest else 1
        return {pool.submit(self.run_shard, program, folder, shard, shards): program for shard in range(shards)}

    def run_shard(self, program: Program, folder: Path, shard: int, shards: int) -> Outcome | None:
        if time.monotonic() >= self.end_s:
            return None
        return test_programs.run_program(program, LOGS / self.part / f"{program.name}.{shard}.log", self.environment, folder,
                                         self.wrap, shard, shards, self.stop)

    def run(self, programs: list[Program]) -> None:
        beside = [program for program in programs if not program.alone]
        for together in (beside, *([program] for program in programs if program.alone)):
            with ThreadPoolExecutor(CORES) as pool:
                try:
                    futures = {future: program for each in together for future, program in self.start(pool, each).items()}
                    outcomes: dict[str, list[Outcome | None]] = {}
                    for future in as_completed(futures):
                        program = futures[future]
                        outcomes.setdefault(program.name, []).append(future.result())
                        if len(outcomes[program.name]) == (SHARDS if program.is_gtest else 1):
                            self.take(program, outcomes[program.name])
                except BaseException:  # Ctrl-C among others: nothing that was started stays.
                    self.stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise

    def take(self, program: Program, outcomes: list[Outcome | None]) -> None:
        """None is the outcome of a shard that there was no time for."""
        of_shards = [outcome for outcome in outcomes if outcome is not None]
        is_whole = len(of_shards) == len(outcomes)
        whole = Outcome()
        for outcome in of_shards:
            whole.add(outcome)
        if program.is_gtest and is_whole and whole.passed + len(whole.failures) == 0:
            whole.failures.append(test_programs.Failure(program.name, "it has no case", ""))
        self.result.passed += whole.passed
        self.result.seconds.update({f"{self.part} {name}": seconds for name, seconds in whole.seconds.items()})
        if not is_whole:
            self.result.left_out.append(f"{self.part} {program.name}")
        for failure in whole.failures:
            self.result.failures.append(f"{self.part} {failure.name} ({failure.reason})")
            if len(self.result.failures) <= SHOWN_OUTPUTS:
                print(f"  {self.result.failures[-1]}\n{indented(failure.output)}", flush=True)
        if program.name in self.keys:
            key = self.keys[program.name]
            if whole.failures:  # Also with inputs that had passed: then it runs until it passes again.
                remember({}, forgotten=[key])
            elif is_whole:
                remember({key: whole.passed})


def remember(found: dict[str, int], **lists: list[str]) -> None:
    try:
        passed.open_passed().remember(found, **lists)
    except OSError as error:
        print(f"  what passed is not remembered: {error}", flush=True)


def programs_of(part: str, preset: str) -> list[Program]:
    shutil.rmtree(LOGS / part, ignore_errors=True)
    (LOGS / part).mkdir(parents=True)
    return test_programs.read_programs(ROOT / "build" / preset)


def always_run(part: str, preset: str) -> Result:
    runs = Runs(part, dict(os.environ), lambda program: Path(program.folder))
    runs.run(programs_of(part, preset))
    return runs.result


def build_sanitized(preset: str, timeout_s: int) -> Result:
    """What is still to be compiled when the run's time is over is left out."""
    result = build(preset, preset, max(1, math.ceil(min(timeout_s, END_S - time.monotonic()))), "test_programs")
    compiled = "FAILED: " not in (LOGS / f"{preset}.log").read_text(errors="replace")
    if result.failures and compiled and time.monotonic() >= END_S:
        return Result(left_out=[f"{preset}: a part of the build"])
    return result


def run_sanitized(part: str, preset: str, options: dict[str, str], wrap: list[str] = []) -> Result:
    """Runs what has not passed as it is now, and one in ten of the rest."""
    build_folder = ROOT / "build" / preset
    programs = programs_of(part, preset)
    if time.monotonic() >= END_S:
        return Result(left_out=[f"{part} {program.name}" for program in programs])
    runs = Runs(part, test_programs.clean_environment(options),
                lambda program: test_programs.working_folder(program, build_folder), wrap, end_s=END_S)
    runs.keys = {program.name: test_programs.outcome_key(program, wrap, options) for program in programs if program.is_built}
    memory = passed.open_passed()
    if memory.damage and not ANEW:
        print(f"  the memory of what passed is damaged, everything runs: {memory.damage}", flush=True)
    known = {name: memory.cases(key) for name, key in runs.keys.items()} if not ANEW else {}
    at = commit()
    unchanged = [name for name, cases in known.items() if cases is not None and not passed.drawn(at, f"{part} {name}")]
    drawn = [name for name, cases in known.items() if cases is not None and name not in unchanged]
    runs.run([program for program in programs if program.name not in unchanged])
    runs.result.unchanged = sum(known[name] for name in unchanged)
    if unchanged:
        remember({}, used=[runs.keys[name] for name in unchanged])
        runs.result.note = f"{runs.result.unchanged} unchanged since they passed, in {len(unchanged)} of {len(programs)} programs"
    if drawn:
        runs.result.note += f"{'; ' if unchanged else ''}run although unchanged: {', '.join(drawn)}"
    return runs.result


def with_status(result: Result, name: str, status: int) -> Result:
    """A runner that failed although no case did, or that could not say which, must not pass."""
    no_cases = result.passed == 0
    if status != 0 and (no_cases or not result.failures):
        print(f"  the end of build/test/{name}.log:\n{log_end(name)}", flush=True)
    if status != 0 and not result.failures:
        result.failures.append(f"{name}: ended with status {status}")
    return result


def release() -> Result:
    result = build("release", "release", 2400)
    result.add(always_run("release", "release"))
    return result


def pytest(part: str, *arguments: str, timeout_s: int, shards: int = 1, python: str = sys.executable, **environment: str) -> Result:
    """Shards run beside each other, and each takes the next file that none has (tests/conftest.py)."""
    begin_s = time.monotonic()
    claims = LOGS / f"{part}.claims"
    shutil.rmtree(claims, ignore_errors=True)  # Of an earlier run: no file would be left to take.
    claims.mkdir()
    names = [f"{part}.{shard}" for shard in range(shards)]
    with ExitStack() as stack:
        running = {}
        for name in names:
            junit = LOGS / f"{name}.xml"
            junit.unlink(missing_ok=True)
            command = [python, "-m", "pytest", "-q", f"--junit-xml={junit}", f"--claims={claims}", *arguments]
            running[name] = stack.enter_context(logged(name, command, environment))
        statuses = {name: status_of(name, process, begin_s, timeout_s) for name, process in running.items()}
    result = Result()
    for name, status in statuses.items():
        result.add(with_status(read_junit(LOGS / f"{name}.xml", part), name, status))
    if result.passed + len(result.failures) == 0:
        result.failures.append(f"{part}: ran no test")
    return result


def python_tests(part: str, *arguments: str, timeout_s: int, alone_timeout_s: int, marks: str = "", **environment: str) -> Result:
    """What judges speed runs after the rest, by itself: beside other tests it would take longer to be sure, or never be."""
    result = pytest(part, *arguments, "-m", f"not alone{marks}", timeout_s=timeout_s, shards=SHARDS, **environment)
    result.add(pytest(f"{part}-alone", *arguments, "-m", f"alone{marks}", timeout_s=alone_timeout_s, **environment))
    return result


def test_files(*names: str) -> list[str]:
    return [f"tests/{name}_test.py" for name in names]


def formatting() -> Result:
    files = subprocess.run(["git", "ls-files", "*.h", "*.cpp"], cwd=ROOT, check=True, capture_output=True, text=True)
    present = [name for name in files.stdout.splitlines() if (ROOT / name).exists()]
    return one("format", ["clang-format", "--dry-run", "-Werror", *present], 120)


def site() -> Result:
    """The documents' spelling, and a site of them, which no link may leave."""
    return one("site", ["tools/site.sh"], 900)


def thread_sanitizer() -> Result:
    result = build_sanitized("tsan", 1500)
    # The runtime of g++ 12 stops with "unexpected memory mapping" on kernels that randomise addresses in 32 bits.
    fixed = ["setarch", "-R"]
    wrap = fixed if subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL).returncode == 0 else []
    result.add(run_sanitized("tsan", "tsan", {"TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1"}, wrap))
    return result


def address_sanitizer() -> Result:
    result = build_sanitized("asan", 3600)
    result.add(run_sanitized("asan", "asan", {"ASAN_OPTIONS": "detect_stack_use_after_return=1 strict_string_checks=1",
                                              "UBSAN_OPTIONS": "print_stacktrace=1"}))
    return result


def tidy() -> Result:
    if time.monotonic() >= END_S:
        return Result(left_out=["tidy"])
    result = one("tidy", [sys.executable, "tools/tidy.py", *(["--all"] if ANEW else [])], 7200 if ANEW else 600)
    result.note = (LOGS / "tidy.log").read_text(errors="replace").splitlines()[-1]  # How much there was time for.
    return result


def python_under_asan() -> Result:
    """The bindings, which take minutes to compile under a sanitizer. torch keeps what it made at import, and ASan keeps what
    was freed, so neither leaks nor growth mean anything here. Tests marked forks are left out: the runtime that g++ 12 brings does
    not hold its allocator's locks over fork (LLVM's since its pull request 75290 does), so a DataLoader's worker that is forked
    beside a thread which allocates may wait for ever. torch.compile would run g++ under ASan, for longer than its test's budget.
    Under a limit of the address space ASan itself fails. Calls that leave nothing behind are made 50 times and not 100,000."""
    result = build("asan-python", "asan", 2400, "_engine")
    libraries = [subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
                 for name in ("libasan.so", "libstdc++.so")]
    bindings = ("trainer", "fine_tuning_trainer", "loader", "pipeline", "insight", "native_loader", "tune", "watch", "source", "knobs",
                "batch_size", "torch_optimizers")
    files = test_files(*(f"python_{name}" for name in bindings), "fields", "field_combinations", "bad_fields", "sampler", "transforms",
                       "uint16_field", "core_calls", "core_live_calls", "core_module", "engine_calls", "autotune", "boundary", "strategy",
                       "loop_memory", "tensors", "trace_choice", "monitor", "operator_profile", "loading_stages", "resource_verdict",
                       "trace_door", "compare_functions", "hardware_settings", "facade_config", "replay", "live_figures", "live_knobs",
                       "live_loader", "loader_object", "memory_roles", "page_lock", "profile_windows", "shown")
    options = ["-o", "pythonpath=tests build/asan/python", "-o", "faulthandler_timeout=120",
               "-k", "not grow and not really_compiles and not number_of_threads_that_is_refused and not shows "
                     "and not outside_the_tree"]
    environment = {"LD_PRELOAD": " ".join(libraries), "CALLS_AT_MOST": "50", "UBSAN_OPTIONS": "print_stacktrace=1",
                   "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1:strict_string_checks=1"}
    result.add(python_tests("asan-python", *options, *files, marks=" and not forks", timeout_s=2400, alone_timeout_s=1200,
                            **environment))
    return result


# Together half a minute on two cores: all that hangs on what there is, candidates, refusals and settings.
WITHOUT_ENGINE = ("device_times", "kept_call", "live_knobs", "priority_order", "python_insight", "python_knobs", "python_package",
                  "python_watch")
WITHOUT_ENGINE_IF_ANEW = (
    "activation_checkpointing", "attention", "autotune", "bad_fields", "batch_plan", "block_times", "boundary", "command",
    "compare_functions", "compile_costs", "compiled", "core_calls", "core_live_calls", "core_module", "device_batch",
    "doctor", "draws", "engine_door", "errors", "facade", "facade_batch_size", "facade_config", "facade_dataloader",
    "facade_hardware", "facade_model", "facade_monitor", "facade_profiler", "field_combinations", "fields", "fixed_shapes",
    "hardware_settings", "live_loader", "loader_object", "loading_stages", "loop_memory", "memory_roles", "metrics",
    "monitor", "monitor_figures", "other_generators", "page_lock", "pipeline_analysis", "profile_script", "profile_windows",
    "python_compare", "python_doctor", "python_examples", "python_gil", "python_loader", "python_native_loader",
    "python_pipeline", "python_source", "python_stubs", "python_tune", "ranks", "recipe_keys", "replay", "resource_verdict",
    "sampler", "shown", "step_work", "strategy", "tensors", "timm_recipe", "trace_choice", "trace_door", "trace_exports",
    "transforms", "uint16_field", "written_report")


def without_engine() -> Result:
    """The Python suite where headrace._engine cannot be had, but what tests/engine_tests.txt lists: with --anew all of it. What is
    built outside of the tree is built against LibTorch."""
    options = ["-o", "pythonpath=tests build/release/python-without-engine", "-k", "not outside_the_tree"]
    if ANEW:
        return python_tests("without-engine", *options, *test_files(*WITHOUT_ENGINE, *WITHOUT_ENGINE_IF_ANEW), marks=" and not engine",
                            timeout_s=1800, alone_timeout_s=600)
    return pytest("without-engine", *options, *test_files(*WITHOUT_ENGINE), "-m", "not alone and not engine", timeout_s=600,
                  shards=SHARDS)


def python_of(name: str, timeout_s: int) -> str:
    """The interpreter of the environment of tests/NAME_requirements.txt, which is made where it is not there."""
    made = subprocess.run(["tools/environment.sh", name, f"tests/{name}_requirements.txt"], cwd=ROOT, check=True,
                          stdout=subprocess.PIPE, text=True, timeout=timeout_s)
    return f"{made.stdout.strip()}/bin/python"


def frameworks() -> Result:
    """What needs Lightning, Transformers, Accelerate, matplotlib, timm or tqdm, in an environment that has these: the adapters, figures
    and bars, networks' weights from timm, and the scripts and the guide's code that are left out where they are missing. And in one of their
    own the programs that read what is exported."""
    result = build("frameworks", "release", 2400, "_engine", "model_probe", "export_probe")
    result.add(pytest("frameworks", "-k", "adapters_test or guides_test or hugging_face or lightning_module or notebook_test "
                                        "or timm_weights_test or watched_frameworks_test or yaml_config_test",
                      "tests/frameworks", "tests/guides_test.py", "tests/live_tuning_scripts_test.py", "tests/python_examples_test.py",
                      timeout_s=1800, python=python_of("frameworks", 1800)))
    result.add(pytest("readers", "tests/readers", timeout_s=300, python=python_of("readers", 600)))
    return result


def fuzz() -> Result:
    """Each parser for FUZZ_SECONDS, from tests/fuzz_inputs on. What is found stays in build/fuzz, beside the new inputs."""
    seconds = int(os.environ.get("FUZZ_SECONDS") or 60)
    names = sorted(source.name.removesuffix("_fuzz.cpp") for source in (ROOT / "src").rglob("*_fuzz.cpp"))
    wanted = (os.environ.get("FUZZERS") or " ".join(names)).split()
    if unknown := [name for name in wanted if name not in names]:
        return Result(failures=[f"fuzz: no fuzzer named {', '.join(unknown)}; there are {', '.join(names)}"])
    result = build("fuzz", "fuzz", 1500, *(f"{name}_fuzz" for name in wanted))

    def run(name: str) -> Result:
        (ROOT / "build" / "fuzz" / name).mkdir(exist_ok=True)
        return one(f"fuzz-{name}", [
            "env", "-C", "build/fuzz", f"bin/{name}_fuzz", f"-max_total_time={seconds}", "-timeout=5", "-rss_limit_mb=1024",
            "-max_len=16384", "-print_final_stats=1", name, f"../../tests/fuzz_inputs/{name}"], seconds + 300)

    with ThreadPoolExecutor(CORES) as pool:
        for found in pool.map(run, wanted):
            result.add(found)
    return result


ANEW = False  # Run all, whatever passed before: make check.
END_S = math.inf  # Where the time that --minutes gives is over; of time.monotonic().
PARTS: dict[str, Callable[[], Result]] = {
    "release": release,
    "pytest": lambda: python_tests("pytest", timeout_s=2700, alone_timeout_s=600),
    "without-engine": without_engine,
    "format": formatting,
    "site": site,
    "tsan": thread_sanitizer,
    "asan": address_sanitizer,
    "tidy": tidy,
    "asan-python": python_under_asan,
    "frameworks": frameworks,
    "fuzz": fuzz,
}
FAST = ["release", "pytest", "without-engine", "format", "site"]
LONG = ["asan-python", "frameworks", "fuzz"]  # Only where they are asked for: make check, or by name.


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
    notes = [result.note] if result.note else []
    if result.left_out:
        notes.append(f"no time for {len(result.left_out)}")
    print(f"{name}: {result.passed} passed, {len(result.failures)} failed, {seconds:.0f} s"
          f"{' (' + '; '.join(notes) + ')' if notes else ''}", flush=True)
    return result


def read_reasons() -> dict[str, str]:
    lines = [line for line in SLOW.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def show_slowest(seconds: dict[str, float]) -> None:
    """Times fail no test: a busy machine would. But one that is slow by its nature says why."""
    reasons = read_reasons()
    slowest = sorted(seconds, key=lambda name: seconds[name], reverse=True)
    print("\nslowest:")
    for rank, name in enumerate(slowest):
        reason = reasons.get(name.split(" ", 1)[1].split("[")[0])
        slow = seconds[name] > SLOW_S
        if rank < SLOWEST_SHOWN or (slow and not reason):
            missing = f" warning: over {SLOW_S} s, and {SLOW.relative_to(ROOT)} gives no reason" if slow and not reason else ""
            print(f"  {seconds[name]:6.1f} s  {name}{f' ({reason})' if reason else ''}{missing}")


def write_count(passed: int, failed: int) -> None:
    count = f"{passed} passed, {failed} failed"
    (LOGS / "count").write_text(count + "\n")
    print(count, flush=True)


def stop_alike() -> None:
    """Ctrl-C and kill, also in the background of a script, which ignores the first: either ends all that was started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def main() -> int:
    stop_alike()
    LOGS.mkdir(parents=True, exist_ok=True)
    global ANEW, END_S
    parser = argparse.ArgumentParser(prog="run_tests.py", allow_abbrev=False)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--minutes", type=int, default=math.inf)
    parser.add_argument("parts", nargs="*")
    words = parser.parse_args()
    ANEW, END_S = words.anew, time.monotonic() + 60 * words.minutes
    names = words.parts or [name for name in PARTS if ANEW or name not in LONG]
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
    if total.seconds:
        show_slowest(total.seconds)
    if total.failures:
        print(f"\nfailed ({time.monotonic() - start:.0f} s in all):")
        for failure in total.failures[:SHOWN_CASES]:
            print(f"  {failure}")
        if len(total.failures) > SHOWN_CASES:
            print(f"  and {len(total.failures) - SHOWN_CASES} more")
    else:
        print(f"\nall parts passed in {time.monotonic() - start:.0f} s")
    if total.unchanged:
        print(f"{total.unchanged} unchanged since they passed")
    if total.left_out:
        print(f"not run, as the {words.minutes} minutes were over: {', '.join(total.left_out)}")
    write_count(total.passed, len(total.failures))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
