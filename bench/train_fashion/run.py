#!/usr/bin/env python3
"""Times the demo's job: `headrace train` on the tuned recipe against pytorch.py, interleaved, some seeds each.

PyTorch's clock starts after its imports. Ours starts before the process does, so that our start-up counts and theirs
does not. The first seed runs PyTorch with each number of loader workers; the other seeds with the one that was faster.

usage: make bench NAME=fashion        or: bench/run.py fashion --seeds 1 --workers 0 --epochs 1
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

PROGRAM = harness.PROGRAMS / "headrace"
SCRIPT = Path(__file__).resolve().parent / "pytorch.py"
SPEEDUP_WANTED = 1.9
ACCURACY_BAND = 0.005


def run_pytorch(seed: int, workers: int, epochs: int) -> dict:
    return harness.run_json([sys.executable, SCRIPT, "--data", harness.FASHION_MNIST, "--seed", seed, "--workers", workers,
                             "--epochs", epochs])


def run_headrace(recipe: Path, seed: int, epochs: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        done = harness.run([PROGRAM, "train", recipe, "--seed", seed, "--train.epochs", epochs, "--out", f"{folder}/run", "--json", "-",
                            "--quiet"])
    return {"seconds": done.seconds, "seed": seed, "test_accuracy": json.loads(done.output)["test_accuracy"]}


def last_accuracy(result: dict) -> float:
    return result["test_accuracy"]


def show(name: str, result: dict) -> None:
    print(f"  {name:<22} seed {result['seed']}: {result['seconds']:7.1f} s   test accuracy {last_accuracy(result):.4f}",
          flush=True)


def summary(name: str, results: list[dict]) -> float:
    seconds = [result["seconds"] for result in results]
    accuracies = [last_accuracy(result) for result in results]
    print(f"{name:<10} median {harness.with_range(seconds, 1)} s; accuracy median {harness.with_range(accuracies, 4)}")
    return statistics.median(seconds)


def measure(bench: harness.Bench, arguments: argparse.Namespace, recipe: Path) -> tuple[list[dict], list[dict]]:
    """Ours and theirs, one a seed."""
    workers_tried = list(arguments.workers)

    def ours(number: int) -> dict:
        result = run_headrace(recipe, arguments.seeds[number - 1], arguments.epochs)
        show("headrace", result)
        return result

    def theirs(number: int) -> dict:
        results = [run_pytorch(arguments.seeds[number - 1], workers, arguments.epochs) for workers in workers_tried]
        for result in results:
            show(f"pytorch, {result['workers']} workers", result)
        fastest = min(results, key=lambda result: result["seconds"])
        workers_tried[:] = [fastest["workers"]]
        return fastest

    found = bench.measure([harness.Arm("headrace", ours), harness.Arm("pytorch", theirs)], len(arguments.seeds))
    return found["headrace"], found["pytorch"]


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--recipe", type=Path, default=harness.ROOT / "runs" / "fashion_mnist" / "latest" / "tuned.toml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    recipe = arguments.recipe.resolve()
    if not recipe.exists():
        print(f"no tuned recipe at {recipe}: run make demo first, or give --recipe", file=sys.stderr)
        return 2

    bench = harness.Bench(__file__, arguments, f"recipe {recipe}; batch 128, {arguments.epochs} epochs, one test at the end")
    ours, theirs = measure(bench, arguments, recipe)

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
    return bench.end({"speedup": speedup, "accuracy_differences": differences}, 0 if fast_enough and same_accuracy else 3)


if __name__ == "__main__":
    sys.exit(main())
