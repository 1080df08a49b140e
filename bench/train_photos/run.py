#!/usr/bin/env python3
"""Images a second of ResNet-18 on photographs: the tuned recipe against pytorch.py, over 60 steps each, in pairs.

Both sides run a warm-up (pytorch.py 10 steps, ours 3), then --steps steps with loading, forward, backward and update. Ours
are the traced steps of `headrace profile`: what tracing costs is in them, and the loader works as in training. The
first pair runs PyTorch with each number of workers; the other pairs with the one that was faster. Who goes first changes
from pair to pair. The share of each kept change is read from ledger.json beside the recipe, where tune measured it.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"
SCRIPT = ROOT / "bench" / "train_photos" / "pytorch.py"
SPEEDUP_WANTED = 1.15


def checked_output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def run_pytorch(recipe: dict, seed: int, workers: int, steps: int) -> dict:
    """The recipe's data, batch and picture size, rate and weight decay; everything else is the script's own."""
    command = [sys.executable, str(SCRIPT), "--data", recipe["data"]["source"].removeprefix("folder:"),
               "--batch", str(recipe["data"]["batch_size"]), "--size", str(recipe["data"]["transform"]["size"]),
               "--rate", str(recipe["optimizer"]["rate"]), "--weight-decay", str(recipe["optimizer"]["weight_decay"]),
               "--seed", str(seed), "--workers", str(workers), "--steps", str(steps)]
    return json.loads(checked_output(command).splitlines()[-1])


def run_headrace(recipe: Path, seed: int, steps: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        output = checked_output([str(PROGRAM), "profile", str(recipe), "--seed", str(seed), "--steps", str(steps),
                                 "--out", f"{folder}/run", "--json", "-", "--quiet"])
    document = json.loads(output)
    return {"images_per_second": document["samples_per_second"], "seed": seed, "steps": document["time_split"]["steps"],
            "data_wait_share": document["time_split"]["share"]["data_wait"], "bound": document["diagnosis"]["bound"]}


def show(name: str, result: dict) -> None:
    print(f"  {name:<22} seed {result['seed']}: {result['images_per_second']:7.1f} images/s", flush=True)


def measure(arguments: argparse.Namespace, recipe: dict) -> tuple[list[dict], list[dict]]:
    ours: list[dict] = []
    theirs: list[dict] = []
    fastest = None
    for pair in range(arguments.pairs):
        seed = pair + 1
        sides = [lambda: ours.append(run_headrace(arguments.recipe, seed, arguments.steps)),
                 lambda: theirs.append(max(
                     (run_pytorch(recipe, seed, workers, arguments.steps)
                      for workers in (arguments.workers if fastest is None else [fastest])),
                     key=lambda result: result["images_per_second"]))]
        for side in sides if pair % 2 == 0 else reversed(sides):
            side()
        fastest = theirs[-1]["workers"]
        show("headrace", ours[-1])
        show(f"pytorch, {fastest} workers", theirs[-1])
    return ours, theirs


def summary(name: str, results: list[dict]) -> float:
    speeds = [result["images_per_second"] for result in results]
    print(f"{name:<10} median {statistics.median(speeds):7.1f} images/s, {min(speeds):.1f} to {max(speeds):.1f}")
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=ROOT / "runs" / "photos_resnet18" / "latest" / "tuned.toml")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    arguments = parser.parse_args()
    arguments.recipe = arguments.recipe.resolve()
    if not arguments.recipe.exists():
        print(f"no tuned recipe at {arguments.recipe}: run make demo-photos first, or give --recipe", file=sys.stderr)
        return 2
    recipe = tomllib.loads(arguments.recipe.read_text())
    ledger = json.loads(arguments.recipe.with_name("ledger.json").read_text())

    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores; recipe {arguments.recipe}; "
          f"{arguments.steps} steps of {recipe['data']['batch_size']} photographs", flush=True)
    ours, theirs = measure(arguments, recipe)
    our_median, their_median = summary("headrace", ours), summary("pytorch", theirs)
    ratios = [a["images_per_second"] / b["images_per_second"] for a, b in zip(ours, theirs)]
    speedup = our_median / their_median
    show_shares(ledger)
    print(f"speedup (ratio of medians): {speedup:.2f}x, pairs {min(ratios):.2f} to {max(ratios):.2f}, wanted {SPEEDUP_WANTED}x: "
          f"{'yes' if speedup >= SPEEDUP_WANTED else 'no'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ours": ours, "theirs": theirs, "speedup": speedup}, indent=1) + "\n")
    return 0 if speedup >= SPEEDUP_WANTED else 3


if __name__ == "__main__":
    sys.exit(main())
