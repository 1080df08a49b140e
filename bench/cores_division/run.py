#!/usr/bin/env python3
"""Is the division of the cores that `headrace tune` finds as good as the best? Loader threads by compute threads, on three jobs.

The jobs: photographs with random crops and flips for a network that takes little (data-bound), the same for ResNet-18 at 64 x 64
(balanced), and Fashion-MNIST for a small CNN (compute-bound). What share of a step each waits for data, as written, is printed.
`headrace tune` may change nothing but data.num_workers and compute.intra_op_threads; transforms are work of the loader threads.
Then every cell of the grid, the tuned one among them, is measured in drawn order, once a round: the traced steps of
`headrace profile`, in a process of its own.

A job is met where the tuned cell makes at least 0.95 times the samples a second of the best cell, which is the one with the
highest median: the median of the ratios round by round (ORCH-15 of docs/requirements.md). Exit status 3: a job is missed. On a
machine whose cores others take, tune does not try their division, and says so. About 20 minutes on two cores; rows in
runs/cores_division/, from which the next call goes on.

usage: make bench NAME=cores-division        or: ARGS='--minutes 10 --only balanced'
"""

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
import rows  # noqa: E402
import smaller_fashion  # noqa: E402

HEADRACE = harness.PROGRAMS / "headrace"
WORKERS, THREADS = "data.num_workers", "compute.intra_op_threads"
# Everything else that is tried.
FIXED = ("model", "optimizer", "train", "compute.allocator", "compute.flush_denormal", "compute.wait_policy", "data.index",
         "data.scale_decode", "data.cache", "data.prefetch_batches")
WANTED = 0.95
CELL_S = 15.0  # That a cell takes once, about.

Cell = tuple[int, int]  # Loader threads, compute threads.


@dataclass(frozen=True)
class Job:
    recipe: str  # Of examples/.
    steps: int  # That are measured of a cell.
    flags: tuple[str, ...] = ()

    def run(self, verb: str, out: Path, *flags: object, accepted: Sequence[int] = (0,)) -> dict[str, Any]:
        words = [HEADRACE, verb, harness.ROOT / "examples" / self.recipe, *self.flags, *flags, "--out", out]
        return json.loads(harness.run([*words, "--json", "-", "--quiet"], accepted=accepted).output)


def jobs_of(photos: Path, fashion: Path) -> dict[str, Job]:
    photographs = ("--data.source", f"folder:{photos}")
    return {"data-bound": Job("photos_small.toml", 40, photographs),
            "balanced": Job("photos_resnet18.toml", 40, (*photographs, "--data.transform.size", "64")),
            "compute-bound": Job("fashion_mnist.toml", 60, ("--data.source", f"idx:{fashion}"))}


