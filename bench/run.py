#!/usr/bin/env python3
"""Runs a bench by its name, and first makes what it needs: programs, photographs, the rivals' environment.

usage: bench/run.py list                  the names, a line each
       bench/run.py NAME [OPTION...]      `bench/run.py NAME --help` tells the options
       bench/run.py programs              every program that stands beside its sources, one after the other
"""

import ast
import difflib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402

BENCH = Path(__file__).resolve().parent
ENGINE = ("headrace_main", "headrace_torch")  # For the verbs that train.
PACK = ("headrace_main",)
PACKAGE = ("_engine",)
PHOTOS, PEERS = "photos", "peers"


@dataclass(frozen=True)
class Needs:
    """What must be there before bench/<folder>/run.py is run."""

    targets: tuple[str, ...]  # Of ninja.
    sets: tuple[str, ...] = ()  # PHOTOS, PEERS.


NEEDS = {
    "activation_checkpointing": Needs(PACKAGE),
    "allocators": Needs(("training_steps",), (PHOTOS,)),
    "always_on": Needs((*PACKAGE, "trace_bench")),
    "compare": Needs(PACK),
    "compare_functions": Needs(PACKAGE),
    "cores_division": Needs(ENGINE, (PHOTOS,)),
    "counting_thread": Needs(PACKAGE),
    "data_targets": Needs(("data_targets", *PACK, *PACKAGE), (PHOTOS,)),
    "diagnosis": Needs(PACKAGE),
    "doctor_cases": Needs(ENGINE),
    "doctor_gains": Needs(ENGINE, (PHOTOS,)),
    "first_batch": Needs(("photo_bench", "training_first_batch", *PACKAGE), (PHOTOS,)),
    "gpu_training": Needs(PACKAGE),
    "import_time": Needs((*PACK, *PACKAGE)),
    "live_tuning": Needs(PACKAGE, (PHOTOS,)),
    "load_photos": Needs(("photo_loader",), (PHOTOS,)),
    "loader_timing": Needs(PACKAGE),
    "loading_advice": Needs((*PACK, *PACKAGE), (PHOTOS,)),
    "memory": Needs(ENGINE, (PHOTOS,)),
    "operator_profile": Needs(PACKAGE),
    "peers": Needs(("full_decode", "native_loader", *PACK, *PACKAGE), (PHOTOS, PEERS)),
    "planted": Needs(ENGINE),
    "profile_overhead": Needs(PACKAGE),
    "python_calls": Needs(PACKAGE),
    "python_loader": Needs(("native_loader", *PACKAGE), (PHOTOS,)),
    "python_source": Needs(PACKAGE, (PHOTOS,)),
    "python_step": Needs(PACKAGE),
    "python_tune": Needs(PACKAGE, (PHOTOS,)),
    "python_watch": Needs(PACKAGE),
    "report_page": Needs(("report_probe",)),
    "resnet_cifar": Needs(ENGINE),
    "train_fashion": Needs(ENGINE),
    "train_peers": Needs(PACKAGE, (PHOTOS,)),
    "train_photos": Needs(ENGINE, (PHOTOS,)),
    "train_targets": Needs(PACKAGE, (PHOTOS,)),
    "two_builds": Needs(("photo_loader", "native_loader", *ENGINE, *PACKAGE), (PHOTOS,)),
    "two_torches": Needs(PACKAGE, (PHOTOS,)),
    "workloads": Needs(PACKAGE, (PHOTOS,)),
    "zero_configuration": Needs(ENGINE, (PHOTOS,)),
}

# Names beside those of the folders: the folders in turn, each with options of its own.
ALIASES: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "fashion": [("train_fashion", ())],
    "overheads": [("profile_overhead", ()), ("train_targets", ("batch",))],
    "photos": [("load_photos", ()), ("train_photos", ())],
    "python-scripts": [("python_watch", ()), ("python_tune", ())],
    "python-loader": [("python_loader", ()), ("python_loader", ("--work", "fashion"))],
}
PROGRAMS = "programs"


def refuse(message: str) -> None:
    print(f"bench/run.py: {message}", file=sys.stderr)
    raise SystemExit(2)


def name_of(folder: str) -> str:
    return folder.replace("_", "-")


