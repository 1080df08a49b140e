"""Images a second of headrace.Loader in a Python loop that does nothing else, or first batches a second. Prints one JSON line. `copies`
counts the batches whose fields do not lie in one block, where the Loader writes them side by side: one that was copied is elsewhere.

usage: loader_rate.py SOURCE SIZE SECONDS [first]

with the package of the build in PYTHONPATH. SIZE is that of a random resized crop; 0: padded, cropped and flipped as Fashion-MNIST
is. `first` makes a loader, takes its first batch and ends it, again and again: what stands before the first batch.
"""

import json
import sys
import time
from typing import Any

import headrace as hr

WORKERS = 2


def options_of(size: int) -> dict[str, Any]:
    if size == 0:
        return {"batch_size": 256, "transform": {"pad": 2, "flip_probability": 0.5, "mean": [0.286], "std": [0.353]}}
    return {"batch_size": 64, "transform": {"size": size, "crop": "random_resized", "flip_probability": 0.5,
                                            "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}


def first_batches(source: str, options: dict[str, Any], seconds: float) -> dict[str, float]:
    taken, begin = 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        next(iter(hr.Loader(source, num_workers=WORKERS, **options)))
        taken += 1
    return {"images": taken, "seconds": passed}


def images(source: str, options: dict[str, Any], seconds: float) -> dict[str, float]:
    loader = hr.Loader(source, num_workers=WORKERS, **options)
    block_bytes = room_of(next(iter(loader)))  # Fills the page cache and starts the threads.
    count, copies, begin = 0, 0, time.perf_counter()
    while (passed := time.perf_counter() - begin) < seconds:
        for images, labels in loader:
            count += len(images)
            copies += abs(labels.data_ptr() - images.data_ptr()) >= block_bytes
            if time.perf_counter() - begin > seconds:
                break
    return {"images": count, "seconds": passed, "copies": copies}


def room_of(batch: Any) -> int:
    """At least what the block of a whole batch has: its fields, as many indices and marks as labels, and what aligns them."""
    images, labels = batch
    return images.nbytes + 4 * labels.nbytes + 4096


def main() -> None:
    source, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    measure = first_batches if sys.argv[4:] == ["first"] else images
    print(json.dumps(measure(source, options_of(size), seconds)))


if __name__ == "__main__":
    main()
