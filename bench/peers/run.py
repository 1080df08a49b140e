#!/usr/bin/env python3
"""headrace.Loader against every loader that people use for this, in one run: JPEG photographs to normalised batches, a cache
of decoded images, Fashion-MNIST. The yardstick is libjpeg-turbo that reads and decodes whole files and does nothing else.

usage: make bench NAME=peers        or: bench/run.py peers --rounds 1 --works train --rivals tf_data dali_cpu

Each round runs every arm of a work once, in its own process, in a drawn order. A rival that is not installed or cannot do a
work is listed with the reason. Ratios are taken within a round; the table has medians and their spread. Exit status 3: a bar is
missed.
"""

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

HERE = Path(__file__).resolve().parent
OURS, NATIVE, YARDSTICK = "headrace, Python", "headrace, C++", "libjpeg-turbo, decode alone"
THREE = "headrace, Python, 3 batches"
LZ4, MEMORY = "headrace, Python, lz4 pack", "headrace, Python, in memory"
TRAIN, VALIDATION, CACHE, CACHE_UINT8, FASHION = "train", "validation", "decoded_cache", "decoded_cache_uint8", "fashion"
TITLES = {TRAIN: "random resized crop to 224, flip, normalise, float32 NCHW, batch 64",
          VALIDATION: "short side 256, center crop 224, normalise",
          CACHE: "the same as train from images of a short side of 256 that are decoded already; ours: a raw pack",
          CACHE_UINT8: "the same without normalising, uint8 NCHW",
          FASHION: "Fashion-MNIST: pad 2, crop, flip, normalise, batch 256"}


@dataclass(frozen=True)
class Rival:
    name: str
    script: str
    works: tuple[str, ...]
    variant: str = ""


RIVALS = [
    Rival("tf.data, not antialiased", "tf_data", (TRAIN, VALIDATION, CACHE, CACHE_UINT8, FASHION), "plain"),
    Rival("tf.data", "tf_data", (TRAIN,)),
    Rival("DALI CPU", "dali_cpu", (TRAIN, VALIDATION)),
    Rival("DataLoader, OpenCV, not antialiased", "opencv_albumentations",
          (TRAIN, VALIDATION, CACHE, CACHE_UINT8)),
    Rival("DataLoader, torchvision tensors", "torchvision_tensor", (TRAIN, VALIDATION)),
    Rival("DataLoader, torchvision Pillow", "torchvision_pil", (TRAIN, FASHION)),
    Rival("FFCV", "ffcv_beton", (TRAIN, CACHE, CACHE_UINT8, FASHION)),
    Rival("Grain, OpenCV, not antialiased", "grain_threads", (TRAIN,)),
    Rival("SPDL", "spdl_threads", (TRAIN,)),
    Rival("TurboLoader", "turboloader_tar", (TRAIN,)),
    Rival("WebDataset", "webdataset_tar", (TRAIN,)),
    Rival("MosaicML streaming", "mosaic_mds", (TRAIN,)),
    Rival("torch by hand, whole batches", "torch_by_hand", (FASHION,)),
]


@dataclass(frozen=True)
class Arm:
    """One line of a table."""
    work: str
    name: str
    threads: int
    command: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} threads"

    @property
    def is_rival(self) -> bool:
        return self.name not in (OURS, THREE, LZ4, MEMORY, NATIVE, YARDSTICK)


def arms_of(arguments: argparse.Namespace, python: Path, folder: Path) -> list[Arm]:
    def script(name: str, work: str, threads: int, variant: str = "") -> tuple[str, ...]:
        return (str(python), str(HERE / f"{name}.py"), "--folder", str(folder), "--work", work, "--threads", str(threads),
                "--seconds", str(arguments.seconds), "--variant", variant)

    def yardstick(threads: int) -> tuple[str, ...]:
        return (str(harness.PROGRAMS / "full_decode"), str(folder), str(threads), str(arguments.seconds))

    arms = []
    for work in arguments.works:
        threads = arguments.threads
        if work in (TRAIN, VALIDATION):
            arms.append(Arm(work, YARDSTICK, threads, yardstick(threads)))
        arms.append(Arm(work, OURS, threads, script("headrace_loader", work, threads)))
        arms.append(Arm(work, NATIVE, threads, (str(harness.PROGRAMS / "native_loader"), str(folder), work, str(threads),
                                                str(arguments.seconds))))
        arms += [Arm(work, rival.name, threads, script(rival.script, work, threads, rival.variant)) for rival in RIVALS
                 if work in rival.works and (arguments.rivals is None or rival.script in arguments.rivals)]
        if work == TRAIN:
            arms.append(Arm(work, THREE, threads, script("headrace_loader", work, threads, "three_batches")))
        if work == CACHE:
            arms.append(Arm(work, LZ4, threads, script("headrace_loader", work, threads, "lz4")))
            arms.append(Arm(work, MEMORY, threads, script("headrace_loader", work, threads, "in_memory")))
        if work == TRAIN and threads != 1:
            arms.append(Arm(work, YARDSTICK, 1, yardstick(1)))
            arms.append(Arm(work, OURS, 1, script("headrace_loader", work, 1)))
    return arms


