"""What the rivals' scripts have in common: the work, the arguments, the clock, and the one line of JSON they print.

A work makes batches without end; what it does before its first batch (imports apart) counts as first_batch_s. A few
batches later the window opens: images, seconds and CPU seconds are of the window alone, with worker processes counted.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

SIZE, RESIZE, BATCH = 224, 256, 64
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FASHION_SIDE, FASHION_PAD, FASHION_BATCH = 28, 2, 256
FASHION_MEAN, FASHION_DEVIATION = 0.2860, 0.3530

# Until caches are full, code is compiled and every worker is busy.
WARM_BATCHES = {"train": 6, "validation": 6, "decoded_cache": 50, "decoded_cache_uint8": 50, "fashion": 60}
SHAPES = {"fashion": (FASHION_BATCH, 1, FASHION_SIDE, FASHION_SIDE)}
WORKS = tuple(WARM_BATCHES)

Batches = Iterator[tuple]


class Unavailable(Exception):
    """This rival cannot do this work here; the message says why."""


def forever(one_pass: Callable[[], Iterable]) -> Batches:
    while True:
        yield from one_pass()


def photographs(folder: Path) -> tuple[list[str], list[int]]:
    """Paths and labels, as ImageFolder has them."""
    classes = sorted(entry.name for entry in (folder / "photographs" / "train").iterdir())
    found = [(str(path), label) for label, name in enumerate(classes)
             for path in sorted((folder / "photographs" / "train" / name).iterdir())]
    return [path for path, _ in found], [label for _, label in found]


class SmallImages:
    """The small photographs, decoded: (height, width, 3) uint8, mapped from the file of all pixels, and their labels."""

    def __init__(self, folder: Path) -> None:
        import numpy

        self.entries = json.loads((folder / "small.json").read_text())
        self.pixels = numpy.asarray(numpy.memmap(folder / "small.bin", dtype=numpy.uint8, mode="r"))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int):
        entry = self.entries[index]
        shape = entry["height"], entry["width"], 3
        return self.pixels[entry["at"]:entry["at"] + shape[0] * shape[1] * 3].reshape(shape), entry["label"]


def fashion(folder: Path):
    """Images (n, 28, 28) uint8 and labels (n) int64 of the training split."""
    import gzip

    import numpy

    def read(name: str, header: int):
        return numpy.frombuffer(gzip.decompress((folder / "fashion" / name).read_bytes()), dtype=numpy.uint8)[header:]

    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, FASHION_SIDE, FASHION_SIDE)
    return images, read("train-labels-idx1-ubyte.gz", 8).astype(numpy.int64)


def descendants() -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # It ended meanwhile.
            continue
    found = [os.getpid()]
    for process in found:
        found.extend(child for child, parent in parents.items() if parent == process)
    return found


def cpu_seconds() -> float:
    """Of this process, its living children and theirs, and those that ended."""
    total, ticks = time.process_time(), os.sysconf("SC_CLK_TCK")
    for process in descendants()[1:]:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(map(int, fields[11:15])) / ticks
    ended = os.times()
    return total + ended.children_user + ended.children_system


def resident_bytes() -> int:
    """Of this process and its children; what they share counts once."""
    total = 0
    for process in descendants():
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def check(images, work: str) -> None:
    wanted, dtype = SHAPES.get(work, (BATCH, 3, SIZE, SIZE)), "uint8" if work.endswith("uint8") else "float32"
    if tuple(images.shape) != wanted or dtype not in str(images.dtype):
        raise SystemExit(f"a batch is {tuple(images.shape)} of {images.dtype}; wanted {wanted} of {dtype}")


def measure(batches: Callable[[], Batches], work: str, seconds: float) -> dict:
    before = resident_bytes()
    begin = time.monotonic()
    iterator = batches()
    first = next(iterator)
    first_batch_s = time.monotonic() - begin
    check(first[0], work)
    del first
    for _ in islice(iterator, WARM_BATCHES[work]):
        pass
    images, cpu_begin, begin = 0, cpu_seconds(), time.monotonic()
    elapsed = 0.0
    while elapsed < seconds:
        images += len(next(iterator)[0])
        elapsed = time.monotonic() - begin
    return {"images": images, "seconds": elapsed, "cpu_seconds": cpu_seconds() - cpu_begin, "first_batch_s": first_batch_s,
            "rss_bytes": resident_bytes() - before}


def main(version: str, works: dict[str, Callable[[argparse.Namespace], Batches]],
         prepare: Callable[[Path], None] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True, help="what prepare.py made")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", choices=WORKS, default="train")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of the window")
    parser.add_argument("--variant", default="", help="a setting of this rival's own")
    parser.add_argument("--prepare", action="store_true", help="write the rival's own form of the data and end")
    arguments = parser.parse_args()
    if arguments.prepare:
        if prepare:
            prepare(arguments.folder)
        return
    try:
        if arguments.work not in works:
            raise Unavailable("no form of this work for it here")
        result = measure(lambda: works[arguments.work](arguments), arguments.work, arguments.seconds)
    except Unavailable as reason:
        result = {"unavailable": str(reason)}
    print(json.dumps({"version": version, **result}), flush=True)
    sys.stdout.flush()
