#!/usr/bin/env python3
"""Zero configuration (FUT-09, T-22): `headrace tune --data DIR --model NAME` on three workloads that no recipe was written for.

Each workload is tuned once without options. Then the recipe that was made (recipe.toml) and the one that came out of it (tuned.toml)
are trained as processes of their own, `headrace train`, in drawn order, another seed a round:

photographs  the folder of `make setup JOB=photos`, with resnet18: large JPEG files in splits
fashion      Fashion-MNIST as IDX files, with mlp: steps of a millisecond
tiles        64 x 64 PNG files cut from the photographs, in plain class folders, with strided_cnn: loading is most of a step

Judged is the time that all epochs train. Wanted: no workload slower by more than 2 %, and faster wherever the tuner kept something. Where
it kept nothing both recipes are one, and the row shows what the machine's noise alone looks like. Exit status 3: a workload is missed.

usage: make bench NAME=zero-configuration        or: bench/run.py zero-configuration --only fashion --rounds 6
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

PROGRAM = harness.PROGRAMS / "headrace"
TILES, TILE = 6000, 64
BASIC, TUNED = "basic", "tuned"


@dataclass(frozen=True)
class Workload:
    name: str
    data: Path
    model: str


def make_tiles(photos: Path, folder: Path) -> Path:
    """Squares out of the training photographs, a few of each, in one folder a class."""
    from PIL import Image

    paths = sorted((photos / "train").glob("*/*.jpg"))
    if not paths:
        raise SystemExit(f"no photographs in {photos}/train: make setup JOB=photos")
    for number in range(TILES):
        path = paths[number % len(paths)]
        image = Image.open(path).convert("RGB")
        left = number // len(paths) * 97 % max(1, image.width - 2 * TILE)
        top = number // len(paths) * 61 % max(1, image.height - 2 * TILE)
        target = folder / path.parent.name / f"{path.stem}-{number // len(paths)}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.crop((left, top, left + 2 * TILE, top + 2 * TILE)).resize((TILE, TILE)).save(target, compress_level=1)
    return folder


def tune(workload: Workload, out: Path) -> tuple[dict, float]:
    """The ledger, and how long it took. 3: nothing that is faster was found."""
    done = harness.run([PROGRAM, "tune", "--data", workload.data, "--model", workload.model, "--out", out, "--json", "-", "--quiet"],
                       accepted=(0, 3))
    return json.loads(done.output), done.seconds


def train(recipe: Path, epochs: int | None, seed: int) -> dict:
    more = [] if epochs is None else ["--train.epochs", epochs]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        done = harness.run([PROGRAM, "train", recipe, "--seed", seed, *more, "--out", f"{folder}/run", "--json", "-", "--quiet"])
    document = json.loads(done.output)
    trained = document["training"]["epochs"]
    accuracy = document["test_accuracy"] if document["val_accuracy"] is None else document["val_accuracy"]
    return {"training_s": sum(epoch["seconds"] for epoch in trained), "process_s": done.seconds, "epochs": len(trained),
            "samples_per_second": statistics.median(epoch["samples_per_second"] for epoch in trained), "accuracy": accuracy}


def gain_text(trial: dict) -> str:
    if trial["gain"] is None:
        return "not measured"
    low, middle, high = (harness.UNAVAILABLE if trial["gain"][end] is None else f"{trial['gain'][end]:+.1%}"
                         for end in ("low", "median", "high"))
    return f"{middle} [{low}, {high}], {trial['pairs']} pairs"


def show_steps(ledger: dict) -> None:
    for assumption in ledger["assumed"]:
        print(f"  assumed {assumption['key']} = {assumption['value']}  # {assumption['source']}")
    for trial in ledger["trials"]:
        print(f"  {trial['verdict']:<12} {trial['name']:<24} {gain_text(trial)}")


def judge(name: str, ledger: dict, found: dict[str, list[dict]]) -> bool:
    """Whether training is faster by what was kept; prints one row."""
    speedups = harness.ratios([run["training_s"] for run in found[BASIC]], [run["training_s"] for run in found[TUNED]])
    kept = [trial["name"] for trial in ledger["trials"] if trial["verdict"] == "kept"]
    met = not kept or statistics.median(speedups) > 1
    promised = ledger["speedup"]["median"] if kept else 1.0
    accuracy = {arm: statistics.median(run["accuracy"] for run in runs) for arm, runs in found.items()}
    print(f"{name:<12} {harness.with_interval(speedups, digits=3)} times as fast, promised "
          f"{harness.UNAVAILABLE if promised is None else f'{promised:.2f}'}, kept {', '.join(kept) or 'nothing'}; accuracy "
          f"{accuracy[BASIC]:.4f} to {accuracy[TUNED]:.4f}: {'met' if met else 'MISSED'}", flush=True)
    return met


def compare(workload: Workload, arguments: argparse.Namespace, folder: Path, measure: Callable) -> dict:
    ledger, seconds = tune(workload, folder)
    print(f"{workload.name}: {workload.model} on {workload.data}, tuned in {seconds:.0f} s", flush=True)
    show_steps(ledger)

    def run(recipe: str, seed: int) -> dict:
        found = train(folder / recipe, arguments.epochs, seed)
        print(f"  {recipe:<12} seed {seed}: {found['training_s']:7.2f} s in {found['epochs']} epochs, "
              f"{found['samples_per_second']:8,.0f} samples/s, accuracy {found['accuracy']:.4f}", flush=True)
        return found

    arms = [harness.Arm(BASIC, functools.partial(run, "recipe.toml")), harness.Arm(TUNED, functools.partial(run, "tuned.toml"))]
    found = measure(arms, arguments.rounds, title=workload.name)
    return {"met": judge(workload.name, ledger, found), "tuning_s": seconds, "assumed": ledger["assumed"], "trials": ledger["trials"]}


def main() -> int:
    parser = harness.parser(__doc__, rounds=6)
    parser.add_argument("--only", choices=["photographs", "fashion", "tiles"], action="append")
    parser.add_argument("--epochs", type=int, help="of each training, instead of the recipe's; the tuner reckons with the recipe's")
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="ImageFolder; see make setup JOB=photos")
    arguments = parser.parse_args()
    names = arguments.only or ["photographs", "fashion", "tiles"]
    bench = harness.Bench(__file__, arguments, f"{', '.join(names)}; {harness.interval_remark(arguments.rounds)}")
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as temporary:
        folder = Path(temporary)
        photos = arguments.photos.resolve()
        workloads = {
            "photographs": lambda: Workload("photographs", photos, "resnet18"),
            "fashion": lambda: Workload("fashion", harness.FASHION_MNIST, "mlp"),
            "tiles": lambda: Workload("tiles", make_tiles(photos, folder / "tiles"), "strided_cnn"),
        }
        results = {name: compare(workloads[name](), arguments, folder / f"{name}-run", bench.measure) for name in names}
    met = all(result["met"] for result in results.values())
    print(f"no workload slower by more than 2 %, and faster where something was kept: {'yes' if met else 'no'}")
    return bench.end(results, 0 if met else 3)


if __name__ == "__main__":
    sys.exit(main())
