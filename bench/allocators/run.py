#!/usr/bin/env python3
"""What does the memory of tensors cost? Steps of three recipes' networks on one batch each, by where their memory comes from.

glibc as it is; glibc that keeps what is freed; jemalloc, mimalloc and tcmalloc as Debian builds them, where they are
installed (apt-get install libjemalloc2 libmimalloc2.0 libtcmalloc-minimal4); Headrace's arena. Each arm is a process of its own, all of
them once a round, in turns.

usage: make bench NAME=allocators
"""

import statistics
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

PROGRAM = harness.PROGRAMS / "training_steps"
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


def steps(recipe: str, allocator: str, environment: dict[str, str], _round: int) -> dict[str, float]:
    command = [PROGRAM, harness.ROOT / "examples" / f"{recipe}.toml", allocator, RECIPES[recipe]]
    return harness.run_json(command, environment=environment)


def show(recipe: str, found: dict[str, list[dict[str, float]]]) -> None:
    rows = []
    for name, each in found.items():
        times = [one["milliseconds"] for one in each]
        speed = harness.ratios([one["milliseconds"] for one in found[SYSTEM]], times)
        summary = harness.Summary.of(times)
        rows.append([name, harness.with_interval(times, digits=2), f"{summary.quartile_low:.2f} - {summary.quartile_high:.2f}",
                     harness.with_interval(speed, digits=3), f"{statistics.median(one['faults'] for one in each):.0f}",
                     f"{statistics.median(one['peak_bytes'] for one in each) / 1e6:.0f}"])
    print(f"\n{recipe}; {harness.interval_remark(len(times))}; speed is over {SYSTEM}'s in the same round\n"
          + harness.table(["", "ms a step", "quartiles", "speed", "faults a step", "peak MB"], rows), flush=True)


def main() -> int:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds of {', '.join(arguments.recipes)}")
    by_name = arms()
    for recipe in arguments.recipes:
        show(recipe, bench.measure([harness.Arm(name, partial(steps, recipe, allocator, environment))
                                    for name, (allocator, environment) in by_name.items()], arguments.rounds, title=recipe))
    return bench.end()


if __name__ == "__main__":
    sys.exit(main())
