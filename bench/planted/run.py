#!/usr/bin/env python3
"""Does the tuner tell good from bad? Fake knobs with a known effect through the real loop, many runs with other seeds.

Each run is `headrace tune` on 4,000 Fashion-MNIST pictures with five planted knobs: 10 % faster and equal, 10 % faster with
gradients 5 % off, 5 % slower, without effect, and one that throws. Counts how often each verdict is the right one.

The budget gives each knob as much as `make demo` gives a candidate.

usage: run.py [--runs 20] [--budget 50] [--effect 0.10] [--harm 0.05] [--error 0.05] [--first-seed 1]
"""

import argparse
import collections
import gzip
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SOURCE = pathlib.Path("/usr/share/datasets/fashion-mnist")
HEADRACE = ROOT / "build/release/bin/headrace"
RIGHT = {
    "faster": {("kept", "none")},
    "faster_but_wrong": {("refused", "numerics")},
    "slower": {("refused", "slower"), ("refused", "no_gain")},
    "no_effect": {("refused", "no_gain"), ("refused", "slower"), ("inconclusive", "budget"), ("inconclusive", "none")},
    "throws": {("failed", "error")},
}


def cut(source: pathlib.Path, target: pathlib.Path, count: int) -> None:
    """The first `count` entries of a gzip IDX file."""
    with gzip.open(source) as file:
        magic, _ = struct.unpack(">2I", file.read(8))
        dimensions = file.read(4 * ((magic & 0xFF) - 1))
        size = 1
        for i in range(0, len(dimensions), 4):
            size *= struct.unpack(">I", dimensions[i : i + 4])[0]
        body = file.read(count * size)
    with gzip.open(target, "wb", 1) as file:
        file.write(struct.pack(">2I", magic, count) + dimensions + body)


def tune(folder: pathlib.Path, step_ms: float, seed: int, arguments: argparse.Namespace) -> dict:
    effect, harm = step_ms * arguments.effect, step_ms * arguments.harm
    planted = [
        f"{{name = 'faster', off_ms = {effect}}}",
        f"{{name = 'faster_but_wrong', off_ms = {effect}, gradient_error = {arguments.error}}}",
        f"{{name = 'slower', on_ms = {harm}}}",
        "{name = 'no_effect'}",
        "{name = 'throws', throw_probability = 0.2}",
    ]
    names = ",".join(RIGHT)
    result = subprocess.run(
        [HEADRACE, "tune", folder / "planted.toml", "--out", folder / f"run-{seed}", "--json", "-", "--quiet", "--seed", str(seed),
         "--tune.budget_s", str(arguments.budget), "--tune.only", names, "--tune.planted", f"[{', '.join(planted)}]"],
        capture_output=True, text=True)
    if result.returncode not in (0, 3):
        sys.exit(f"tune failed: {result.stderr}")
    return json.loads(result.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", type=float, default=50)
    parser.add_argument("--effect", type=float, default=0.10)
    parser.add_argument("--harm", type=float, default=0.05)
    parser.add_argument("--error", type=float, default=0.05)
    parser.add_argument("--first-seed", type=int, default=1)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="headrace-planted-") as name:
        folder = pathlib.Path(name)
        for split, count in (("train", 4000), ("t10k", 500)):
            for kind in ("images-idx3", "labels-idx1"):
                cut(SOURCE / f"{split}-{kind}-ubyte.gz", folder / f"{split}-{kind}-ubyte.gz", count)
        recipe = (ROOT / "examples/fashion_mnist.toml").read_text().replace(f"idx:{SOURCE}", f"idx:{folder}")
        (folder / "planted.toml").write_text(recipe.replace("batch_size = 128", "batch_size = 32").replace("epochs = 4", "epochs = 1"))
        profile = subprocess.run([HEADRACE, "profile", folder / "planted.toml", "--out", folder / "profile", "--json", "-", "--quiet"],
                                 capture_output=True, text=True, check=True)
        split = json.loads(profile.stdout)["time_split"]
        step_ms = split["total_s"] / split["steps"] * 1e3
        print(f"a step takes {step_ms:.2f} ms; budget {arguments.budget:g} s a run of five knobs", flush=True)

        counts: dict[str, collections.Counter] = {name: collections.Counter() for name in RIGHT}
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.runs):
            for trial in tune(folder, step_ms, seed, arguments)["trials"]:
                counts[trial["name"]][(trial["verdict"], trial["reason"])] += 1
            print(f"seed {seed}: " + ", ".join(f"{name} {sum(counts[name][v] for v in RIGHT[name])}" for name in RIGHT), flush=True)
    print()
    for name, verdicts in counts.items():
        right = sum(verdicts[verdict] for verdict in RIGHT[name])
        words = ", ".join(f"{verdict} {reason} {count}" for (verdict, reason), count in verdicts.most_common())
        print(f"{name:18s} {right:3d} of {arguments.runs} right   ({words})")


if __name__ == "__main__":
    main()
