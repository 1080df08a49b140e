#!/usr/bin/env python3
"""Photographs a second from a folder to normalised batches: torchvision's DataLoader against our Loader, interleaved.

Both draw torchvision's random resized crop, flip and normalise, in batches of --batch; nothing is trained. Each round runs
every arm once, in an order that turns from round to round. The folder lies in the page cache after the first round.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "photo_loader"
SCRIPT = ROOT / "bench" / "load_photos" / "torchvision_loader.py"


def speed_of(command: list[str]) -> float:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["images_per_second"]


def torchvision_speed(arguments: argparse.Namespace, size: int, workers: int, version: str, seed: int) -> float:
    return speed_of([sys.executable, str(SCRIPT), "--data", str(arguments.data), "--size", str(size), "--workers", str(workers),
                     "--transforms", version, "--batch", str(arguments.batch), "--images", str(arguments.images),
                     "--seed", str(seed)])


def headrace_speed(arguments: argparse.Namespace, size: int, threads: int, seed: int) -> float:
    return speed_of([str(PROGRAM), str(arguments.data), str(size), str(arguments.batch), str(threads), str(arguments.images),
                     str(seed)])


def arms_of(arguments: argparse.Namespace, size: int) -> dict[str, Callable[[int], float]]:
    """What to run, by the name that the table shows; each takes a seed."""
    arms: dict[str, Callable[[int], float]] = {}
    for workers in arguments.workers:
        for version in arguments.transforms:
            arms[f"torchvision {version}, {workers} workers"] = (
                lambda seed, workers=workers, version=version: torchvision_speed(arguments, size, workers, version, seed))
        arms[f"headrace, {workers} threads"] = lambda seed, workers=workers: headrace_speed(arguments, size, workers, seed)
    return arms


def measure(arguments: argparse.Namespace, size: int) -> dict[str, list[float]]:
    arms = arms_of(arguments, size)
    names = list(arms)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for place in range(arguments.rounds):
        for name in names[place % len(names):] + names[:place % len(names)]:
            speeds[name].append(arms[name](place + 1))
    return speeds


def show(size: int, speeds: dict[str, list[float]], workers: list[int]) -> None:
    print(f"{size} x {size}:")
    for name, values in speeds.items():
        print(f"  {name:<28} median {statistics.median(values):7.0f} images/s, {min(values):.0f} to {max(values):.0f}")
    for count in workers:
        ours = statistics.median(speeds[f"headrace, {count} threads"])
        theirs = max(statistics.median(values) for name, values in speeds.items() if name.endswith(f", {count} workers"))
        print(f"  with {count}: {ours / theirs:.2f} times torchvision's faster one (ratio of medians)", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "photos")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="torchvision's workers, our threads")
    parser.add_argument("--transforms", nargs="+", default=["v1", "v2"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=1920)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    arguments = parser.parse_args()
    if not PROGRAM.exists():
        print(f"no {PROGRAM}: run make bench-photos, which builds it", file=sys.stderr)
        return 2
    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores; {arguments.images} of the "
          f"photographs in {arguments.data}, {arguments.rounds} rounds", flush=True)
    results = {}
    for size in arguments.sizes:
        results[size] = measure(arguments, size)
        show(size, results[size], arguments.workers)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
