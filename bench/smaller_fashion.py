"""A part of Fashion-MNIST, for benches whose runs must be short."""

import gzip
import struct
from pathlib import Path

import harness


def cut(source: Path, target: Path, count: int) -> None:
    """The first `count` entries of a gzip IDX file."""
    with gzip.open(source) as file:
        magic, _ = struct.unpack(">2I", file.read(8))
        dimensions = file.read(4 * ((magic & 0xFF) - 1))
        size = 1
        for i in range(0, len(dimensions), 4):
            size *= struct.unpack(">I", dimensions[i : i + 4])[0]
        body = file.read(count * size)
    with gzip.open(target, "wb", 1) as file:
        file.write(struct.pack(">2I", magic, count) + dimensions + body)


def write(folder: Path, train: int, test: int) -> None:
    """The four files with the first images of either split."""
    for split, count in (("train", train), ("t10k", test)):
        for kind in ("images-idx3", "labels-idx1"):
            name = f"{split}-{kind}-ubyte.gz"
            cut(harness.FASHION_MNIST / name, folder / name, count)