def run(arm: Arm, limit_s: float) -> dict:
    """Its figures; one that cannot run is unavailable, and the others go on."""
    try:
        return harness.run_json(arm.command, environment={"PEER_STARTED_NS": str(time.monotonic_ns())}, limit_s=limit_s)
    except harness.ProgramFailed as failure:
        return {"unavailable": failure.short}


def prepared_folder(python: Path, photos: Path) -> Path:
    """Made once for these photographs and scripts; a folder of that name is whole."""
    with_forms = ("tf_data", "ffcv_beton", "turboloader_tar", "webdataset_tar", "mosaic_mds")
    writers = [HERE / "prepare.py", *(HERE / f"{name}.py" for name in with_forms)]
    key = hashlib.sha256(str(photos.resolve()).encode())
    for path in [photos / "about.json", *writers]:
        key.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    folder = cache / f"peers-data-{key.hexdigest()[:16]}"
    if folder.exists():
        return folder
    print(f"writing the rivals' forms of the photographs to {folder} (2.5 GB, a minute or two)", flush=True)
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    harness.run([python, HERE / "prepare.py", photos.absolute(), partial])
    for script in writers[1:]:
        try:
            harness.run([python, script, "--folder", partial, "--prepare"])
        except harness.ProgramFailed as failure:
            print(f"{script.stem} could not write its form of the data: {failure.short}", flush=True)
    partial.rename(folder)
    return folder


def write_packs(folder: Path) -> None:
    """Of the small photographs, decoded; a file of that name is whole."""
    train = folder / "small_train" / "train"
    train.parent.mkdir(exist_ok=True)
    if not train.exists():
        train.symlink_to("../small/train")
    for form in ("raw", "lz4"):
        pack = folder / f"small-{form}.pack"
        if not pack.exists():
            print(f"writing {pack}", flush=True)
            harness.run([harness.PROGRAMS / "headrace", "pack", train.parent, pack, "--form", form, "--quiet"])


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):10,.3g} [{min(values):,.3g}, {max(values):,.3g}]"


def speeds(results: dict[Arm, list[dict]], arm: Arm) -> list[float]:
    return [result["images"] / result["seconds"] for result in results.get(arm, []) if "images" in result]


def show_table(work: str, threads: int, results: dict[Arm, list[dict]]) -> None:
    print(f"\n{work}: {TITLES[work]}")
    print(f"{'':<38} {'samples/s':>12} {'spread':>16} {'CPU ms each':>12} {'first batch s':>14} {'MB':>6}  version")
    for arm in sorted((arm for arm in results if arm.work == work),
                      key=lambda arm: (arm.threads != threads, -statistics.median(speeds(results, arm) or [0]))):
        name = arm.name if arm.threads == threads else f"{arm.name}, {arm.threads} thread"
        done = [result for result in results[arm] if "images" in result]
        if not done:
            print(f"{name:<38} unavailable: {results[arm][0]['unavailable']}")
            continue
        values = speeds(results, arm)
        cpu = statistics.median(1000 * result["cpu_seconds"] / result["images"] for result in done)
        first = statistics.median(result["first_batch_s"] for result in done)
        megabytes = statistics.median(result["rss_bytes"] for result in done) / 1e6
        spread = f"{min(values):,.0f}-{max(values):,.0f}"
        print(f"{name:<38} {statistics.median(values):12,.0f} {spread:>16} {cpu:12.4f} {first:14.3f} {megabytes:6.0f}  "
              f"{done[0]['version']}")


