#!/usr/bin/env python3
"""Samples a second in a Python loop in which nothing is trained.

photographs: DataLoader over torchvision's ImageFolder against headrace.Loader, the line that a script changes. Random resized
crop, flip, normalise, batches of 64. fashion: headrace.Loader from Python against the same Loader without Python
(bench/peers/native_loader.cpp), pad 2, crop, flip, normalise, batches of 256; and what a batch costs the loop beyond
loading it, with images of one pixel. Rounds are interleaved; the first, which fills the page cache and starts workers, is
not counted.

usage: make bench NAME=python-loader        or: bench/run.py python-loader --work fashion
"""

import argparse
import itertools
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402

import headrace as hr  # noqa: E402
from loader_speed import samples_per_second  # noqa: E402

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FASHION_EPOCHS = 10  # Of 60,000 samples, in a round.
ONE_PIXEL_BATCHES = 20_000


def their_loader(folder: Path, size: int, workers: int):
    transform = transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(),
                                    transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
    dataset = datasets.ImageFolder(folder / "train", transform)
    return torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers)


def our_loader(folder: Path, size: int, threads: int):
    return hr.Loader(f"folder:{folder}", batch_size=64, num_workers=threads, transform={
        "size": size, "crop": "random_resized", "flip_probability": 0.5, "mean": MEAN, "std": DEVIATION})


def compare_photographs(bench: harness.Bench, arguments: argparse.Namespace) -> dict[str, float]:
    workers = arguments.workers
    their, our = their_loader(arguments.data, arguments.size, workers), our_loader(arguments.data, arguments.size, workers)
    found = bench.measure([harness.Arm(f"DataLoader, {workers} workers", lambda _: samples_per_second(their)),
                           harness.Arm(f"hr.Loader, {workers} threads", lambda _: samples_per_second(our))], arguments.rounds, warm_up=1)
    theirs, ours = map(statistics.median, found.values())
    print(harness.arms_table(found, "samples/s"))
    print(f"{ours / theirs:.2f} times the DataLoader (ratio of medians; wanted at least 2)", flush=True)
    return {"times the DataLoader": ours / theirs}


def without_python(folder: Path, threads: int) -> float:
    result = harness.run_json([harness.PROGRAMS / "native_loader", folder, "fashion", threads, "0.4"])
    return result["images"] / result["seconds"]


def with_python(loader: hr.Loader) -> float:
    return samples_per_second(itertools.chain.from_iterable(itertools.repeat(loader, FASHION_EPOCHS)))


def one_pixel_loader(folder: Path) -> hr.Loader:
    """Its batches hold one sample of one pixel; the loop's own thread makes them."""
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, ONE_PIXEL_BATCHES, 1, 1) + bytes(ONE_PIXEL_BATCHES))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, ONE_PIXEL_BATCHES) + bytes(ONE_PIXEL_BATCHES))
    return hr.Loader(f"idx:{folder}", batch_size=1, num_workers=0, shuffle=False)


def microseconds_a_batch(loader: hr.Loader) -> float:
    begin = time.perf_counter()
    for _images, _labels in loader:
        pass
    return 1e6 * (time.perf_counter() - begin) / len(loader)


def compare_fashion(bench: harness.Bench, arguments: argparse.Namespace) -> dict[str, float]:
    threads = arguments.workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fashion").symlink_to(harness.FASHION_MNIST)
        loader = hr.Loader(f"idx:{harness.FASHION_MNIST}", batch_size=256, num_workers=threads, last_batch="drop", transform={
            "pad": 2, "flip_probability": 0.5, "mean": [0.2860], "std": [0.3530]})
        found = bench.measure([harness.Arm(f"Loader in C++, {threads} threads", lambda _: without_python(folder, threads)),
                               harness.Arm(f"hr.Loader, {threads} threads", lambda _: with_python(loader))], arguments.rounds, warm_up=1)
        native, python = map(statistics.median, found.values())
        print(harness.arms_table(found, "samples/s"))
        print(f"from Python {python / native:.2f} of the speed without (ratio of medians); {python / 1e6:.2f} million samples/s "
              "(wanted at least 1.5)")
        one_pixel = one_pixel_loader(folder)
        times = bench.measure([harness.Arm("a batch of one pixel", lambda _: microseconds_a_batch(one_pixel))], arguments.rounds, warm_up=1)
        print(harness.arms_table(times, "us", 2), flush=True)
    return {"of the speed without Python": python / native}


def main() -> int:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--work", choices=("photographs", "fashion"), default="photographs")
    parser.add_argument("--data", type=Path, default=harness.ROOT / "photos")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="the DataLoader's processes, our threads")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.work}; {harness.interval_remark(arguments.rounds)}")
    return bench.end({"photographs": compare_photographs, "fashion": compare_fashion}[arguments.work](bench, arguments))


if __name__ == "__main__":
    sys.exit(main())