def programs() -> dict[str, Path]:
    """The benches that stand beside the sources of src/: by name, the source."""
    return {path.stem: path for path in sorted((harness.ROOT / "src").rglob("*_bench.cpp"))}


def first_sentence(text: str) -> str:
    """Of the first paragraph, on one line."""
    words = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?[.?!](?=\s|$)", words)
    return textwrap.shorten(sentence[0] if sentence else words, 130, placeholder=" ...")


def about_script(folder: str) -> str:
    return first_sentence(ast.get_docstring(ast.parse((BENCH / folder / "run.py").read_text())) or "")


def about_program(source: Path) -> str:
    comment = re.match(r"(//[^\n]*\n)+", source.read_text())
    return first_sentence(re.sub(r"^// ?", "", comment[0], flags=re.MULTILINE)) if comment else ""


def listing() -> str:
    lines = {name_of(folder): about_script(folder) for folder in NEEDS}
    for alias, runs in ALIASES.items():
        if alias not in lines:
            lines[alias] = "the same as " + ", then ".join(name_of(folder) for folder, _ in runs)
    lines |= {name: about_program(source) for name, source in programs().items()}
    lines[PROGRAMS] = f"all {len(programs())} names that end in _bench, one after the other"
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {line}".rstrip() for name, line in sorted(lines.items()))


def runs_of(name: str, options: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Folders or programs with the options of each; refuses a name that is not there."""
    plain, program = name_of(name), name.replace("-", "_")
    if name == PROGRAMS and not options:
        return [(program, ()) for program in programs()]
    if program in programs():
        return [(program, tuple(options))]
    if plain in ALIASES:
        runs = ALIASES[plain]
        folders = {folder for folder, _ in runs}
        if not options:
            return runs
        if len(folders) == 1:  # Options of one's own stand for those of the table.
            return [(runs[0][0], tuple(options))]
        refuse(f"{name} is {' and '.join(map(name_of, sorted(folders)))}; options are for one of them")
    if program in NEEDS:
        return [(program, tuple(options))]
    known = [*map(name_of, NEEDS), *ALIASES, *programs(), PROGRAMS]
    nearest = difflib.get_close_matches(plain, known, 1, 0.5)
    refuse(f"no bench is called {name}" + (f"; did you mean {nearest[0]}?" if nearest else "") + f"\n{listing()}")
    return []


def prepare(runs: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    targets = dict.fromkeys(target for what, _ in runs for target in (NEEDS[what].targets if what in NEEDS else (what,)))
    sets = dict.fromkeys(name for what, _ in runs if what in NEEDS for name in NEEDS[what].sets)
    commands: list[list[str]] = [["tools/setup.sh", *sets]]
    if not (harness.ROOT / "build" / "release" / "build.ninja").exists():
        commands.append(["cmake", "--preset", "release"])
    commands.append(["ninja", "-C", "build/release", "-j", str(len(os.sched_getaffinity(0))), *targets])
    if PHOTOS in sets:
        commands.append([".venv/bin/python", "tools/make_photos.py"])
    if PEERS in sets:
        commands.append(["bench/peers/setup.sh"])
    for command in commands:
        if status := subprocess.run(command, cwd=harness.ROOT).returncode:
            refuse(f"{' '.join(command)} ended with status {status}")


def run_one(what: str, options: Sequence[str]) -> int:
    words = [str(harness.ROOT / ".venv" / "bin" / "python"), str(BENCH / what / "run.py")] if what in NEEDS else [str(harness.PROGRAMS / what)]
    print(f"== {what} {' '.join(options)}".rstrip(), flush=True)
    process = subprocess.Popen([*words, *options], cwd=harness.ROOT)
    try:
        return process.wait()
    finally:  # A bench that is told to end ends what it has started itself.
        if process.poll() is None:
            process.terminate()
            process.wait()


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda found, _frame: sys.exit(128 + found))
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if words else 2
    if words[0] == "list":
        print(listing())
        return 0
    runs = runs_of(words[0], words[1:])
    if not {"-h", "--help"} & set(words[1:]):
        prepare(runs)
    statuses = [run_one(what, options) for what, options in runs]
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    sys.exit(main())