class Verdicts:
    """The bars, each from values of the same rounds."""

    def __init__(self, results: dict[Arm, list[dict]], threads: int):
        self.results, self.threads = results, threads
        self.rows: list[dict] = []

    def runs(self, work: str, name: str, threads: int | None = None) -> list[dict]:
        for arm, runs in self.results.items():
            if (arm.work, arm.name, arm.threads) == (work, name, threads or self.threads):
                return runs
        return []

    def per_round(self, work: str, name: str, threads: int | None = None, figure=lambda run: run["images"] / run["seconds"]):
        return [figure(run) if "images" in run else None for run in self.runs(work, name, threads)]

    def best_rival(self, work: str) -> str | None:
        rivals = [arm for arm in self.results if arm.work == work and arm.is_rival and speeds(self.results, arm)]
        return max(rivals, key=lambda arm: statistics.median(speeds(self.results, arm))).name if rivals else None

    def add(self, what: str, values: list[float | None], bar: float, at_least: bool = True) -> None:
        found = [value for value in values if value is not None]
        row = {"what": what, "bar": bar, "at_least": at_least, "values": found}
        if found:
            median = statistics.median(found)
            row |= {"median": median, "met": median >= bar if at_least else median <= bar}
        self.rows.append(row)

    def add_ratio(self, what: str, over: list, under: list, bar: float, at_least: bool = True) -> None:
        self.add(what, [a / b if a is not None and b else None for a, b in zip(over, under)], bar, at_least)

    def judge_photographs(self) -> None:
        def cpu(run):
            return run["cpu_seconds"] / run["images"]

        ours, yardstick = self.per_round(TRAIN, OURS), self.per_round(TRAIN, YARDSTICK)
        self.add_ratio("train: ours / full decode alone", ours, yardstick, 1.25)
        if best := self.best_rival(TRAIN):
            self.add_ratio(f"train: ours / best rival ({best})", ours, self.per_round(TRAIN, best), 2.5)
        self.add_ratio("train: CPU an image, ours / full decode alone", self.per_round(TRAIN, OURS, figure=cpu),
                       self.per_round(TRAIN, YARDSTICK, figure=cpu), 0.85, at_least=False)
        if self.runs(TRAIN, OURS, 1) and self.threads != 1:
            gains = [[a / b if a and b else None for a, b in zip(self.per_round(TRAIN, name), self.per_round(TRAIN, name, 1))]
                     for name in (OURS, YARDSTICK)]
            self.add_ratio(f"train: gain from 1 to {self.threads} threads, ours / full decode alone", *gains, 0.98)
        self.add("first batch, C++ from exec, ms", self.per_round(TRAIN, NATIVE, figure=lambda run: 1000 * run["first_batch_s"]),
                 60, at_least=False)
        self.add("first batch, Python from the Loader's construction, ms",
                 self.per_round(TRAIN, OURS, figure=lambda run: 1000 * run["first_batch_s"]), 60, at_least=False)
        self.add("train: memory above the process before, with 3 float batches, MB",
                 self.per_round(TRAIN, THREE, figure=lambda run: run["rss_bytes"] / 1e6), 150, at_least=False)

    def judge(self) -> list[dict]:
        if self.runs(TRAIN, OURS):
            self.judge_photographs()
        if self.runs(VALIDATION, OURS):
            self.add_ratio("validation: ours / full decode alone", self.per_round(VALIDATION, OURS),
                           self.per_round(VALIDATION, YARDSTICK), 1.0)
        if self.runs(CACHE, "FFCV"):
            ffcv = self.per_round(CACHE, "FFCV")
            self.add_ratio("decoded cache, float32: ours / FFCV raw", self.per_round(CACHE, OURS), ffcv, 4)
            if self.runs(CACHE_UINT8, OURS):
                self.add_ratio("decoded cache, uint8: ours / FFCV raw, float32", self.per_round(CACHE_UINT8, OURS), ffcv, 6)
        if self.runs(FASHION, OURS):
            self.add("Fashion-MNIST, million samples/s", [value and value / 1e6 for value in self.per_round(FASHION, OURS)], 1.5)
        return self.rows


def show_verdicts(rows: list[dict]) -> None:
    print("\nbars (medians of the rounds' values, their spread)")
    for row in rows:
        bar = f"wanted at {'least' if row['at_least'] else 'most'} {row['bar']:g}"
        if row["values"]:
            print(f"{'met   ' if row['met'] else 'MISSED'} {row['what']:<70} {middle(row['values'])}, {bar}")
        else:
            print(f"open   {row['what']:<70} not measured, {bar}")


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = harness.parser(__doc__, rounds=3)
    parser.set_defaults(json=harness.ROOT / "build" / "bench-peers.json")
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="the folder of make setup JOB=photos")
    parser.add_argument("--works", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument("--rivals", nargs="*", choices=sorted({rival.script for rival in RIVALS}), help="only these")
    parser.add_argument("--threads", type=int, default=2, help="threads or worker processes of every arm")
    parser.add_argument("--seconds", type=float, default=2.0, help="that an arm is measured for in a round")
    parser.add_argument("--limit", type=float, default=90, help="seconds after which an arm is given up")
    return parser.parse_args(words)


def main() -> int:
    arguments = parsed()
    environment = harness.run([HERE / "setup.sh"]).output.strip()
    python = Path(environment) / "bin" / "python"
    folder = prepared_folder(python, arguments.photos)
    if CACHE in arguments.works or CACHE_UINT8 in arguments.works:
        write_packs(folder)
    # Every arm has as many cores as threads; libraries with pools of their own cannot take more.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:max(2, arguments.threads)])
    arms = arms_of(arguments, python, folder)
    bench = harness.Bench(__file__, arguments, f"{arguments.threads} threads; {len(arms)} arms, {arguments.rounds} rounds of {arguments.seconds:g} s")
    results: dict[Arm, list[dict]] = {}
    for work in arguments.works:
        results |= bench.measure([harness.Arm(arm, lambda _, arm=arm: run(arm, arguments.limit)) for arm in arms if arm.work == work],
                                 arguments.rounds, title=work)
        show_table(work, arguments.threads, results)
    verdicts = Verdicts(results, arguments.threads).judge()
    show_verdicts(verdicts)
    return bench.end({"bars": verdicts}, 0 if all(row.get("met", True) for row in verdicts) else 3)


if __name__ == "__main__":
    sys.exit(main())
