#!/usr/bin/env python3
"""What a Loader's threads, processes and prefetching save where reading waits: the times that DATA-05, -06, -07, -14 and -17
of docs/requirements.md name.

Samples sleep in Python in place of a disk or a network, and so does the loop, so that the cores add little to any figure.

DATA-05  500 samples of 0 to 8 ms: 8 threads in less time than one, in the order asked for and out of it.
DATA-06  200 epochs of samples that take 20 ms are left after their first batch: each within 1 s.
DATA-07  100 samples of 10 ms and a step of 10 ms: under 1.25 s with prefetching, about 2 s without; how much of it the statistics say overlaps:
         2 s of work in less than 1.25 s have more than 0.75 s at once.
DATA-14  48 samples of 20 ms: 4 threads, and 4 processes, in less than 40 % of the time without.
DATA-17  a batch is asked for, 50 ms of other work done, and then it is there in less than 5 ms; with
         enable_async_data_loading=False the same call takes as long as loading, 20 ms.

"About" is at least what the sleeps add up to and less than a quarter more.

Samples are checked: each once, in the order wanted. Exit status 1: a time is missed.

usage: make bench NAME=loader-timing
"""

import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import numpy  # noqa: E402  No torch here: workers import this script.

REQUESTS, READING_S, WORK_S, EPOCHS_LEFT = 20, 0.02, 0.05, 200


class Sleeps:
    """Sample i takes seconds[i]; i is its label."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int):
        if self.is_asked:
            time.sleep(self.seconds[index])
        self.is_asked = True
        return numpy.zeros((1, 1), numpy.uint8), index

    is_asked = False  # Before the first sample, which only shows what images are like.


def loader_of(seconds: list[float], **options):
    import headrace as hr

    return hr.Loader(Sleeps(seconds), shuffle=False, batch_size=1, **options)


def check(loader, labels: list[int], in_order: bool = True) -> None:
    if (labels if in_order else sorted(labels)) != list(range(len(labels))):
        raise SystemExit(f"samples are missing, come twice or in another order: {labels}")
    if processes := loader.worker_processes:
        if os.getpid() in processes or len(set(processes)) != loader.options["num_workers"]:
            raise SystemExit(f"workers are the processes {processes}, this one is {os.getpid()}")


def seconds_of_an_epoch(loader, in_order: bool = True) -> float:
    begin = time.perf_counter()
    labels = [label for _, batch in loader for label in batch.tolist()]
    taken = time.perf_counter() - begin
    check(loader, labels, in_order)
    return taken


def seconds_with_a_step(loader, step_s: float) -> tuple[float, float]:
    """Of an epoch, and how much of it the statistics count twice: as loading and as the loop's own."""
    def busy() -> float:
        now = loader.statistics()
        return now["busy_s"] + next(stage["busy_s"] for stage in now["stages"] if stage["name"] == "consume")

    labels, before, begin = [], busy(), time.perf_counter()
    for _, batch in loader:
        labels += batch.tolist()
        time.sleep(step_s)
    taken = time.perf_counter() - begin
    check(loader, labels)
    return taken, busy() - before - taken


def collecting_s(loader) -> float:
    """The longest that a batch was waited for which had been asked for while other work was done."""
    batches, longest = iter(loader), 0.0
    for wanted in range(REQUESTS):
        request = batches.request()
        time.sleep(WORK_S)
        begin = time.perf_counter()
        label = request.result()[1].item()
        longest = max(longest, time.perf_counter() - begin)
        if label != wanted:
            raise SystemExit(f"request {wanted} gave sample {label}")
    return longest


def leaving_s(loader) -> float:
    """The longest that leaving an epoch in its first batch took."""
    longest = 0.0
    for _ in range(EPOCHS_LEFT):
        batches = iter(loader)
        next(batches)
        begin = time.perf_counter()
        del batches
        longest = max(longest, time.perf_counter() - begin)
    return longest


def asking_s(loader) -> float:
    """How long an epoch's first request takes."""
    batches = iter(loader)
    begin = time.perf_counter()
    batches.request()
    return time.perf_counter() - begin


