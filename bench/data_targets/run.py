#!/usr/bin/env python3
"""The data pipeline against its numeric targets T-06 to T-09, all in one run: arms interleaved, medians with 95 % intervals.

T-06  samples a second through loading and preprocessing, and through training besides; three sizes; 5,000 wanted.
T-07  seconds of an epoch of photographs, page cache cold, warm, and a second epoch with a cache of decoded images, against a
      loop that loads for itself; 70 % less time wanted (3.33 times the rate), and the weaker reading 1.7 times.
T-08  time an image of one chain at 640 x 640: vector kernels against their scalar specification in the same program (the same
      bytes, checked), and against torchvision and Pillow; 60 % less time wanted (2.5 times the rate); 1 and 2 threads.
T-09  from asking for a batch to having it, half and 99 in 100 of the requests; under 10 ms wanted: a consumer that sleeps or
      computes for 50 ms a batch, and one that is faster than the producer.

The data are made from the photographs of tools/make_photos.py in the temporary folder, which must not be a file system in memory: the
page cache is emptied of them. What cannot pass on 2 cores is printed like the rest. Exit status 3: a target is missed.

usage: make bench NAME=data-targets        or: bench/run.py data-targets --rounds 10 --only T-08
"""

import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.io import ImageReadMode, decode_jpeg, read_file  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

import headrace as hr  # noqa: E402
import loader_speed  # noqa: E402
from small_net import small_net_step  # noqa: E402

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMALISED = {"flip_probability": 0.5, "mean": MEAN, "std": DEVIATION}
RESIZED = {"crop": "random_resized", **NORMALISED}
RATE_WANTED = 5_000
LESS_TIME, WEAKER = 1 / 0.3, 1.7
CHAIN_WANTED = 1 / 0.4
WAIT_MS_WANTED = 10
SIDE, CHAIN_IMAGES = 640, 32
PIPELINE_S, TRAINING_S, CHAIN_S = 0.3, 0.5, 0.25

Arms = dict[str, Callable[[], object]]


def ask(*words: object) -> dict:
    return harness.run_json([harness.PROGRAMS / "data_targets", *words])


# The data.


def square(path: Path, side: int, offset: float = 0.5) -> Image.Image:
    """The largest square of a photograph, at that share of its free length, as side x side pixels."""
    image = Image.open(path)
    image.draft("RGB", (side, side))
    width, height = image.size
    length = min(width, height)
    left, top = round(offset * (width - length)), round(offset * (height - length))
    return image.convert("RGB").resize((side, side), Image.Resampling.LANCZOS, (left, top, left + length, top + length))


