#!/usr/bin/env python3
"""Is a new build as fast as an old one? Short jobs, each in processes of their own: old, new, and old again take turns.

demo        samples/s of `headrace train` on a part of Fashion-MNIST, with the changes that the demo keeps, after the first epoch
photos      photographs a second through the Loader (bench/load_photos' program), random resized crop to 128, 2 threads
idx         samples/s of Fashion-MNIST through the Loader (bench/peers' program), pad, crop, flip, normalise
pack        samples/s of decoded photographs from a raw pack, which the old build writes and both read
step        steps a second of headrace.Trainer from Python (two_builds/step_rate.py)
python-photos, python-idx, python-pack
            images a second of headrace.Loader in Python (two_builds/loader_rate.py): photographs with a random resized crop to 128,
            Fashion-MNIST, the raw pack; 2 threads
python-first
            first batches a second of such a Loader of photographs, made anew for each

--old and --new are checkouts, built (build/release) and set up (.venv). Each runs its own programs, package and examples. Where a
key has another name in the other build, its own schema (`headrace explain --schema`) tells which one it knows.

The ratio of a round is new over old of that round; "old again" over old, from the same rounds, shows what the machine alone does. Exit
status 3: a median is below 0.98, or the lower end of an interval below 0.95.

usage: bench/run.py two-builds --old DIR [--new DIR]
"""

import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import smaller_fashion  # noqa: E402

MEDIAN_WANTED, LOW_WANTED = 0.98, 0.95
OLD, NEW, AGAIN = "old", "new", "old again"
WARM_UP, LIMIT_S = 1, 120.0
SECONDS = 1.5  # That a loader or the step is measured for, and about so long training is.
TRAIN_IMAGES, TEST_IMAGES, EPOCHS_MAX = 4000, 500, 30
PHOTOS, PACKED = 1920, 600
EXTENSIONS = ("_engine", "_native")  # Of the package, the last that a build makes; _native in earlier versions.

# What the demo keeps, by the names that a build may have for it; the first that its schema knows is taken.
Spellings = tuple[tuple[str, Any], ...]
KEPT: tuple[Spellings, ...] = (
    (("model.fusion", "norm_relu_pool"),),
    (("model.memory_format", "channels_last"),),
    (("optimizer.fused", "true"), ("optimizer.implementation", "fused")),
    (("compute.allocator", "arena"),),
)


