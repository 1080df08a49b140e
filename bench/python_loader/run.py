#!/usr/bin/env python3
"""Samples a second in a Python loop in which nothing is trained.

photographs: DataLoader over torchvision's ImageFolder against headrace.Loader, the line that a script changes. Random resized
crop, flip, normalise, batches of 64. fashion: headrace.Loader from Python against the same Loader without Python
(bench/peers/native_loader.cpp), pad 2, crop, flip, normalise, batches of 256; and what a batch costs the loop beyond
loading it, with pictures of one pixel. Rounds are interleaved; the first, which fills the page cache and starts workers, is
not counted.

usage: make bench-python-loader        or: bench/python_loader/run.py --work fashion
"""

import argparse
import itertools
import json
import struct
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "build" / "release" / "python"), str(ROOT / "bench")]

import torch  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402

import headrace as hr  # noqa: E402
import loader_rounds  # noqa: E402

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FASHION = Path("/usr/share/datasets/fashion-mnist")
FASHION_EPOCHS = 10  # Of 60,000 samples, in a round.
ONE_PIXEL_BATCHES = 20_000


def their_loader(folder: Path, size: int, workers: int):
    transform = transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(),
                                    transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
    dataset = datasets.ImageFolder(folder / "train", transform)
    return torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers)


def our_loader(folder: Path, size: int, threads: int):
    return hr.Loader(f"folder:{folder}", batch_size=64, threads=threads, transform={
        "size": size, "crop": "random_resized", "flip_probability": 0.5, "mean": MEAN, "deviation": DEVIATION})


def compare_photographs(arguments: argparse.Namespace) -> None:
    workers = arguments.workers
    theirs, ours = loader_rounds.show(loader_rounds.measure({
        f"DataLoader, {workers} workers": partial(loader_rounds.speed, their_loader(arguments.data, arguments.size, workers)),
        f"hr.Loader, {workers} threads": partial(loader_rounds.speed, our_loader(arguments.data, arguments.size, workers)),
    }, arguments.rounds))
    print(f"{ours / theirs:.2f} times the DataLoader (ratio of medians; wanted at least 2)", flush=True)


def without_python(folder: Path, threads: int) -> float:
    command = [ROOT / "build" / "release" / "bin" / "native_loader", folder, "fashion", str(threads), "0.4"]
    result = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return result["images"] / result["seconds"]


def with_python(loader: hr.Loader) -> float:
    return loader_rounds.speed(itertools.chain.from_iterable(itertools.repeat(loader, FASHION_EPOCHS)))


def one_pixel_loader(folder: Path) -> hr.Loader:
    """Its batches hold one sample of one pixel; the loop's own thread makes them."""
    for split in ("train", "t10k"):
        (folder / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, ONE_PIXEL_BATCHES, 1, 1) + bytes(ONE_PIXEL_BATCHES))
        (folder / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, ONE_PIXEL_BATCHES) + bytes(ONE_PIXEL_BATCHES))
    return hr.Loader(f"idx:{folder}", batch_size=1, threads=0, shuffle=False)


def microseconds_a_batch(loader: hr.Loader) -> float:
    begin = time.perf_counter()
    for _images, _labels in loader:
        pass
    return 1e6 * (time.perf_counter() - begin) / len(loader)


def compare_fashion(arguments: argparse.Namespace) -> None:
    threads = arguments.workers
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "fashion").symlink_to(FASHION)
        loader = hr.Loader(f"idx:{FASHION}", batch_size=256, threads=threads, last_batch="drop", transform={
            "pad": 2, "flip_probability": 0.5, "mean": [0.2860], "deviation": [0.3530]})
        native, python = loader_rounds.show(loader_rounds.measure({
            f"Loader in C++, {threads} threads": partial(without_python, folder, threads),
            f"hr.Loader, {threads} threads": partial(with_python, loader),
        }, arguments.rounds))
        print(f"from Python {python / native:.2f} of the speed without (ratio of medians); {python / 1e6:.2f} million samples/s "
              "(wanted at least 1.5)")
        one_pixel = one_pixel_loader(folder)
        times = [microseconds_a_batch(one_pixel) for _ in range(arguments.rounds + 1)][1:]
        print(f"a batch of one pixel: median {sorted(times)[len(times) // 2]:.2f} us, {min(times):.2f} to {max(times):.2f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=("photographs", "fashion"), default="photographs")
    parser.add_argument("--data", type=Path, default=ROOT / "photos")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="the DataLoader's processes, our threads")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    {"photographs": compare_photographs, "fashion": compare_fashion}[arguments.work](arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