def make_data(photos: Path, folder: Path) -> None:
    paths = sorted((photos / "train").glob("*/*.jpg"))
    if not paths:
        raise SystemExit(f"no photographs in {photos}/train: make setup JOB=photos")

    def place(name: str, path: Path, ending: str) -> Path:
        target = folder / name / "train" / path.parent.name / f"{path.stem}{ending}"
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    for path in paths[::6]:
        shutil.copyfile(path, place("photographs", path, ".jpg"))
    for path, offset in itertools.product(paths, (0.0, 1.0)):
        square(path, 32, offset).save(place("pixels32", path, f"-{offset:.0f}.png"), compress_level=1)
    for path in paths[::2]:
        square(path, 224).save(place("jpeg224", path, ".jpg"), quality=90)
    for path in paths[:: len(paths) // CHAIN_IMAGES][:CHAIN_IMAGES]:
        square(path, SIDE).save(place("jpeg640", path, ".jpg"), quality=90)
    harness.run([harness.PROGRAMS / "headrace", "pack", f"folder:{folder / 'pixels32'}", folder / "records.pack", "--form", "raw", "--quiet"])


def mean_bytes(folder: Path) -> float:
    return statistics.mean(path.stat().st_size for path in folder.rglob("*.jpg"))


# T-06.


def batches_for(loader: Iterable, seconds: float) -> Iterable:
    end = time.perf_counter() + seconds
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        yield batch
        if time.perf_counter() > end:
            return


def samples_per_second(loader: hr.Loader, seconds: float, step: Callable | None = None) -> float:
    begin, samples = time.perf_counter(), 0
    for batch in batches_for(loader, seconds):
        samples += len(batch[1])
        if step:
            step(batch)
    return samples / (time.perf_counter() - begin)


def rate_arms(folder: Path, threads: int) -> Arms:
    sizes = {
        "32 x 32 raw record": (f"pack:{folder / 'records.pack'}", 256, {"pad": 4, **NORMALISED}),
        "224 x 224 JPEG": (f"folder:{folder / 'jpeg224'}", 64, {"size": 224, **RESIZED}),
        f"{SIDE} x {SIDE} JPEG": (f"folder:{folder / 'jpeg640'}", 16, {"size": SIDE, **RESIZED}),
    }
    arms: Arms = {}
    for name, (source, batch, transform) in sizes.items():
        loader = hr.Loader(source, batch_size=batch, num_workers=threads, seed=1, index="none", transform=transform)
        arms[f"{name}, pipeline only"] = partial(samples_per_second, loader, PIPELINE_S)
        arms[f"{name}, with training"] = partial(samples_per_second, loader, TRAINING_S, small_net_step())
    return arms


# T-07.


def load_arms(folder: Path, threads: int) -> Arms:
    photographs = folder / "photographs"
    ways = [("sequential", 0, "cold"), ("sequential", 0, "warm")]
    ways += [("loader", count, state) for state in ("cold", "warm", "cached") for count in sorted({1, threads})]
    return {f"{way} {count} {state}": partial(ask, "load", photographs, way, count, state) for way, count, state in ways}


# T-08.


class Images(Dataset):
    """torchvision's chain on tensors: of files, or of decoded images in memory."""

    def __init__(self, paths: list[Path], in_memory: bool) -> None:
        self.paths = paths
        self.pixels = [self.decoded(path) for path in paths] if in_memory else None
        self.transform = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(),
                                     v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])

    @staticmethod
    def decoded(path: Path) -> torch.Tensor:
        return decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(self.decoded(self.paths[index]) if self.pixels is None else self.pixels[index]), 0


class PillowImages(Images):
    def __init__(self, paths: list[Path]) -> None:
        super().__init__(paths, in_memory=False)
        self.transform = transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(),
                                             transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])

    @staticmethod
    def decoded(path: Path) -> Image.Image:
        return Image.open(path).convert("RGB")


def chain_arms(folder: Path, threads: list[int]) -> Arms:
    data = folder / "jpeg640"
    paths = sorted(data.rglob("*.jpg"))
    arms: Arms = {}
    for count in threads:
        for origin in ("files", "pixels"):
            for kernels in ("best", "plain"):
                arms[f"{kernels} {origin} {count}"] = partial(ask, "chain", data, kernels, count, origin, SIDE, CHAIN_S)
        rivals = {"torchvision files": Images(paths, False), "torchvision pixels": Images(paths, True),
                  "Pillow files": PillowImages(paths)}
        for name, images in rivals.items():
            # One thread is the loop's own; two are worker processes, which live through all rounds.
            workers = 0 if count == 1 else count
            loader = DataLoader(images, 8, num_workers=workers, persistent_workers=workers > 0)
            arms[f"{name} {count}"] = partial(loader_speed.samples_per_second, loader)
    return arms


# T-09.


def wait_arms(photos: Path, threads: int) -> Arms:
    return {consumer: partial(ask, "wait", photos, consumer, 37, threads) for consumer in ("sleeps", "computes", "none")}


# What came of it.


class Table:
    def __init__(self) -> None:
        self.missed: list[str] = []

    def judge(self, target: str, name: str, met: bool, text: str, remark: str = "") -> None:
        if not met:
            self.missed.append(f"{target} {name}")
        print(f"{target}  {name:<56} {text:<60} {'met' if met else 'MISSED'}{f' ({remark})' if remark else ''}")


