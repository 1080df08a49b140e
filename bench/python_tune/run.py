#!/usr/bin/env python3
"""The scripts of examples/python, before and after hr.tune, interleaved: seconds of training and the last accuracy.

A script's own epoch times are compared; the tuning, which comes once, is shown beside them. Wanted: Fashion-MNIST at least
1.3 times as fast with its accuracy inside the band, and no script slower by more than 2 %.
"""

import argparse
import gzip
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
    return {"training_s": sum(float(seconds) for seconds, _ in epochs), "wall_s": wall_s,
            "accuracy": float(epochs[-1][1]), "output": done.stdout}


def compare(name: str, options: list[str], seeds: int, folder: Path) -> bool:
    ratios, accuracies = [], {"before": [], "after": []}
    for seed in range(1, seeds + 1):
        results = {}
        for which in (("before", "after") if seed % 2 else ("after", "before")):
            results[which] = run_script(name, which, [*options, "--seed", str(seed)], folder)
            accuracies[which].append(results[which]["accuracy"])
            print(f"{name:<14} seed {seed} {which:<6} training {results[which]['training_s']:7.2f} s, process "
                  f"{results[which]['wall_s']:7.2f} s, accuracy {results[which]['accuracy']:.4f}", flush=True)
        kept = re.findall(r"^  \+ kept +(.*?)  ", results["after"]["output"], re.MULTILINE)
        print(f"{name:<14} seed {seed} kept: {', '.join(kept) or 'nothing'}")
        ratios.append(results["before"]["training_s"] / results["after"]["training_s"])
    speedup = statistics.median(ratios)
    lost = statistics.median(accuracies["before"]) - statistics.median(accuracies["after"])
    good = speedup >= SPEEDUP_WANTED[name] and (name != "fashion_mnist" or lost <= ACCURACY_BAND)
    print(f"{name:<14} {speedup:.2f} times as fast [{min(ratios):.2f}, {max(ratios):.2f}], wanted at least "
          f"{SPEEDUP_WANTED[name]}; accuracy {-lost:+.4f}: {'met' if good else 'MISSED'}")
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
