#!/usr/bin/env python3
"""A step of ResNet-18 at 32 x 32, batch 128, with what `headrace tune` finds in four minutes, beside PyTorch's best ways.

tuned           `headrace profile` of tuned.toml, which `headrace tune --data DIR --model resnet18` has written: loading included.
recipe          the same of recipe.toml, the recipe before it was tuned.
channels-last   the plain loop in Python, eager, torch.optim.SGD(fused=True), on batches that lie in memory: nothing is loaded.
torch.compile   the same with torch.compile(model), in PyTorch's own layout and in channels-last; compiling is timed apart.

The images are noise, of ten classes, which is no matter to a step's time; there is no CIFAR-10 here, and no accuracy. First it is
tuned, alone; then the arms take turns, the rivals in this process and ours in one of its own each time. Wanted: tuned at least 0.98
times as many images/s as the best of the rivals; 1.25 times is a stretch. Every figure is printed as it is measured.
Exit status 3: the bar is missed.

usage: make bench NAME=resnet-cifar        or: bench/run.py resnet-cifar --rounds 3 --steps 4
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import rows  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torch import nn  # noqa: E402

from cifar_resnet import cifar_resnet18  # noqa: E402

PROGRAM = harness.PROGRAMS / "headrace"
SIDE, CLASSES, BATCH = 32, 10, 128
IMAGES = 9_216  # With a tenth held out, 64 batches are left, by which the tuner needs no part twice.
LEAST, STRETCH = 0.98, 1.25
TUNED, RECIPE, CHANNELS_LAST, COMPILED, COMPILED_LAST = (
    "tuned", "recipe", "channels-last", "torch.compile", "torch.compile, channels-last")
RIVALS = (CHANNELS_LAST, COMPILED, COMPILED_LAST)
OPTIMIZER = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}
WARM_UP_STEPS = 2
COST_OF_BUDGET = 1.5  # All of `headrace tune` takes at most 1.45 times tune.budget_s (kCostMax of src/engine/verbs/tune.cpp), and starts.


def make_images(folder: Path, count: int) -> None:
    """PNG files of noise, as many of each class."""
    drawn = random.Random(1)
    for number in range(count):
        target = folder / f"class{number % CLASSES}" / f"{number:06}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (SIDE, SIDE), drawn.randbytes(3 * SIDE * SIDE)).save(target, compress_level=1)


def tune(data: Path, out: Path, minutes: float) -> tuple[dict[str, Any], float]:
    """The ledger, and the seconds that it took. 3: nothing that is faster was found."""
    words = ["tune", "--data", data, "--model", "resnet18", "--out", out, "--tune.budget_s", 60 * minutes / COST_OF_BUDGET,
             "--data.batch_size", BATCH, "--optimizer.name", "sgd",
             *(word for name, value in OPTIMIZER.items() for word in (f"--optimizer.{name}", value)), "--json", "-", "--quiet"]
    done = harness.run([PROGRAM, *words], accepted=(0, 3))
    ledger = json.loads(done.output)
    print(f"tuned in {done.seconds:.0f} s: kept {', '.join(kept(ledger)) or 'nothing'}", flush=True)
    return ledger, done.seconds


def kept(ledger: Mapping[str, Any]) -> list[str]:
    return [trial["name"] for trial in ledger["trials"] if trial["verdict"] == "kept" and not trial["removed_again"]]


def profiled(recipe: Path, steps: int, seed: int) -> float:
    """Images/s of our program."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        words = ["profile", recipe, "--seed", seed, "--steps", steps, "--out", f"{folder}/run", "--json", "-", "--quiet"]
        return json.loads(harness.run([PROGRAM, *words]).output)["samples_per_second"]