def show_rates(found: dict[str, list], table: Table) -> None:
    print(f"\nT-06: samples/s, at least {RATE_WANTED:,}; a small net: 2 convolutions with stride 4, hr.Trainer")
    for name, values in found.items():
        rate = statistics.median(values)
        remark = "" if rate >= RATE_WANTED else f"wants {RATE_WANTED / rate:.1f} times as much of these cores"
        table.judge("T-06", name, rate >= RATE_WANTED, harness.with_interval(values, "samples/s"), remark)


def check_no_decoding(results: list[dict]) -> None:
    if any(result["decoded"] for result in results):
        raise SystemExit("the cache did not hold all images: some were decoded again; more free memory is wanted")


def show_loads(found: dict[str, list], threads: int, table: Table) -> None:
    print(f"\nT-07: seconds of an epoch against a loop that loads for itself; {LESS_TIME:.2f} times the rate is 70 % less time, "
          f"the weaker reading is {WEAKER}")
    for name in ("sequential 0 cold", "loader 1 cold", f"loader {threads} cold"):
        resident = max(result["resident"] for result in found[name])
        if resident > 0.05:
            print(f"      {name}: {resident:.0%} of the pages stayed in the page cache, so that cold was not cold")
    for state, baseline in (("cold", "cold"), ("warm", "warm"), ("cached", "warm")):
        if state == "cached":
            check_no_decoding([result for count in {1, threads} for result in found[f"loader {count} cached"]])
        naive = [result["seconds"] for result in found[f"sequential 0 {baseline}"]]
        print(f"      {state}: the loop that loads for itself {harness.with_interval(naive, 's', 3)}")
        for count in sorted({1, threads}):
            ours = [result["seconds"] for result in found[f"loader {count} {state}"]]
            gain = harness.ratios(naive, ours)
            median = statistics.median(gain)
            text = f"{harness.with_interval(ours, 's', 3)}, {harness.with_interval(gain, 'times', 2)}"
            causes = ["less work an image", *(["no decoding"] if state == "cached" else []), *([f"{count} cores"] if count > 1 else [])]
            remark = "by " + ", ".join(causes)
            for reading, wanted in (("70 % less time", LESS_TIME), ("1.7 times", WEAKER)):
                table.judge("T-07", f"{state}, {count} thread{'s'[:count > 1]}: {reading}", median >= wanted, text, remark)


def show_chains(found: dict[str, list], threads: list[int], table: Table) -> None:
    print(f"\nT-08 and AUG-16: images/s of random resized crop to {SIDE}, flip, normalise; {CHAIN_WANTED} times the rate is 60 % less time")
    speeds = {name: [v["images"] / v["seconds"] if isinstance(v, dict) else v for v in values] for name, values in found.items()}
    for count, origin in itertools.product(threads, ("files", "pixels")):
        if origin == "pixels":
            check_no_decoding([result for kernels in ("best", "plain") for result in found[f"{kernels} pixels {count}"]])
        ours = speeds[f"best {origin} {count}"]
        sets = {result["set"] for result in found[f"best {origin} {count}"]}
        hashes = {result["hash"] for kernels in ("best", "plain") for result in found[f"{kernels} {origin} {count}"]}
        name = f"from {'JPEG files' if origin == 'files' else 'decoded pixels'}, {count} thread{'s'[:count > 1]}"
        print(f"      {name}: {'/'.join(sets)} {harness.with_interval(ours, 'images/s')}, {1000 / statistics.median(ours):.2f} ms each")
        table.judge("T-08", f"{name}: equal output", len(hashes) == 1, f"{len(hashes)} different hash{'es'[:2 * (len(hashes) > 1)]} of all batches")
        rivals = {"scalar specification": f"plain {origin} {count}", "torchvision": f"torchvision {origin} {count}"}
        if origin == "files":
            rivals["Pillow"] = f"Pillow files {count}"
        for rival, arm in rivals.items():
            gain = harness.ratios(ours, speeds[arm])
            table.judge("T-08", f"{name}: {rival}", statistics.median(gain) >= CHAIN_WANTED,
                        f"{harness.with_interval(speeds[arm], 'images/s')}, {harness.with_interval(gain, 'times', 2)}")
    for kernels, origin in itertools.product(("best", "plain"), ("files", "pixels")):
        gain = harness.ratios(speeds[f"{kernels} {origin} {threads[-1]}"], speeds[f"{kernels} {origin} {threads[0]}"])
        print(f"      from {threads[0]} to {threads[-1]} threads, {kernels} kernels, {origin}: {harness.with_interval(gain, 'times', 2)}")


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def show_waits(found: dict[str, list], table: Table) -> None:
    print(f"\nT-09: ms from asking for a batch of {found['none'][0]['batch_size']} at 224 x 224 to having it, under {WAIT_MS_WANTED}")
    titles = {"sleeps": "consumer sleeps 50 ms a batch", "computes": "consumer computes 50 ms a batch",
              "none": "consumer faster than the producer"}
    for consumer, title in titles.items():
        inside = [wait for result in found[consumer] for wait in result["waits_ms"]]
        everything = inside + [wait for result in found[consumer] for wait in result["firsts_ms"]]
        for what, waits in (("within an epoch", inside), ("with first batches", everything)):
            for share in (0.5, 0.99):
                each = [percentile(result["waits_ms"] + (result["firsts_ms"] if waits is everything else []), share)
                        for result in found[consumer]]
                value = percentile(waits, share)
                first = statistics.median(wait for result in found[consumer] for wait in result["firsts_ms"])
                remark = f"{first:.1f} ms to an epoch's first batch" if value >= WAIT_MS_WANTED else ""
                low, high = harness.interval(each)
                table.judge("T-09", f"{title}, {what}: p{share * 100:.0f}", value < WAIT_MS_WANTED,
                            f"{value:.3f} ms of {len(waits)} requests; rounds [{low:.3f}, {high:.3f}]", remark)


