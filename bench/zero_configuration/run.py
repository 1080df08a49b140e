#!/usr/bin/env python3
"""Zero configuration (FUT-09, T-22): `headrace tune --data DIR --model NAME` on three workloads that no recipe was written for.

Each workload is tuned once without options. Then the recipe that was made (recipe.toml) and the one that came out of it
(tuned.toml) are trained as processes of their own, `headrace train`, in drawn order, another seed a round:

photographs  the folder of `make setup JOB=photos`, with resnet18: large JPEG files in splits
fashion      Fashion-MNIST as IDX files, with mlp: steps of a millisecond
tiles        64 x 64 PNG files cut from the photographs, in plain class folders, with strided_cnn: loading is most of a step

Judged is the time that all epochs train. Wanted: no workload slower by more than 2 %, and faster wherever the tuner kept
something. Where it kept nothing both recipes are one, and the row shows what the machine's noise alone looks like. Exit status 3:
a workload is missed. About 60 minutes on two cores, 5 of them for each tuning; rows in runs/zero_configuration/, from which the
next call goes on.

usage: make bench NAME=zero-configuration        or: bench/run.py zero-configuration --minutes 20 --only fashion
"""

import argparse
import functools
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import rows  # noqa: E402

PROGRAM = harness.PROGRAMS / "headrace"
TILES, TILE = 6000, 64
BASIC, TUNED = "basic", "tuned"
RECIPES = {BASIC: "recipe.toml", TUNED: "tuned.toml"}
TUNE_S = 320.0
TRAIN_S = {"photographs": 170.0, "fashion": 15.0, "tiles": 25.0}  # About, of all epochs.


@dataclass(frozen=True)
class Workload:
    name: str
    data: Path
    model: str


def make_tiles(photos: Path, folder: Path) -> Path:
    """Squares out of the training photographs, a few of each, in one folder a class. Does nothing where they are there."""
    from PIL import Image

    if (whole := folder / "whole").exists():
        return folder / "classes"
    paths = sorted((photos / "train").glob("*/*.jpg"))
    if not paths:
        raise SystemExit(f"no photographs in {photos}/train: make setup JOB=photos")
    for number in range(TILES):
        path = paths[number % len(paths)]
        image = Image.open(path).convert("RGB")
        left = number // len(paths) * 97 % max(1, image.width - 2 * TILE)
        top = number // len(paths) * 61 % max(1, image.height - 2 * TILE)
        target = folder / "classes" / path.parent.name / f"{path.stem}-{number // len(paths)}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        image.crop((left, top, left + 2 * TILE, top + 2 * TILE)).resize((TILE, TILE)).save(target, compress_level=1)
    whole.touch()
    return folder / "classes"


def tune(workload: Workload, out: Path) -> tuple[dict, float]:
    """The ledger, and how long it took. 3: nothing that is faster was found."""
    words = ["tune", "--data", workload.data, "--model", workload.model, "--out", out, "--json", "-", "--quiet"]
    done = harness.run([PROGRAM, *words], accepted=(0, 3))
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


def items(workload: Workload, found: rows.Rows, arguments: argparse.Namespace, folder: Path) -> Iterator[rows.Item]:
    def tuned() -> dict[str, Any]:
        ledger, seconds = tune(workload, folder)
        return {"ledger": ledger, "seconds": seconds}

    yield rows.Item({"workload": workload.name, "what": "tune"}, TUNE_S, tuned)
    if not found.has({"workload": workload.name, "what": "tune"}):
        return
    for seed, order in zip(range(1, arguments.rounds + 1), harness.orders(len(RECIPES), arguments.order_seed)):
        for arm in (list(RECIPES)[place] for place in order):
            yield rows.Item({"workload": workload.name, "what": "train", "arm": arm, "seed": seed}, TRAIN_S[workload.name],
                            functools.partial(train, folder / RECIPES[arm], arguments.epochs, seed))


def judge(name: str, found: rows.Rows, complete: bool) -> rows.Bar | None:
    """Whether training is faster by what was kept; None: nothing to be judged yet. Prints what was found."""
    tuning = found.figures(workload=name, what="tune")
    by_seed: dict[int, dict[str, Any]] = {}
    for key, figures in found.found(workload=name, what="train"):
        by_seed.setdefault(key["seed"], {})[key["arm"]] = figures
    both = [runs for runs in by_seed.values() if len(runs) == len(RECIPES)]
    if tuning is None or not both:
        return None
    ledger = tuning["ledger"]
    print(f"\n{name}, tuned in {tuning['seconds']:.0f} s")
    show_steps(ledger)
    speedups = [runs[BASIC]["training_s"] / runs[TUNED]["training_s"] for runs in both]
    kept = [trial["name"] for trial in ledger["trials"] if trial["verdict"] == "kept"]
    promised = ledger["speedup"]["median"] if kept else 1.0
    accuracy = {arm: statistics.median(runs[arm]["accuracy"] for runs in both) for arm in RECIPES}
    print(f"  {harness.with_interval(speedups, digits=3)} times as fast in {len(both)} rounds, promised "
          f"{harness.UNAVAILABLE if promised is None else f'{promised:.2f}'}, kept {', '.join(kept) or 'nothing'}; accuracy "
          f"{accuracy[BASIC]:.4f} to {accuracy[TUNED]:.4f}", flush=True)
    least, wanted = (1.0, "faster, as something was kept") if kept else (0.0, "nothing, as both recipes are one")
    middle = statistics.median(speedups)
    return rows.Bar(f"{name}, training beside the recipe that was made", wanted, f"{middle:.3f} times as fast",
                    rows.at_the_end(middle > least, complete))


def main() -> int:
    parser = harness.parser(__doc__, rounds=6)
    parser.add_argument("--only", choices=list(TRAIN_S), action="append")
    parser.add_argument("--epochs", type=int, help="of each training, and not the recipe's, with which the tuner reckons")
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="ImageFolder; see make setup JOB=photos")
    rows.add_options(parser, "zero_configuration")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.epochs, arguments.rounds = 1, 1
    names = arguments.only or list(TRAIN_S)
    bench = harness.Bench(__file__, arguments, f"{', '.join(names)}; {harness.interval_remark(arguments.rounds)}")
    found = rows.open_rows(arguments, "zero_configuration")
    session = rows.Session(found, arguments.minutes)
    folder, photos = (arguments.rows / f"data{'-quick' * arguments.quick}").resolve(), arguments.photos.resolve()
    workloads = {"photographs": lambda: Workload("photographs", photos, "resnet18"),
                 "fashion": lambda: Workload("fashion", harness.FASHION_MNIST, "mlp"),
                 "tiles": lambda: Workload("tiles", make_tiles(photos, folder / "tiles"), "strided_cnn")}
    complete = all(session.run(items(workloads[name](), found, arguments, folder / f"{name}-run")) for name in names)
    whole = complete and not session.lacks and set(names) == set(workloads)
    bars = [bar for name in names if (bar := judge(name, found, whole)) is not None]
    return bench.end({"bars": [str(bar) for bar in bars]}, rows.tell(session, complete, bars))


if __name__ == "__main__":
    sys.exit(main())
