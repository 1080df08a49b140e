#!/usr/bin/env python3
"""Does the tuner tell good from bad? Fake knobs with a known effect through the real loop, many runs with other seeds.

Each run is `headrace tune` on 4,000 Fashion-MNIST images with five planted knobs: 10 % faster and equal, 10 % faster with
gradients 5 % off, 5 % slower, without effect, and one that throws. Counts how often each verdict is the right one.

The budget gives each knob as much as `make demo` gives a candidate.

usage: make bench NAME=planted
"""

import argparse
import collections
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import smaller_fashion  # noqa: E402

HEADRACE = harness.PROGRAMS / "headrace"
RIGHT = {
    "faster": {("kept", "none")},
    "faster_but_wrong": {("refused", "numerics")},
    "slower": {("refused", "slower"), ("refused", "no_gain")},
    "no_effect": {("refused", "no_gain"), ("refused", "slower"), ("inconclusive", "budget"), ("inconclusive", "none")},
    "throws": {("failed", "error")},
}


def tune(folder: Path, step_ms: float, seed: int, arguments: argparse.Namespace) -> dict:
    effect, harm = step_ms * arguments.effect, step_ms * arguments.harm
    planted = [
        f"{{name = 'faster', off_ms = {effect}}}",
        f"{{name = 'faster_but_wrong', off_ms = {effect}, gradient_error = {arguments.error}}}",
        f"{{name = 'slower', on_ms = {harm}}}",
        "{name = 'no_effect'}",
        "{name = 'throws', throw_probability = 0.2}",
    ]
    names = ",".join(RIGHT)
    done = harness.run(
        [HEADRACE, "tune", folder / "planted.toml", "--out", folder / f"run-{seed}", "--json", "-", "--quiet", "--seed", str(seed),
         "--tune.budget_s", str(arguments.budget), "--tune.only", names, "--tune.planted", f"[{', '.join(planted)}]"],
        accepted=(0, 3))
    return json.loads(done.output)


def write_recipe(folder: Path) -> None:
    smaller_fashion.write(folder, 4000, 500)
    recipe = (harness.ROOT / "examples/fashion_mnist.toml").read_text().replace(f"idx:{harness.FASHION_MNIST}", f"idx:{folder}")
    (folder / "planted.toml").write_text(recipe.replace("batch_size = 128", "batch_size = 32").replace("epochs = 4", "epochs = 1"))


def step_milliseconds(folder: Path) -> float:
    profile = harness.run([HEADRACE, "profile", folder / "planted.toml", "--out", folder / "profile", "--json", "-", "--quiet"])
    split = json.loads(profile.output)["time_split"]
    return split["total_s"] / split["steps"] * 1e3


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", type=float, default=50)
    parser.add_argument("--effect", type=float, default=0.10)
    parser.add_argument("--harm", type=float, default=0.05)
    parser.add_argument("--error", type=float, default=0.05)
    parser.add_argument("--first-seed", type=int, default=1)
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.runs} runs of five knobs, budget {arguments.budget:g} s each")
    counts: dict[str, collections.Counter] = {name: collections.Counter() for name in RIGHT}

    with tempfile.TemporaryDirectory(prefix="headrace-planted-") as name:
        folder = Path(name)
        write_recipe(folder)
        step_ms = step_milliseconds(folder)
        print(f"a step takes {step_ms:.2f} ms", flush=True)

        def trials(number: int) -> list[dict]:
            seed = arguments.first_seed + number - 1
            found = tune(folder, step_ms, seed, arguments)["trials"]
            for trial in found:
                counts[trial["name"]][(trial["verdict"], trial["reason"])] += 1
            print(f"seed {seed}: " + ", ".join(f"{name} {sum(counts[name][v] for v in RIGHT[name])}" for name in RIGHT), flush=True)
            return found

        bench.measure([harness.Arm("tune", trials)], arguments.runs)
    rights = {name: sum(verdicts[verdict] for verdict in RIGHT[name]) for name, verdicts in counts.items()}
    print("\n" + harness.table(["", f"right of {arguments.runs}", "verdicts"], [
        [name, str(rights[name]), ", ".join(f"{verdict} {reason} {count}" for (verdict, reason), count in verdicts.most_common())]
        for name, verdicts in counts.items()], left=(0, 2)))
    return bench.end({"right": rights, "runs": arguments.runs})


if __name__ == "__main__":
    sys.exit(main())