def check_same_result(folder: Path) -> None:
    hashes = ask("equal", folder / "photographs")
    if len(set(hashes.values())) != 1:
        raise SystemExit(f"T-07: the ways give different batches: {hashes}")
    print(f"T-07: the loop that loads for itself, the Loader, and it with its cache give the same bytes: {hashes['loader']}")


def main() -> int:
    parser = harness.parser(__doc__, rounds=10)
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", choices=("T-06", "T-07", "T-08", "T-09"), action="append")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Training and loading share the cores.
    bench = harness.Bench(__file__, arguments, f"num_workers {arguments.threads}, torchvision {torchvision.__version__}; release build; "
                          f"{arguments.rounds} rounds after one that is not counted; {harness.interval_remark(arguments.rounds)}")
    threads = sorted({1, arguments.threads})
    with tempfile.TemporaryDirectory(prefix="headrace-data-targets-") as scratch:
        folder = Path(scratch)
        make_data(arguments.photos, folder)
        for name in ("photographs", "jpeg224", "jpeg640"):
            print(f"{name}: {len(list((folder / name).rglob('*.jpg')))} files of {mean_bytes(folder / name) / 1000:.1f} KB")
        makers = {"T-06": lambda: rate_arms(folder, arguments.threads), "T-07": lambda: load_arms(folder, arguments.threads),
                  "T-08": lambda: chain_arms(folder, threads), "T-09": lambda: wait_arms(arguments.photos.resolve(), arguments.threads)}
        wanted = [target for target in makers if arguments.only is None or target in arguments.only]
        if "T-07" in wanted:
            check_same_result(folder)
        arms = [harness.Arm((target, name), lambda _, work=work: work()) for target in wanted for name, work in makers[target]().items()]
        found = bench.measure(arms, arguments.rounds, warm_up=1)
        of_target = {target: {name: values for (owner, name), values in found.items() if owner == target} for target in wanted}
    table = Table()
    shows = {"T-06": lambda results: show_rates(results, table),
             "T-07": lambda results: show_loads(results, arguments.threads, table),
             "T-08": lambda results: show_chains(results, threads, table), "T-09": lambda results: show_waits(results, table)}
    for target, results in of_target.items():
        shows[target](results)
    print(f"\n{len(table.missed)} missed", flush=True)
    return bench.end({"missed": table.missed}, 3 if table.missed else 0)


if __name__ == "__main__":
    sys.exit(main())
