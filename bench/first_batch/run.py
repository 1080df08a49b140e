#!/usr/bin/env python3
"""How long does the first batch of photographs take in a process that has just begun? Page cache warm, 64 pictures of 224 x 224.

Three ways: a program that links only the part without LibTorch, from its exec; what `headrace train` does with its data, from
the first look at the folder (and once more with its network, for which LibTorch sets itself up: without a bar); Python after `import headrace`, from hr.Loader(...). Folders of 3,000 and of 20,000 copies of the photographs of
`make photos`, written for this and removed. Each round runs every arm once. Exit status 3: a bar is missed.

usage: make bench-first-batch
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAMS = ROOT / "build" / "release" / "bin"
BARS_MS = {3_000: 60, 20_000: 150}
WITH_NETWORK = "headrace train, with its network"
TRANSFORM = {"size": 224, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.485, 0.456, 0.406],
             "deviation": [0.229, 0.224, 0.225]}
PYTHON = f"""
import sys, time
import headrace
begin = time.perf_counter()
batch = next(iter(headrace.Loader(sys.argv[1], batch_size=64, threads=2, seed=1, transform={TRANSFORM})))
print(f"{{(time.perf_counter() - begin) * 1000:.2f}} ms to {{len(batch[1])}} samples")
"""
RECIPE = """
[data]
source = "folder:{folder}"
batch_size = 64
threads = 2
[data.transform]
size = 224
crop = "random_resized"
flip_probability = 0.5
mean = [0.485, 0.456, 0.406]
deviation = [0.229, 0.224, 0.225]
[model]
name = "small_cnn"
classes = 12
"""


def copies(photos: Path, target: Path, count: int) -> None:
    """A folder with `count` training pictures of all classes, each a file of its own."""
    classes = sorted(path for path in (photos / "train").iterdir() if path.is_dir())
    pictures = {folder: sorted(folder.iterdir()) for folder in classes}
    for split, wanted in (("train", count), ("val", len(classes))):
        for folder in classes:
            (target / split / folder.name).mkdir(parents=True)
        for i in range(wanted):
            folder = classes[i % len(classes)]
            place = i // len(classes)
            shutil.copyfile(pictures[folder][place % len(pictures[folder])], target / split / folder.name / f"{place:06}.jpg")


def milliseconds(command: list[str]) -> float:
    done = subprocess.run(command, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "build" / "release" / "python")})
    found = re.search(r"([\d.]+) ms", done.stdout)
    if done.returncode != 0 or not found:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}")
    return float(found[1])


def arms_of(folder: Path) -> dict[str, Callable[[], float]]:
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(folder=folder))
    return {
        "C++ without LibTorch, from exec": lambda: milliseconds(
            [str(PROGRAMS / "photo_bench"), "--first-batch", str(folder), str(time.monotonic_ns())]),
        "headrace train, its data": lambda: milliseconds([str(PROGRAMS / "training_first_batch"), str(recipe), "data"]),
        WITH_NETWORK: lambda: milliseconds([str(PROGRAMS / "training_first_batch"), str(recipe), "training"]),
        "Python, from headrace.Loader(...)": lambda: milliseconds([sys.executable, "-c", PYTHON, f"folder:{folder}"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--photos", type=Path, default=ROOT / "photos")
    arguments = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory(prefix="headrace-first-batch-") as scratch:
        arms = {}
        for count in BARS_MS:
            copies(arguments.photos, Path(scratch) / str(count), count)
            for name, run in arms_of(Path(scratch) / str(count)).items():
                arms[count, name] = run
        found: dict[tuple[int, str], list[float]] = {arm: [] for arm in arms}
        for place in range(arguments.rounds + 1):
            for arm, run in arms.items():
                took = run()
                if place > 0:  # The first round warms the page cache.
                    found[arm].append(took)
    for (count, name), values in found.items():
        median = statistics.median(values)
        bar = None if name == WITH_NETWORK else BARS_MS[count]
        missed += bar is not None and median > bar
        print(f"{count:>6} files  {name:<34} {median:6.1f} ms [{min(values):.1f}, {max(values):.1f}]" + (f", bar {bar}" if bar else ""))
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
