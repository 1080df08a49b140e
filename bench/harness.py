"""What every bench does the same way: arms that take turns, medians and their spread, the machine, one table, JSON, and what
happens when a program fails. bench/run.py starts the benches; each bench/<name>/run.py says what is measured and judged.

Nothing here imports torch or headrace: worker processes of some benches import their script anew.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "build" / "release" / "bin"
PACKAGE = ROOT / "build" / "release" / "python"  # Where `import headrace` finds the package.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
LIMIT_S = 1800.0
GRACE_S = 5.0
LAST_LINES = 20
JSON_FORMAT = 1
UNAVAILABLE = "unavailable"

Command = Sequence[object]  # Words; each is turned into text.


# Programs.


class ProgramFailed(SystemExit):
    """A program that could not be started, failed, or took too long. Nobody needs to catch it: it ends the bench with its
    message and status 1. `short` is one line: the reason and the program's last line."""

    def __init__(self, command: Command, reason: str, output: str = "") -> None:
        last = output.strip().splitlines()[-LAST_LINES:]
        self.short = reason + (f": {last[-1][:200]}" if last else "")
        super().__init__(f"{' '.join(map(str, command))}\n{reason}" + "".join(f"\n{line}" for line in last))


@dataclass(frozen=True)
class Finished:
    output: str
    errors: str
    seconds: float  # From before its start until its end.

    def json(self) -> Any:
        """The last line of the output that is a JSON object."""
        return json.loads([line for line in self.output.splitlines() if line.startswith("{")][-1])


def end_group(process: subprocess.Popen) -> None:
    """Ends a process and those that it started: asks, waits GRACE_S, then kills. What has ended on its own is left alone."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)  # Also what its children left behind.
        except ProcessLookupError:
            pass
        process.wait()


@contextmanager
def started(command: Command, environment: Mapping[str, str] | None = None, folder: Path = ROOT,
            output: int = subprocess.PIPE) -> Iterator[subprocess.Popen]:
    """A program in a process group of its own, which ends with the block, however that is left: by Ctrl-C, too."""
    try:
        process = subprocess.Popen([str(word) for word in command], stdout=output, stderr=subprocess.PIPE, text=True, cwd=folder,
                                   env={**os.environ, **(environment or {})}, start_new_session=True)
    except OSError as error:
        raise ProgramFailed(command, f"could not be started: {error.strerror}") from None
    try:
        yield process
    finally:
        end_group(process)


def what_is_left(process: subprocess.Popen) -> str:
    """Of the output of a program that was ended. One that left its group may still hold the pipes open."""
    try:
        return "".join(process.communicate(timeout=GRACE_S))
    except subprocess.TimeoutExpired:
        return ""


def run(command: Command, environment: Mapping[str, str] | None = None, folder: Path = ROOT, limit_s: float = LIMIT_S,
        accepted: Sequence[int] = (0,)) -> Finished:
    """Runs a program to its end. Throws ProgramFailed for a status that is not accepted, and after limit_s."""
    begin = time.perf_counter()
    with started(command, environment, folder) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            end_group(process)
            raise ProgramFailed(command, f"not done after {limit_s:g} s", what_is_left(process)) from None
    if process.returncode not in accepted:
        raise ProgramFailed(command, f"ended with status {process.returncode}", f"{output}\n{errors}")
    return Finished(output, errors, time.perf_counter() - begin)


def run_json(command: Command, **options: Any) -> Any:
    """The figures that a program prints as its last line, one JSON object."""
    done = run(command, **options)
    try:
        return done.json()
    except (IndexError, ValueError):
        raise ProgramFailed(command, "printed no line of JSON", done.output + done.errors) from None


def python_path() -> dict[str, str]:
    """The environment in which a Python of its own finds this tree's package."""
    return {"PYTHONPATH": str(PACKAGE)}


# Rounds.


@dataclass(frozen=True)
class Arm:
    """One of the things compared. `work` is a command that prints its figures as JSON, or is called with the number of the
    round, from 1, which serves as a seed; what it returns are the figures."""

    name: Hashable
    work: Command | Callable[[int], Any]

    def figures(self, number: int) -> Any:
        return self.work(number) if callable(self.work) else run_json(self.work)


def orders(count: int, seed: int) -> Iterator[list[int]]:
    """The order of `count` arms, a round after a round: drawn, and then the same backwards, so that in two rounds each arm
    stands before every other one once."""
    drawn = random.Random(seed)
    while True:
        order = drawn.sample(range(count), count)
        yield order
        yield order[::-1]


