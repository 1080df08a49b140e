#!/usr/bin/env python3
"""Photographs a second in a Python loop: DataLoader over torchvision's ImageFolder against headrace.Loader, the line that a
script changes. Random resized crop, flip, normalise, batches of 64; nothing is trained. Rounds are interleaved; the first,
which fills the page cache and starts workers, is not counted.

usage: make bench-python-loader
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build" / "release" / "python"))

import torch  # noqa: E402
from torchvision import datasets, transforms  # noqa: E402

import headrace as hr  # noqa: E402

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def their_loader(folder: Path, size: int, workers: int):
    transform = transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(),
                                    transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
    dataset = datasets.ImageFolder(folder / "train", transform)
    return torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=workers)


def our_loader(folder: Path, size: int, threads: int):
    return hr.Loader(f"folder:{folder}", batch_size=64, threads=threads, transform={
        "size": size, "crop": "random_resized", "flip_probability": 0.5, "mean": MEAN, "deviation": DEVIATION})


def speed(loader) -> float:
    """Over one epoch; the DataLoader starts its workers in it, as it does in a script."""
    begin, samples = time.perf_counter(), 0
    for images, _labels in loader:
        samples += len(images)
    return samples / (time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "photos")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="the DataLoader's processes, our threads")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arms = {
        f"DataLoader, {arguments.workers} workers": their_loader(arguments.data, arguments.size, arguments.workers),
        f"hr.Loader, {arguments.workers} threads": our_loader(arguments.data, arguments.size, arguments.workers),
    }
    speeds: dict[str, list[float]] = {name: [] for name in arms}
    for place in range(arguments.rounds + 1):
        for name in list(arms) if place % 2 else reversed(list(arms)):
            value = speed(arms[name])
            if place > 0:
                speeds[name].append(value)
    for name, values in speeds.items():
        print(f"{name:<22} median {statistics.median(values):6.0f} images/s, {min(values):.0f} to {max(values):.0f}")
    theirs, ours = (statistics.median(values) for values in speeds.values())
    print(f"{ours / theirs:.2f} times the DataLoader (ratio of medians; wanted at least 2)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
