#!/usr/bin/env python3
"""Photographs a second from a folder to normalised batches: torchvision's DataLoader against our Loader, interleaved.

Both draw torchvision's random resized crop, flip and normalise, in batches of --batch; nothing is trained. The folder lies in
the page cache after the first round.

usage: make bench NAME=load-photos
"""

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

PROGRAM = harness.PROGRAMS / "photo_loader"
SCRIPT = Path(__file__).resolve().parent / "torchvision_loader.py"


def torchvision_speed(arguments: argparse.Namespace, size: int, workers: int, version: str, seed: int) -> float:
    return harness.run_json([sys.executable, SCRIPT, "--data", arguments.data, "--size", size, "--workers", workers,
                             "--transforms", version, "--batch", arguments.batch, "--images", arguments.images,
                             "--seed", seed])["images_per_second"]


def headrace_speed(arguments: argparse.Namespace, size: int, threads: int, seed: int) -> float:
    return harness.run_json([PROGRAM, arguments.data, size, arguments.batch, threads, arguments.images,
                             seed])["images_per_second"]


def arms_of(arguments: argparse.Namespace, size: int) -> list[harness.Arm]:
    """What to run, by the name that the table shows; each takes a seed."""
    arms = []
    for workers in arguments.workers:
        for version in arguments.transforms:
            arms.append(harness.Arm(f"torchvision {version}, {workers} workers",
                                    lambda seed, workers=workers, version=version: torchvision_speed(arguments, size, workers, version, seed)))
        arms.append(harness.Arm(f"headrace, {workers} threads",
                                lambda seed, workers=workers: headrace_speed(arguments, size, workers, seed)))
    return arms


def show(size: int, speeds: dict[str, list[float]], workers: list[int]) -> dict[int, float]:
    """Prints the table; returns our rate over torchvision's, by the number of workers."""
    rounds = len(next(iter(speeds.values())))
    print(f"\n{size} x {size}; {harness.interval_remark(rounds)}\n" + harness.arms_table(speeds, "images/s"))
    times = {}
    for count in workers:
        ours = statistics.median(speeds[f"headrace, {count} threads"])
        theirs = max(statistics.median(values) for name, values in speeds.items() if name.endswith(f", {count} workers"))
        times[count] = ours / theirs
        print(f"with {count}: {ours / theirs:.2f} times torchvision's faster one (ratio of medians)", flush=True)
    return times


def main() -> int:
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--data", type=Path, default=harness.ROOT / "photos")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="torchvision's workers, our threads")
    parser.add_argument("--transforms", nargs="+", default=["v1", "v2"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=1920)
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        print(f"no {PROGRAM}: run make bench NAME=load-photos, which builds it", file=sys.stderr)
        return 2
    bench = harness.Bench(__file__, arguments, f"{arguments.images} of the photographs in {arguments.data}, {arguments.rounds} rounds")
    times = {}
    for size in arguments.sizes:
        found = bench.measure(arms_of(arguments, size), arguments.rounds, title=f"{size} x {size}")
        times[size] = show(size, found, arguments.workers)
    return bench.end({"times torchvision, by size and workers": times})


if __name__ == "__main__":
    sys.exit(main())