def keys_of(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted names of all keys of a JSON schema."""
    found = set()
    for name, below in schema.get("properties", {}).items():
        found |= {prefix + name} | keys_of(below, f"{prefix}{name}.")
    return found


def spelled(wanted: Spellings, keys: set[str]) -> tuple[str, str]:
    for key, value in wanted:
        if key in keys:
            return f"--{key}", value
    raise SystemExit(f"a build knows none of {', '.join(key for key, _ in wanted)}")


@dataclass(frozen=True)
class Build:
    """A checkout with its build."""

    root: Path

    def program(self, name: str) -> Path:
        return self.there(self.root / "build" / "release" / "bin" / name, "build it there")

    def python(self) -> Path:
        return self.there(self.root / ".venv" / "bin" / "python", "make setup there")

    def package(self) -> Path:
        folder = self.root / "build" / "release" / "python"
        if not any(next((folder / "headrace").glob(f"{name}.*.so"), None) for name in EXTENSIONS):
            raise SystemExit(f"no extension in {folder / 'headrace'}: build {' or '.join(EXTENSIONS)} there")
        return folder

    @staticmethod
    def there(path: Path, remedy: str) -> Path:
        if not path.exists():
            raise SystemExit(f"no {path}: {remedy}")
        return path

    def output(self, *command: str | Path) -> str:
        return harness.run(command, folder=self.root, limit_s=LIMIT_S).output

    def figures(self, *command: str | Path, **environment: str) -> dict[str, Any]:
        return harness.run_json(command, environment=environment, folder=self.root, limit_s=LIMIT_S)

    @cached_property
    def keys(self) -> set[str]:
        return keys_of(json.loads(self.output(self.program("headrace"), "explain", "--schema")))


def per_second(figures: dict[str, Any], what: str = "images") -> float:
    return figures[what] / figures["seconds"]


# The jobs: what one process measures, by the number of the round.


def demo(build: Build, data: Path, epochs: int, number: int) -> float:
    words = [word for wanted in KEPT for word in spelled(wanted, build.keys)]
    fast_bf16 = {"avx512_bf16", "amx_bf16"} & set(harness.processor()[1])
    with tempfile.TemporaryDirectory(prefix="headrace-two-builds-") as folder:
        document = build.output(build.program("headrace"), "train", build.root / "examples" / "fashion_mnist.toml", "--seed", str(number),
                                "--data.source", f"idx:{data}", "--train.epochs", str(epochs), "--train.precision", "bf16" if fast_bf16 else "fp32",
                                *words, "--out", f"{folder}/run", "--json", "-", "--quiet")
    # The first epoch warms up. All have as many samples, so that this is the rate over the others together.
    return statistics.harmonic_mean(epoch["samples_per_second"] for epoch in json.loads(document)["training"]["epochs"][1:])


def demo_epochs(old: Build, data: Path) -> int:
    """With the first one; so many that the old build trains for about SECONDS after it."""
    return 1 + max(1, min(EPOCHS_MAX, round(SECONDS * demo(old, data, 2, 1) / TRAIN_IMAGES)))


def photos(build: Build, folder: Path, number: int) -> float:
    return build.figures(build.program("photo_loader"), folder, "128", "64", "2", str(PHOTOS), str(number))["images_per_second"]


def native(build: Build, folder: Path, work: str, _number: int) -> float:
    return per_second(build.figures(build.program("native_loader"), folder, work, "2", str(SECONDS)))


def step(build: Build, _number: int) -> float:
    script = Path(__file__).resolve().parent / "step_rate.py"
    return per_second(build.figures(build.python(), script, str(SECONDS), PYTHONPATH=str(build.package())), "steps")


def python_loader(build: Build, source: str, size: int, *words: str) -> float:
    script = Path(__file__).resolve().parent / "loader_rate.py"
    found = build.figures(build.python(), script, source, str(size), str(SECONDS), *words, PYTHONPATH=str(build.package()))
    if found.get("copies"):  # Of first batches nobody counts.
        raise SystemExit(f"{build.root}: {found['copies']} batches were copied on their way to Python; wanted none")
    return per_second(found)


# What they read.


def write_pack(old: Build, files: list[Path], folder: Path) -> None:
    """Of PACKED of the photographs, decoded."""
    for path in files[:: max(1, len(files) // PACKED)][:PACKED]:
        target = folder / "some" / "train" / path.parent.name / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    old.output(old.program("headrace"), "pack", f"folder:{folder / 'some'}", folder / "small-raw.pack", "--form", "raw",
               "--short-side", "256", "--quiet")


def jobs_of(names: list[str], old: Build, photographs: Path, folder: Path) -> dict[str, Callable[[Build, int], float]]:
    """What of a build a job measures; its data are written first."""
    files = sorted((photographs / "train").glob("*/*.jpg"))
    if not files and {"photos", "pack", "python-photos", "python-pack", "python-first"} & set(names):
        raise SystemExit(f"no photographs in {photographs}/train: make setup JOB=photos, or give --jobs without photographs and packs")
    epochs = 2
    if "demo" in names:
        (folder / "part").mkdir()
        smaller_fashion.write(folder / "part", TRAIN_IMAGES, TEST_IMAGES)
        epochs = demo_epochs(old, folder / "part")
    if {"pack", "python-pack"} & set(names):
        write_pack(old, files, folder)
    (folder / "fashion").symlink_to(harness.FASHION_MNIST)
    jobs: dict[str, Callable[[Build, int], float]] = {
        "demo": lambda build, number: demo(build, folder / "part", epochs, number),
        "photos": lambda build, number: photos(build, photographs, number),
        "idx": lambda build, number: native(build, folder, "fashion", number),
        "pack": lambda build, number: native(build, folder, "decoded_cache", number),
        "step": step,
        "python-photos": lambda build, _: python_loader(build, f"folder:{photographs}", 128),
        "python-idx": lambda build, _: python_loader(build, f"idx:{folder / 'fashion'}", 0),
        "python-pack": lambda build, _: python_loader(build, f"pack:{folder / 'small-raw.pack'}", 128),
        "python-first": lambda build, _: python_loader(build, f"folder:{photographs}", 128, "first"),
    }
    return {name: jobs[name] for name in names}


def judge(ratios: list[float]) -> bool:
    return statistics.median(ratios) >= MEDIAN_WANTED and harness.interval(ratios)[0] >= LOW_WANTED


def row_of(name: str, found: dict[str, list[float]]) -> dict[str, Any]:
    new, again = harness.ratios(found[NEW], found[OLD]), harness.ratios(found[AGAIN], found[OLD])
    return {"job": name, "old_per_second": statistics.median(found[OLD]), "new_over_old": new, "old_over_old": again, "met": judge(new),
            "control_met": judge(again)}


def show(rows: list[dict[str, Any]]) -> None:
    print("\n" + harness.table(["", "old, a second", "new over old", "old again over old", ""], [
        [row["job"], f"{row['old_per_second']:,.0f}", harness.with_interval(row["new_over_old"], digits=3),
         harness.with_interval(row["old_over_old"], digits=3), "met" if row["met"] else "MISSED"] for row in rows]), flush=True)
    for row in rows:
        if not row["control_met"]:
            print(f"{row['job']}: old against old misses the bar as well: the machine was not quiet enough to judge by")


def main() -> int:
    names = ["demo", "photos", "idx", "pack", "step", "python-photos", "python-idx", "python-pack", "python-first"]
    parser = harness.parser(__doc__)
    parser.add_argument("--old", type=Path, required=True, help="checkout of the old build")
    parser.add_argument("--new", type=Path, default=harness.ROOT, help="checkout of the new build (this one)")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--jobs", nargs="+", choices=names, default=names)
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos")
    arguments = parser.parse_args()
    old, new = Build(arguments.old.resolve()), Build(arguments.new.resolve())
    bench = harness.Bench(__file__, arguments, f"old {old.root}, new {new.root}; {arguments.pairs} pairs after {WARM_UP} that is not counted; "
                          f"{harness.interval_remark(arguments.pairs)}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="headrace-two-builds-") as scratch:
        for name, job in jobs_of(arguments.jobs, old, arguments.photos.resolve(), Path(scratch)).items():
            arms = [harness.Arm(arm, partial(job, build)) for arm, build in ((OLD, old), (NEW, new), (AGAIN, old))]
            rows.append(row_of(name, bench.measure(arms, arguments.pairs, WARM_UP, name)))
    show(rows)
    return bench.end(rows, 0 if all(row["met"] for row in rows) else 3)


if __name__ == "__main__":
    sys.exit(main())
