#!/usr/bin/env python3
"""The scripts of examples/python, before and after hr.tune, interleaved: seconds of training and the last accuracy.

A script's own epoch times are compared, without the tuning, which comes once, and with it; beside them stands after how many
epochs it has paid. Tuning is what the process takes after, beyond its epochs, more than the one before does: the import of
headrace is in it. Wanted, without it: Fashion-MNIST at least 1.3 times as fast with its accuracy inside the band, and no script
slower by more than 2 %.
"""

import argparse
import gzip
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples" / "python"
IDX = Path("/usr/share/datasets/fashion-mnist")
EPOCH = re.compile(r"^epoch \d+: ([0-9.]+) s, loss \S+, accuracy ([0-9.]+)$", re.MULTILINE)
SPEEDUP_WANTED = {"fashion_mnist": 1.3, "finetune": 0.98, "own_dataset": 0.98}
ACCURACY_BAND = 0.01


def fashion_folder(folder: Path) -> Path:
    """Debian's data set as torchvision lays it out."""
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in IDX.glob("*-ubyte.gz"):
        (raw / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    return folder


def run_script(name: str, which: str, options: list[str], folder: Path) -> dict:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "release" / "python")}
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, str(EXAMPLES / f"{name}_{which}.py"), *options], capture_output=True, text=True,
                          env=environment, cwd=folder)
    wall_s = time.perf_counter() - begin
    if done.returncode != 0:
        raise SystemExit(f"{name}_{which}.py ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    epochs = EPOCH.findall(done.stdout)
    return {"training_s": sum(float(seconds) for seconds, _ in epochs), "wall_s": wall_s, "epochs": len(epochs),
            "accuracy": float(epochs[-1][1]), "output": done.stdout}


def tuning_seconds(before: dict, after: dict) -> float:
    return max(0.0, (after["wall_s"] - after["training_s"]) - (before["wall_s"] - before["training_s"]))


def epochs_to_pay(before: list[dict], after: list[dict], tuning_s: float) -> int | None:
    """After how many epochs training that was tuned first is ahead, by medians; None: never."""
    epoch_s = [statistics.median(run["training_s"] / run["epochs"] for run in runs) for runs in (before, after)]
    saved_s = epoch_s[0] - epoch_s[1]
    return math.ceil(tuning_s / saved_s) if saved_s > 0 else None


def spread(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"


def compare(name: str, options: list[str], seeds: int, folder: Path) -> bool:
    runs: dict[str, list[dict]] = {"before": [], "after": []}
    for seed in range(1, seeds + 1):
        results = {}
        for which in (("before", "after") if seed % 2 else ("after", "before")):
            results[which] = run_script(name, which, [*options, "--seed", str(seed)], folder)
            runs[which].append(results[which])
            print(f"{name:<14} seed {seed} {which:<6} training {results[which]['training_s']:7.2f} s, process "
                  f"{results[which]['wall_s']:7.2f} s, accuracy {results[which]['accuracy']:.4f}", flush=True)
        kept = re.findall(r"^  \+ kept +(.*?)  ", results["after"]["output"], re.MULTILINE)
        print(f"{name:<14} seed {seed} kept: {', '.join(kept) or 'nothing'}; tuning {tuning_seconds(**results):.1f} s")
    pairs = list(zip(runs["before"], runs["after"]))
    tuning_s = [tuning_seconds(before, after) for before, after in pairs]
    without = [before["training_s"] / after["training_s"] for before, after in pairs]
    whole = [before["training_s"] / (after["training_s"] + s) for (before, after), s in zip(pairs, tuning_s)]
    lost = statistics.median(run["accuracy"] for run in runs["before"]) - statistics.median(
        run["accuracy"] for run in runs["after"])
    good = statistics.median(without) >= SPEEDUP_WANTED[name] and (name != "fashion_mnist" or lost <= ACCURACY_BAND)
    print(f"{name:<14} {spread(without)} times as fast without the tuning, wanted at least {SPEEDUP_WANTED[name]}; accuracy "
          f"{-lost:+.4f}: {'met' if good else 'MISSED'}")
    paid = epochs_to_pay(runs["before"], runs["after"], statistics.median(tuning_s))
    print(f"{name:<14} {spread(whole)} times as fast with the tuning of {statistics.median(tuning_s):.1f} s, over the "
          f"{pairs[0][0]['epochs']} epochs of this run; it has paid "
          f"{'after no number of epochs' if paid is None else f'after {paid} epochs'}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=list(SPEEDUP_WANTED), action="append")
    parser.add_argument("--epochs", type=int, help="instead of each script's own number")
    parser.add_argument("--photos", type=Path, default=ROOT / "photos", help="ImageFolder for finetune; see make photos")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as temporary:
        folder = Path(temporary)
        options = {"fashion_mnist": ["--data", str(fashion_folder(folder / "data"))],
                   "finetune": ["--data", str(args.photos.resolve())], "own_dataset": []}
        extra = [] if args.epochs is None else ["--epochs", str(args.epochs)]
        good = [compare(name, options[name] + extra, args.seeds, folder) for name in args.only or SPEEDUP_WANTED]
    return 0 if all(good) else 3


if __name__ == "__main__":
    sys.exit(main())