def interleave(arms: Iterable[Arm], rounds: int, warm_up: int = 0, seed: int = 1) -> dict[Any, list[Any]]:
    """The figures of each arm, one a round. Each round runs every arm once, in a drawn order. What the warm-up rounds before
    them find (page cache filled, workers started) is not counted."""
    arms = list(arms)
    found: dict[Any, list[Any]] = {arm.name: [] for arm in arms}
    if len(found) != len(arms):
        raise ValueError(f"two arms have one name: {[arm.name for arm in arms]}")
    begin = time.monotonic()
    for number, order in zip(range(1 - warm_up, rounds + 1), orders(len(arms), seed)):
        for place in order:
            figures = arms[place].figures(max(1, number))
            if number > 0:
                found[arms[place].name].append(figures)
        if number > 0 and sys.stderr.isatty():
            print(f"round {number} of {rounds} done after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return found


# Statistics.


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a 95 % interval of the median, from the ranks alone, whatever the distribution (David and Nagaraja, Order
    Statistics, 3rd edition, 7.1: the count of values below the median is binomial). Fewer than 6 values cannot give 95 %: the
    ends are then the extremes, and coverage() says what they give."""
    ordered = sorted(values)
    place = outside(len(ordered))
    return ordered[place], ordered[-1 - place]


def outside(count: int) -> int:
    """How many of `count` ordered values lie outside of the interval on each side."""
    place, below = 0, 1  # Of 2**count ways, those in which the median lies below the value at place; as many above its mirror.
    while place + 1 < count - 1 - place:
        below += math.comb(count, place + 1)
        if 2 * below / 2**count > 0.05:  # Whole numbers: 0.5**count is 0 from 1,075 on.
            break
        place += 1
    return place


def coverage(count: int) -> float:
    """The chance that interval() of so many values holds the median."""
    return max(0.0, 1 - 2 * sum(math.comb(count, i) for i in range(outside(count) + 1)) / 2**count)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Linear between neighbours, the extremes included (type 7 of Hyndman and Fan 1996, NumPy's default)."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Round by round, so that what slows a whole round down falls away."""
    return [a / b for a, b in zip(over, under, strict=True)]


@dataclass(frozen=True)
class Summary:
    count: int
    median: float
    low: float  # Of the interval of the median.
    high: float
    coverage: float
    quartile_low: float
    quartile_high: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        return cls(len(values), statistics.median(values), *interval(values), coverage(len(values)), *quartiles(values), min(values),
                   max(values))


def with_interval(values: Sequence[float], unit: str = "", digits: int = 0) -> str:
    low, high = interval(values)
    unit = f" {unit}" if unit else ""
    return f"{statistics.median(values):,.{digits}f}{unit} [{low:,.{digits}f}, {high:,.{digits}f}]"


def with_range(values: Sequence[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


# Tables.


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Numbers stand to the right, words to the `left`: the first column, unless others are named."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join("  ".join(cell.ljust(width) if column in left else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip() for line in lines)


def text_of(name: Hashable) -> str:
    return ", ".join(map(str, name)) if isinstance(name, tuple) else str(name)


def arms_table(found: Mapping[Any, Sequence[float]], unit: str, digits: int = 0, reference: Any = None) -> str:
    """A line an arm; with a reference, also the arm's figures over the reference's, round by round."""
    headings = ["", unit, "interval", "quartiles", "range"]
    if reference is not None:
        headings.append(f"over {reference}")

    def span(low: float, high: float) -> str:
        return f"{low:,.{digits}f} - {high:,.{digits}f}"

    rows = []
    for name, values in found.items():
        summary = Summary.of(values)
        row = [text_of(name), f"{summary.median:,.{digits}f}", span(summary.low, summary.high),
               span(summary.quartile_low, summary.quartile_high), span(summary.least, summary.most)]
        if reference is not None:
            row.append("" if name == reference else with_interval(ratios(values, found[reference]), digits=3))
        rows.append(row)
    return table(headings, rows)


def interval_remark(rounds: int) -> str:
    return f"intervals are of the median, by ranks, {coverage(rounds):.0%} of {rounds} round{'s'[:rounds != 1]}"


# The machine.

INSTRUCTION_SETS = ("sse4_2", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd", "sve")


def processor() -> tuple[str, list[str]]:
    """Its name and those of INSTRUCTION_SETS that it has."""
    try:
        lines = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line]
    except OSError:
        return UNAVAILABLE, []
    fields = {key.strip(): value.strip() for key, value in reversed(lines)}
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return fields.get("model name", UNAVAILABLE), [name for name in INSTRUCTION_SETS if name in flags]


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return UNAVAILABLE


def machine() -> dict[str, Any]:
    name, sets = processor()
    return {"processor": name, "architecture": platform.machine(), "instruction_sets": sets, "cores": len(os.sched_getaffinity(0)),
            "cores_online": os.cpu_count(), "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(), "python": platform.python_version(), "torch": version_of("torch")}


def pressure(resource: str, folder: Path = Path("/proc/pressure")) -> dict[str, float] | str:
    """How long some task has waited for the resource: a share of the last 10 seconds, and seconds since the machine began."""
    try:
        words = (folder / resource).read_text().splitlines()[0].split()[1:]
        fields = dict(word.split("=") for word in words)
        return {"some_10_s": float(fields["avg10"]) / 100, "some_total_s": float(fields["total"]) / 1e6}
    except (OSError, IndexError, KeyError, ValueError):
        return UNAVAILABLE


def load() -> dict[str, Any]:
    return {"load_1_min": os.getloadavg()[0], "pressure": {name: pressure(name) for name in ("cpu", "memory", "io")}}


def pressure_between(before: dict[str, Any], after: dict[str, Any], seconds: float) -> str:
    """Shares of the time between two readings."""
    words = []
    for name, later in after["pressure"].items():
        earlier = before["pressure"][name]
        share = UNAVAILABLE if UNAVAILABLE in (earlier, later) else f"{(later['some_total_s'] - earlier['some_total_s']) / seconds:.1%}"
        words.append(f"{name} {share}")
    return ", ".join(words)


# One run of a bench.


def parser(about: str, rounds: int | None = None) -> argparse.ArgumentParser:
    """With the options that every bench has; `about` is its docstring. --rounds is there where it has a default."""
    made = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds, help="that are counted; each runs every arm once (%(default)s)")
    made.add_argument("--order-seed", type=int, default=1, help="of the drawn order in which arms take turns (%(default)s)")
    made.add_argument("--json", type=Path, help="also write the machine, all figures and what came of them to this file")
    return made


def write_json(path: Path, document: Any) -> None:
    """Aside, synced and renamed: a file of that name is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.partial")
    with open(aside, "w") as file:
        file.write(json.dumps(document, indent=1, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


class Bench:
    """Prints the machine when made, keeps every figure that its measure() finds, and writes all of it in end()."""

    def __init__(self, script: str, arguments: argparse.Namespace, about: str) -> None:
        self.name = Path(script).resolve().parent.name
        self.arguments = arguments
        self.date = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.machine, self.before = machine(), load()
        self.arms: list[dict[str, Any]] = []
        self._begin = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # An exit, not death, so that what was started ends, too.
            signal.signal(number, lambda found, _frame: sys.exit(128 + found))
        sets = " ".join(self.machine["instruction_sets"]) or f"instruction sets {UNAVAILABLE}"
        print(f"{self.date}, {self.machine['processor']} ({sets}), {self.machine['cores']} of {self.machine['cores_online']} cores, "
              f"torch {self.machine['torch']}; load {self.before['load_1_min']:.2f} at the start\n{self.name}: {about}", flush=True)

    def measure(self, arms: Iterable[Arm], rounds: int, warm_up: int = 0, title: str = "") -> dict[Any, list[Any]]:
        found = interleave(arms, rounds, warm_up, self.arguments.order_seed)
        self.keep(found, title)
        return found

    def keep(self, found: Mapping[Any, Sequence[Any]], title: str = "") -> None:
        """Figures for the JSON; with their summary where they are plain numbers."""
        for name, values in found.items():
            entry: dict[str, Any] = {"title": title, "name": text_of(name), "values": values}
            if values and all(isinstance(value, (int, float)) for value in values):
                entry["summary"] = asdict(Summary.of(values))
            self.arms.append(entry)

    def end(self, results: Any = None, status: int = 0) -> int:
        """Writes the JSON where it is wanted. Returns the status."""
        after, seconds = load(), time.monotonic() - self._begin
        print(f"{seconds:.0f} s; load {after['load_1_min']:.2f} at the end; time that some task waited for: "
              f"{pressure_between(self.before, after, seconds)}", flush=True)
        if self.arguments.json:
            write_json(self.arguments.json, {
                "format": JSON_FORMAT, "bench": self.name, "date": self.date, "command": sys.argv, "seconds": seconds,
                "options": vars(self.arguments), "machine": self.machine, "before": self.before, "after": after,
                "arms": self.arms, "results": results, "status": status})
        return status
