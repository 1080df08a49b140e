#!/usr/bin/env python3
"""Times the demo's job: `headrace train` on the tuned recipe against pytorch.py, interleaved, some seeds each.

PyTorch's clock starts after its imports. Ours starts before the process does, so that our start-up counts and theirs
does not. The first seed runs PyTorch with each number of loader workers; the other seeds with the one that was faster.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "release" / "bin" / "headrace"
DATA = Path("/usr/share/datasets/fashion-mnist")
SPEEDUP_WANTED = 1.9
ACCURACY_BAND = 0.005


def checked_output(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def run_pytorch(seed: int, workers: int, epochs: int) -> dict:
    script = str(ROOT / "bench" / "train_fashion" / "pytorch.py")
    command = [sys.executable, script, "--data", str(DATA), "--seed", str(seed), "--workers", str(workers),
               "--epochs", str(epochs)]
    return json.loads(checked_output(command).splitlines()[-1])


def run_headrace(recipe: Path, seed: int, epochs: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        start = time.perf_counter()
        output = checked_output([str(PROGRAM), "train", str(recipe), "--seed", str(seed), "--train.epochs", str(epochs),
                                 "--out", f"{folder}/run", "--json", "-", "--quiet"])
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "seed": seed, "test_accuracy": json.loads(output)["test_accuracy"]}


def last_accuracy(result: dict) -> float:
    return result["test_accuracy"]


def show(name: str, result: dict) -> None:
    print(f"  {name:<22} seed {result['seed']}: {result['seconds']:7.1f} s   test accuracy {last_accuracy(result):.4f}",
          flush=True)


def summary(name: str, results: list[dict]) -> float:
    seconds = [result["seconds"] for result in results]
    accuracies = [last_accuracy(result) for result in results]
    print(f"{name:<10} median {statistics.median(seconds):7.1f} s, {min(seconds):.1f} to {max(seconds):.1f}; "
          f"accuracy median {statistics.median(accuracies):.4f}, {min(accuracies):.4f} to {max(accuracies):.4f}")
    return statistics.median(seconds)


def measure(arguments: argparse.Namespace, recipe: Path) -> tuple[list[dict], list[dict]]:
    ours: list[dict] = []
    theirs: list[dict] = []
    workers_fastest = None
    for place, seed in enumerate(arguments.seeds):
        candidates = arguments.workers if workers_fastest is None else [workers_fastest]
        if place % 2 == 1:  # Who goes first changes, so that a machine that warms up favours nobody.
            theirs_now = [run_pytorch(seed, workers, arguments.epochs) for workers in candidates]
            ours.append(run_headrace(recipe, seed, arguments.epochs))
        else:
            ours.append(run_headrace(recipe, seed, arguments.epochs))
            theirs_now = [run_pytorch(seed, workers, arguments.epochs) for workers in candidates]
        show("headrace", ours[-1])
        for result in theirs_now:
            show(f"pytorch, {result['workers']} workers", result)
        theirs.append(min(theirs_now, key=lambda result: result["seconds"]))
        workers_fastest = theirs[-1]["workers"]
    return ours, theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=ROOT / "runs" / "fashion_mnist" / "latest" / "tuned.toml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", type=Path, help="also write all results to this file")
    arguments = parser.parse_args()
    recipe = arguments.recipe.resolve()
    if not recipe.exists():
        print(f"no tuned recipe at {recipe}: run make demo first, or give --recipe", file=sys.stderr)
        return 2

    print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {len(os.sched_getaffinity(0))} cores; recipe {recipe}; "
          f"batch 128, {arguments.epochs} epochs, one test at the end", flush=True)
    ours, theirs = measure(arguments, recipe)

    our_median = summary("headrace", ours)
    their_median = summary("pytorch", theirs)
    speedup = their_median / our_median
    differences = [last_accuracy(a) - last_accuracy(b) for a, b in zip(ours, theirs)]
    print("accuracy, ours less theirs, a seed: " + " ".join(f"{difference:+.4f}" for difference in differences))
    between = statistics.median(map(last_accuracy, ours)) - statistics.median(map(last_accuracy, theirs))
    fast_enough = speedup >= SPEEDUP_WANTED
    same_accuracy = all(abs(difference) <= ACCURACY_BAND for difference in differences)
    print(f"medians of accuracy differ by {between:+.4f}")
    print(f"speedup (ratio of medians): {speedup:.2f}x, wanted {SPEEDUP_WANTED}x: {'yes' if fast_enough else 'no'}; "
          f"every seed within {ACCURACY_BAND}: {'yes' if same_accuracy else 'no'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"ours": ours, "theirs": theirs, "speedup": speedup}, indent=1) + "\n")
    return 0 if fast_enough and same_accuracy else 3


if __name__ == "__main__":
    sys.exit(main())
