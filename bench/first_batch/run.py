#!/usr/bin/env python3
"""How long does the first batch of photographs take in a process that has just begun? Page cache warm, 64 images of 224 x 224.

Three ways: a program that links only the part without LibTorch, from its exec; what `headrace train` does with its data, from
the first look at the folder (and once more with its network, for which LibTorch sets itself up: without a bar); Python after `import headrace`, from hr.Loader(...). Folders of 3,000 and of 20,000 copies of the photographs of
`make setup JOB=photos`, written for this and removed. Exit status 3: a bar is missed.

usage: make bench NAME=first-batch
"""

import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

BARS_MS = {3_000: 60, 20_000: 150}
WITH_NETWORK = "headrace train, with its network"
TRANSFORM = {"size": 224, "crop": "random_resized", "flip_probability": 0.5, "mean": [0.485, 0.456, 0.406],
             "std": [0.229, 0.224, 0.225]}
PYTHON = f"""
import sys, time
import headrace
begin = time.perf_counter()
batch = next(iter(headrace.Loader(sys.argv[1], batch_size=64, num_workers=2, seed=1, transform={TRANSFORM})))
print(f"{{(time.perf_counter() - begin) * 1000:.2f}} ms to {{len(batch[1])}} samples")
"""
RECIPE = """
[data]
source = "folder:{folder}"
batch_size = 64
num_workers = 2
[data.transform]
size = 224
crop = "random_resized"
flip_probability = 0.5
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
[model]
name = "small_cnn"
num_classes = 12
"""


def copies(photos: Path, target: Path, count: int) -> None:
    """A folder with `count` training images of all classes, each a file of its own."""
    classes = sorted(path for path in (photos / "train").iterdir() if path.is_dir())
    images = {folder: sorted(folder.iterdir()) for folder in classes}
    for split, wanted in (("train", count), ("val", len(classes))):
        for folder in classes:
            (target / split / folder.name).mkdir(parents=True)
        for i in range(wanted):
            folder = classes[i % len(classes)]
            place = i // len(classes)
            shutil.copyfile(images[folder][place % len(images[folder])], target / split / folder.name / f"{place:06}.jpg")


def milliseconds(command: list[str]) -> float:
    done = harness.run(command, environment=harness.python_path())
    found = re.search(r"([\d.]+) ms", done.output)
    if not found:
        raise harness.ProgramFailed(command, "printed no milliseconds", done.output + done.errors)
    return float(found[1])


def arms_of(folder: Path) -> dict[str, Callable[[int], float]]:
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(folder=folder))
    return {
        "C++ without LibTorch, from exec": lambda _: milliseconds(
            [str(harness.PROGRAMS / "photo_bench"), "--first-batch", str(folder), str(time.monotonic_ns())]),
        "headrace train, its data": lambda _: milliseconds([str(harness.PROGRAMS / "training_first_batch"), str(recipe), "data"]),
        WITH_NETWORK: lambda _: milliseconds([str(harness.PROGRAMS / "training_first_batch"), str(recipe), "training"]),
        "Python, from headrace.Loader(...)": lambda _: milliseconds([sys.executable, "-c", PYTHON, f"folder:{folder}"]),
    }


def main() -> int:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds; page cache warm")
    with tempfile.TemporaryDirectory(prefix="headrace-first-batch-") as scratch:
        arms = []
        for count in BARS_MS:
            copies(arguments.photos, Path(scratch) / str(count), count)
            arms += [harness.Arm((count, name), work) for name, work in arms_of(Path(scratch) / str(count)).items()]
        found = bench.measure(arms, arguments.rounds, warm_up=1)  # Which fills the page cache.
    rows, missed = [], []
    for (count, name), values in found.items():
        bar = None if name == WITH_NETWORK else BARS_MS[count]
        if bar is not None and statistics.median(values) > bar:
            missed.append(f"{count} files, {name}")
        summary = harness.Summary.of(values)
        rows.append([f"{count} files  {name}", harness.with_interval(values, "ms", 1),
                     f"{summary.quartile_low:.1f} - {summary.quartile_high:.1f}", f"{summary.least:.1f} - {summary.most:.1f}",
                     f"{bar or 'none'}"])
    print(harness.interval_remark(arguments.rounds) + "\n" + harness.table(["", "first batch", "quartiles", "range", "bar"], rows))
    return bench.end({"missed": missed}, 3 if missed else 0)


if __name__ == "__main__":
    sys.exit(main())