class Rival:
    """A plain loop. The batches lie in memory in the network's layout."""

    def __init__(self, channels_last: bool, compiles: bool) -> None:
        torch.manual_seed(1)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self._model = cifar_resnet18().to(memory_format=layout)
        self._called: Callable[[torch.Tensor], torch.Tensor] = torch.compile(self._model) if compiles else self._model
        self._optimizer = torch.optim.SGD(self._model.parameters(), **OPTIMIZER, fused=True)
        self._images = torch.randn(BATCH, 3, SIDE, SIDE).to(memory_format=layout)
        self._labels = torch.randint(CLASSES, (BATCH,))

    def step(self) -> None:
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._called(self._images), self._labels).backward()
        self._optimizer.step()

    def images_per_second(self, steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        return steps * BATCH / (time.perf_counter() - begin)


def made(name: str) -> Rival | str:
    """A rival after its first steps, of which compiling is one; or why there is none."""
    begin = time.perf_counter()
    rival = Rival(channels_last=name != COMPILED, compiles=name != CHANNELS_LAST)
    try:
        for _ in range(WARM_UP_STEPS):
            rival.step()
    except Exception as error:  # noqa: BLE001 - of a compiler that may lack its own; the others are measured.
        return f"{type(error).__name__}: {error}".splitlines()[0]
    print(f"{name}: {time.perf_counter() - begin:.1f} s to its first {WARM_UP_STEPS} steps' end", flush=True)
    return rival


def told(name: str, work: Callable[[int], float], number: int) -> float:
    """The figure of a round, printed at once."""
    rate = work(number)
    print(f"round {number}, {name}: {rate:.1f} images/s", flush=True)
    return rate


def bars(found: Mapping[str, Sequence[float]], reasons: Mapping[str, str]) -> list[rows.Bar]:
    """Images/s by arm, round by round, and why a rival has none."""
    medians = {name: statistics.median(found[name]) for name in RIVALS if name in found}
    if not medians:
        raise SystemExit(f"no rival ran: {dict(reasons)}")
    best = max(medians, key=lambda name: medians[name])
    shares = harness.ratios(found[TUNED], found[best])
    text = f"{harness.with_interval(shares, 'times', 3)} of {best}"
    judged = [rows.Bar(f"images/s, {TUNED} over the best rival", f"at least {least:g} times", text,
                       rows.once_complete(statistics.median(shares) >= least, not reasons), least == STRETCH) for least in (LEAST, STRETCH)]
    return [*judged, *(rows.Bar(f"images/s, {name}", "a figure", f"{harness.UNAVAILABLE}: {reason}", None)
                       for name, reason in reasons.items())]


def time_bar(seconds: float, minutes: float) -> rows.Bar:
    return rows.Bar("headrace tune, all of it", f"at most {60 * minutes:.0f} s", f"{seconds:.0f} s", seconds <= 60 * minutes)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = harness.parser(__doc__, rounds=7)
    parser.add_argument("--steps", type=int, default=5, help="of an arm in a round (%(default)s)")
    parser.add_argument("--minutes", type=rows.positive, default=4.0, help="for headrace tune (%(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the rivals; ours is tuned (%(default)s)")
    return parser.parse_args(words)


def main() -> int:
    arguments = parsed()
    torch.set_num_threads(arguments.threads)  # Before anything is compiled, which fixes their number.
    bench = harness.Bench(__file__, arguments, f"batch {BATCH}, {arguments.steps} steps of an arm in a round, {arguments.threads} threads; "
                                               f"{harness.interval_remark(arguments.rounds)}")
    with tempfile.TemporaryDirectory(prefix="headrace-resnet-cifar-") as scratch:
        folder = Path(scratch)
        make_images(folder / "data", IMAGES)
        ledger, seconds = tune(folder / "data", folder / "run", arguments.minutes)
        rivals = {name: made(name) for name in RIVALS}
        reasons = {name: rival for name, rival in rivals.items() if isinstance(rival, str)}
        works: dict[str, Callable[[int], float]] = {
            name: partial(lambda recipe, seed: profiled(recipe, arguments.steps, seed), folder / "run" / file)
            for name, file in ((TUNED, "tuned.toml"), (RECIPE, "recipe.toml"))}
        works |= {name: partial(lambda rival, _: rival.images_per_second(arguments.steps), rival) for name, rival in rivals.items()
                  if isinstance(rival, Rival)}
        arms = [harness.Arm(name, partial(told, name, work)) for name, work in works.items()]
        found = bench.measure(arms, arguments.rounds, title="images/s")
    print(f"\n{harness.arms_table(found, 'images/s', 1, CHANNELS_LAST)}")
    lines = [*bars(found, reasons), time_bar(seconds, arguments.minutes)]
    print("\n" + "\n".join(map(str, lines)), flush=True)
    missed = any(bar.met is False and not bar.stretch for bar in lines)
    return bench.end({"kept": kept(ledger), "seconds": seconds, "ledger": ledger, "bars": [str(bar) for bar in lines]}, 3 if missed else 0)


if __name__ == "__main__":
    sys.exit(main())
