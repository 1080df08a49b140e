#!/usr/bin/env python3
"""What does the memory of tensors cost? Steps of three recipes' networks on one batch each, by where their memory comes from.

glibc as it is; glibc that keeps what is freed; jemalloc, mimalloc and tcmalloc as Debian builds them, where they are
installed (apt-get install libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4); Headrace's arena. Each arm is a process of its own, all of
them once a round, in turns.

usage: make bench-allocators
"""

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "training_steps"
RECIPES = {"photos_small": 60, "photos_resnet18": 8, "fashion_mnist": 24}  # Steps in a round.
LIBRARIES = {"jemalloc": "libjemalloc.so.2", "mimalloc": "libmimalloc.so.2", "tcmalloc": "libtcmalloc_minimal.so.4"}
FOLDERS = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib"))
KEEPING = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "67108864"}
SYSTEM = "glibc"


def arms() -> dict[str, tuple[str, dict[str, str]]]:
    """Name -> (compute.allocator, what the environment has beside)."""
    found = {SYSTEM: ("system", {}), "glibc, kept": ("system", KEEPING)}
    for name, file in LIBRARIES.items():
        paths = [folder / file for folder in FOLDERS if (folder / file).exists()]
        if paths:
            found[name] = ("system", {"LD_PRELOAD": str(paths[0])})
        else:
            print(f"{name}: not installed")
    return found | {"arena": ("arena", {})}


def steps(recipe: str, allocator: str, environment: dict[str, str]) -> dict[str, float]:
    command = [str(PROGRAM), str(ROOT / "examples" / f"{recipe}.toml"), allocator, str(RECIPES[recipe])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stdout}{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--json", type=Path, help="also write all rounds to this file")
    arguments = parser.parse_args()
    by_name = arms()
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for recipe in arguments.recipes:
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in by_name}
        for _ in range(arguments.rounds):
            for name, (allocator, environment) in by_name.items():
                rounds[name].append(steps(recipe, allocator, environment))
        found[recipe] = rounds
        print(f"\n{recipe}: median of {arguments.rounds} rounds (least to most); against {SYSTEM} of the same round\n"
              f"{'':12} {'ms a step':>26} {'speed':>6} {'faults a step':>14} {'peak MB':>8}")
        for name, each in rounds.items():
            times = [one["milliseconds"] for one in each]
            ratio = statistics.median(base["milliseconds"] / one["milliseconds"]
                                      for base, one in zip(rounds[SYSTEM], each, strict=True))
            print(f"{name:12} {statistics.median(times):9.2f} ({min(times):.2f} to {max(times):.2f})".ljust(40)
                  + f"{ratio:6.3f} {statistics.median(one['faults'] for one in each):14.0f}"
                  f" {statistics.median(one['peak_bytes'] for one in each) / 1e6:8.0f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