def grid(cores: int) -> list[Cell]:
    """All cells where there are few cores, else each side by quarters and at its ends."""
    quarters = {cores // 4, cores // 2, cores - cores // 4}
    loading = sorted({0, 1, cores} | (set(range(cores)) if cores <= 4 else quarters))
    computing = sorted(({1, cores - 1, cores} | (set(range(cores)) if cores <= 4 else quarters)) - {0})
    return [(loaders, threads) for loaders in loading for threads in computing]


def cell_of(settings: Mapping[str, str], written: Cell) -> Cell:
    """With what a ledger says is best."""
    return int(settings.get(WORKERS, written[0])), int(settings.get(THREADS, written[1]))


def tuned_ratios(found: Mapping[Cell, Sequence[float]], tuned: Cell) -> tuple[Cell, list[float]]:
    """The best cell, and the tuned one's samples a second over its, round by round."""
    best = max(found, key=lambda cell: statistics.median(found[cell]))
    return best, harness.ratios(found[tuned], found[best])


def text_of(cell: Cell) -> str:
    return f"{cell[0]} loading, {cell[1]} computing"


def tune(job: Job, budget_s: float, out: Path) -> dict[str, Any]:
    return job.run("tune", out, "--train.epochs", 1, "--tune.budget_s", budget_s, "--tune.fixed", ",".join(FIXED),
                   accepted=(0, 3))


def profile(job: Job, cell: Cell, number: int, out: Path) -> dict[str, float]:
    document = job.run("profile", out, "--steps", job.steps, "--seed", number, f"--{WORKERS}", cell[0], f"--{THREADS}", cell[1])
    return {"samples_per_second": document["samples_per_second"], "data_wait": document["time_split"]["share"]["data_wait"]}


def cells_of(ledger: Mapping[str, Any], cores: int) -> tuple[list[Cell], Cell, Cell]:
    """All that are measured, the one that is written and the one that was tuned."""
    written = (1, cores)  # All three recipes say num_workers = 1 and leave the compute threads to headrace.
    tuned = cell_of(ledger["best"]["settings"], written)
    return list(dict.fromkeys([*grid(cores), written, tuned])), written, tuned


def items(name: str, job: Job, found: rows.Rows, cores: int, folder: Path, arguments: argparse.Namespace) -> Iterator[rows.Item]:
    yield rows.Item({"job": name, "what": "tune"}, arguments.budget + 15,
                    functools.partial(tune, job, arguments.budget, folder / f"{name}-tune"))
    ledger = found.figures(job=name, what="tune")
    if ledger is None:
        return
    cells, _, _ = cells_of(ledger, cores)
    for number, order in zip(range(1, arguments.rounds + 1), harness.orders(len(cells), arguments.order_seed)):
        for cell in (cells[place] for place in order):
            yield rows.Item({"job": name, "what": "cell", "loading": cell[0], "computing": cell[1], "round": number}, CELL_S,
                            functools.partial(profile, job, cell, number, folder / f"{name}-{cell[0]}-{cell[1]}-{number}"))


def judge(name: str, job: Job, found: rows.Rows, cores: int, complete: bool) -> rows.Bar | None:
    """None: nothing to be judged yet. Prints what was found."""
    ledger = found.figures(job=name, what="tune")
    if ledger is None:
        return None
    cells, written, tuned = cells_of(ledger, cores)
    rounds: dict[int, dict[Cell, dict[str, float]]] = {}
    for key, figures in found.found(job=name, what="cell"):
        rounds.setdefault(key["round"], {})[key["loading"], key["computing"]] = figures
    whole = [own for own in rounds.values() if own.keys() >= set(cells)]
    if not whole:
        return None
    print(f"\n{name}: {job.recipe} {' '.join(job.flags)}\n{ledger['quietness']['sentence']}")
    for trial in ledger["trials"]:
        if trial["reason"] != "fixed":
            print(f"  {trial['verdict']:<12} {trial['name']}: {trial['sentence']}", flush=True)
    speeds = {cell: [own[cell]["samples_per_second"] for own in whole] for cell in cells}
    best, ratios = tuned_ratios(speeds, tuned)
    waits = statistics.median(own[written]["data_wait"] for own in whole)
    print(harness.arms_table({text_of(cell): values for cell, values in speeds.items()}, "samples/s", 1, text_of(best)))
    print(f"as written ({text_of(written)}) it waits for data {waits:.0%} of a step; tuned: {text_of(tuned)}, "
          f"{statistics.median(harness.ratios(speeds[tuned], speeds[written])):.2f} times as fast", flush=True)
    return rows.Bar(f"{name}, tuned over the best cell ({text_of(best)})", f"at least {WANTED}",
                    f"{harness.with_interval(ratios, digits=3)}", rows.at_the_end(statistics.median(ratios) >= WANTED, complete))


def main() -> int:
    parser = harness.parser(__doc__, rounds=3)
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos", help="ImageFolder; see make setup JOB=photos")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tune for each job (%(default)s)")
    parser.add_argument("--only", choices=list(jobs_of(Path(), Path())), action="append", help="jobs; may be given again")
    rows.add_options(parser, "cores_division")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.budget, arguments.rounds = 3.0, 1
    cores = len(os.sched_getaffinity(0))
    bench = harness.Bench(__file__, arguments, f"{len(grid(cores))} cells of {cores} cores, tune with {arguments.budget:g} s; "
                          f"{harness.interval_remark(arguments.rounds)}")
    found = rows.open_rows(arguments, "cores_division")
    session = rows.Session(found, arguments.minutes)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as temporary:
        folder = Path(temporary)
        fashion = folder / "fashion"
        fashion.mkdir()
        smaller_fashion.write(fashion, 8000, 1000)
        jobs = jobs_of(arguments.photos.resolve(), fashion)
        names = arguments.only or list(jobs)
        complete = all(session.run(items(name, jobs[name], found, cores, folder, arguments)) for name in names)
    whole = complete and not session.lacks and set(names) == set(jobs)
    bars = [bar for name in names if (bar := judge(name, jobs[name], found, cores, whole)) is not None]
    return bench.end({"bars": [str(bar) for bar in bars]}, rows.tell(session, complete, bars))


if __name__ == "__main__":
    sys.exit(main())
