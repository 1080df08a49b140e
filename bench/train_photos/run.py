#!/usr/bin/env python3
"""Images a second of ResNet-18 on photographs: the tuned recipe against pytorch.py, over 60 steps each, in pairs.

Both sides run a warm-up (pytorch.py 10 steps, ours 3), then --steps steps with loading, forward, backward and update. Ours
are the traced steps of `headrace profile`: what tracing costs is in them, and the loader works as in training. The
first pair runs PyTorch with each number of workers; the other pairs with the one that was faster. The share of each kept
change is read from ledger.json beside the recipe, where tune measured it.

usage: make bench NAME=train-photos, after make demo JOB=photos
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

PROGRAM = harness.PROGRAMS / "headrace"
SCRIPT = Path(__file__).resolve().parent / "pytorch.py"
SPEEDUP_WANTED = 1.15


def run_pytorch(recipe: dict, seed: int, workers: int, steps: int) -> dict:
    """The recipe's data, batch and image size, learning rate and weight decay; everything else is the script's own."""
    command = [sys.executable, str(SCRIPT), "--data", recipe["data"]["source"].removeprefix("folder:"),
               "--batch", str(recipe["data"]["batch_size"]), "--size", str(recipe["data"]["transform"]["size"]),
               "--lr", str(recipe["optimizer"]["lr"]), "--weight-decay", str(recipe["optimizer"]["weight_decay"]),
               "--seed", str(seed), "--workers", str(workers), "--steps", str(steps)]
    return harness.run_json(command)


def run_headrace(recipe: Path, seed: int, steps: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        done = harness.run([PROGRAM, "profile", recipe, "--seed", seed, "--steps", steps, "--out", f"{folder}/run", "--json", "-", "--quiet"])
    document = json.loads(done.output)
    return {"images_per_second": document["samples_per_second"], "seed": seed, "steps": document["time_split"]["steps"],
            "data_wait_share": document["time_split"]["share"]["data_wait"], "bound": document["diagnosis"]["bound"]}


def show(name: str, result: dict) -> None:
    print(f"  {name:<22} seed {result['seed']}: {result['images_per_second']:7.1f} images/s", flush=True)


def measure(bench: harness.Bench, arguments: argparse.Namespace, recipe: dict) -> tuple[list[dict], list[dict]]:
    """Ours and theirs, one a pair."""
    workers_tried = list(arguments.workers)

    def ours(seed: int) -> dict:
        result = run_headrace(arguments.recipe, seed, arguments.steps)
        show("headrace", result)
        return result

    def theirs(seed: int) -> dict:
        result = max((run_pytorch(recipe, seed, workers, arguments.steps) for workers in workers_tried),
                     key=lambda result: result["images_per_second"])
        workers_tried[:] = [result["workers"]]
        show(f"pytorch, {result['workers']} workers", result)
        return result

    found = bench.measure([harness.Arm("headrace", ours), harness.Arm("pytorch", theirs)], arguments.pairs)
    return found["headrace"], found["pytorch"]


def summary(name: str, results: list[dict]) -> float:
    speeds = [result["images_per_second"] for result in results]
    print(f"{name:<10} median {harness.with_range(speeds, 1)} images/s")
    return statistics.median(speeds)


def show_shares(ledger: dict) -> None:
    """Gains multiply, so that a change's share of the whole is that of its logarithm."""
    kept = [trial for trial in ledger["trials"] if trial["verdict"] == "kept" and not trial["removed_again"]]
    whole = sum(math.log1p(trial["gain"]["median"]) for trial in kept)
    print(f"kept by tune ({ledger['written']}), each on top of those above; together "
          f"{ledger['speedup']['median']:.2f}x [{ledger['speedup']['low']:.2f}, {ledger['speedup']['high']:.2f}] "
          "of the recipe as written:" if kept else "tune kept no change")
    for trial in kept:
        gain = trial["gain"]
        print(f"  {trial['name']:<24} {gain['median']:+7.1%} [{gain['low']:+.1%}, {gain['high']:+.1%}]   "
              f"{math.log1p(gain['median']) / whole:4.0%} of the gain   {trial['changes']}")


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--recipe", type=Path, default=harness.ROOT / "runs" / "photos_resnet18" / "latest" / "tuned.toml")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    arguments = parser.parse_args()
    arguments.recipe = arguments.recipe.resolve()
    if not arguments.recipe.exists():
        print(f"no tuned recipe at {arguments.recipe}: run make demo JOB=photos first, or give --recipe", file=sys.stderr)
        return 2
    recipe = tomllib.loads(arguments.recipe.read_text())
    ledger = json.loads(arguments.recipe.with_name("ledger.json").read_text())

    bench = harness.Bench(__file__, arguments, f"recipe {arguments.recipe}; {arguments.steps} steps of {recipe['data']['batch_size']} photographs")
    ours, theirs = measure(bench, arguments, recipe)
    our_median, their_median = summary("headrace", ours), summary("pytorch", theirs)
    ratios = harness.ratios([result["images_per_second"] for result in ours], [result["images_per_second"] for result in theirs])
    speedup = our_median / their_median
    show_shares(ledger)
    print(f"speedup (ratio of medians): {speedup:.2f}x, pairs {min(ratios):.2f} to {max(ratios):.2f}, wanted {SPEEDUP_WANTED}x: "
          f"{'yes' if speedup >= SPEEDUP_WANTED else 'no'}")
    return bench.end({"speedup": speedup, "ratios": ratios}, 0 if speedup >= SPEEDUP_WANTED else 3)


if __name__ == "__main__":
    sys.exit(main())
