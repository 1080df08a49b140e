#!/usr/bin/env python3
"""Photographs a second that torchvision's DataLoader delivers, with nothing to train. Prints one JSON line.

The clock starts when the first batch is there, so that the start of the workers does not count, and stops at the end of
the pass or after --images.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "train_photos"))

from photo_loader import training_loader  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "photos")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--transforms", choices=["v1", "v2"], default="v1")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    batches = iter(training_loader(str(arguments.data / "train"), arguments.size, arguments.batch, arguments.workers,
                                   arguments.transforms))
    next(batches)
    start = time.perf_counter()
    images = 0
    for batch, _ in batches:
        images += len(batch)
        if images >= arguments.images:
            break
    seconds = time.perf_counter() - start
    print(json.dumps({"images_per_second": images / seconds, "images": images, "seconds": seconds, "size": arguments.size,
                      "workers": arguments.workers, "transforms": arguments.transforms}))


if __name__ == "__main__":
    main()