def arms() -> dict[str, Callable]:
    drawn = random.Random(1)
    durations = [drawn.uniform(0, 0.008) for _ in range(500)]
    even, twenty = [0.01] * 100, [0.02] * 48
    eight = {"num_workers": 8, "prefetch_batches": 16}
    return {
        "1 thread": partial(seconds_of_an_epoch, loader_of(durations, num_workers=1)),
        "8 threads": partial(seconds_of_an_epoch, loader_of(durations, **eight)),
        "8 threads, out of order": partial(seconds_of_an_epoch, loader_of(durations, in_order=False, **eight), False),
        "leaving": partial(leaving_s, loader_of(twenty, num_workers=4)),
        "with prefetching": partial(seconds_with_a_step, loader_of(even, num_workers=1), 0.01),
        "without": partial(seconds_with_a_step, loader_of(even, num_workers=0), 0.01),
        "the loop reads": partial(seconds_of_an_epoch, loader_of(twenty, num_workers=0)),
        "4 threads": partial(seconds_of_an_epoch, loader_of(twenty, num_workers=4, prefetch_batches=8)),
        "4 processes": partial(seconds_of_an_epoch, loader_of(twenty, num_workers=4, worker_type="process", prefetch_batches=8)),
        "collecting": partial(collecting_s, loader_of([READING_S] * REQUESTS, num_workers=1)),
        "asking": partial(asking_s, loader_of([READING_S] * REQUESTS, num_workers=1)),
        "asking without": partial(asking_s, loader_of([READING_S] * REQUESTS, num_workers=1, enable_async_data_loading=False)),
    }


class Table:
    def __init__(self) -> None:
        self.missed = 0

    def judge(self, name: str, values: list[float], unit: str, wanted: str, is_met: Callable[[float], bool]) -> None:
        median = statistics.median(values)
        met = is_met(median)
        self.missed += not met
        print(f"{name:<62} {harness.with_interval(values, unit, 3)}, wanted {wanted}: {'met' if met else 'MISSED'}")


def show(found: dict[str, list]) -> int:
    """Prints a line a time; returns how many are missed."""
    table = Table()

    def shares(name: str, of: str) -> list[float]:
        return harness.ratios(found[name], found[of])

    def milliseconds(name: str) -> list[float]:
        return [1000 * value for value in found[name]]

    for name in ("8 threads", "8 threads, out of order"):
        table.judge(f"DATA-05  {name}, of the time of 1 thread", shares(name, "1 thread"), "", "less", lambda share: share < 1)
    table.judge(f"DATA-06  leaving {EPOCHS_LEFT} epochs early, the longest", milliseconds("leaving"), "ms", "under 1,000", lambda ms: ms < 1000)
    table.judge("DATA-07  with prefetching", [taken for taken, _ in found["with prefetching"]], "s", "under 1.25", lambda s: s < 1.25)
    table.judge("DATA-07  of it loading and the step at once", [overlap for _, overlap in found["with prefetching"]], "s", "over 0.75",
                lambda s: s > 0.75)
    table.judge("DATA-07  without", [taken for taken, _ in found["without"]], "s", "2 to 2.5", lambda s: 2 <= s < 2.5)
    for name in ("4 threads", "4 processes"):
        table.judge(f"DATA-14  {name}, of the time that the loop takes to read", shares(name, "the loop reads"), "", "under 0.4",
                    lambda share: share < 0.4)
    table.judge("DATA-17  collecting after 50 ms of other work, the longest", milliseconds("collecting"), "ms", "under 5", lambda ms: ms < 5)
    table.judge("DATA-17  asking", milliseconds("asking"), "ms", "under 5", lambda ms: ms < 5)
    table.judge("DATA-17  asking with enable_async_data_loading=False", milliseconds("asking without"), "ms", "20 to 25",
                lambda ms: 20 <= ms < 25)
    return table.missed


def main() -> int:
    arguments = harness.parser(__doc__, rounds=3).parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds after one that is not counted; "
                          f"{harness.interval_remark(arguments.rounds)}")
    timed = [harness.Arm(name, lambda _, time_it=time_it: time_it()) for name, time_it in arms().items()]
    missed = show(bench.measure(timed, arguments.rounds, warm_up=1))
    print(f"\n{missed} missed", flush=True)
    return bench.end({"missed": missed}, 1 if missed else 0)


if __name__ == "__main__":
    sys.exit(main())
