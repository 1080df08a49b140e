#!/usr/bin/env python3
"""How often hr.compare_functions calls a function slower or faster than itself, and how often it finds one that does 10 % more work.

Short functions, by turns: a loop in Python, a hash, a sort; each comparison ends when it is decided. Judged: no difference in at least 95 of
100 comparisons of a function with itself, and each of 20 slower ones found. Takes some minutes; exit code 3: a bar is missed.

usage: make bench NAME=compare-functions [ARGS='--same 12 --slower 6']
"""

import argparse
import functools
import hashlib
import itertools
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402

MORE = 0.10
# Of the bar.
SAME, SLOWER, NO_DIFFERENCE_MIN, FOUND_MIN = 100, 20, 95, 20
NO_DIFFERENCE = ("equivalent", "inconclusive")
BLOCK = bytes(2000)  # Of more bytes hashlib lets other threads run meanwhile.
VALUES = [random.Random(1).random() for _ in range(500)]


def loop(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number * number
    return total


def hashes(rounds: int) -> str:
    digest = hashlib.sha256()
    for _ in range(rounds):
        digest.update(BLOCK)
    return digest.hexdigest()


def sorts(rounds: int) -> None:
    for _ in range(rounds):
        sorted(VALUES)


# Rounds of which 10 % are a whole number: 30 us to 1 ms a call.
WORKS: list[tuple[Callable[[int], object], int]] = [(loop, 2000), (hashes, 40), (sorts, 10)]


@dataclass(frozen=True)
class Outcome:
    work: str
    verdict: str
    change: float
    pairs: int
    scatter: float
    seconds: float


def compared(work: Callable[[int], object], old_rounds: int, new_rounds: int, pairs: int, seed: int) -> Outcome:
    old = functools.partial(work, old_rounds)
    new = old if new_rounds == old_rounds else functools.partial(work, new_rounds)
    begin = time.perf_counter()
    found = hr.compare_functions(old, new, pairs=pairs, seed=seed)
    seconds = time.perf_counter() - begin
    return Outcome(work.__name__, found.verdict, found.slowdown["median"], found["pairs"], found["metrics"][0]["scatter"], seconds)


def comparisons(count: int, more: float, arguments: argparse.Namespace) -> list[Outcome]:
    seeds = itertools.count(arguments.order_seed * 1_000_000)
    return [compared(work, rounds, round(rounds * (1 + more)), arguments.pairs, next(seeds))
            for work, rounds in itertools.islice(itertools.cycle(WORKS), count)]


def show(title: str, outcomes: list[Outcome]) -> None:
    counts = {verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in ("regressed", "improved", *NO_DIFFERENCE)}
    print(f"{title}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    if outcomes:
        print(f"  pairs {harness.with_range([outcome.pairs for outcome in outcomes])}, scatter of pairs "
              f"{harness.with_range([outcome.scatter * 100 for outcome in outcomes], 1)} %, change "
              f"{harness.with_range([outcome.change * 100 for outcome in outcomes], 1)} %, "
              f"{harness.with_range([outcome.seconds for outcome in outcomes], 1)} s a comparison", flush=True)


def judge(same: list[Outcome], slower: list[Outcome]) -> bool:
    """Shares of the bars where there are fewer comparisons; without any a bar is neither met nor missed."""
    alike, found = sum(outcome.verdict in NO_DIFFERENCE for outcome in same), sum(outcome.verdict == "regressed" for outcome in slower)
    few_alarms = alike * SAME >= NO_DIFFERENCE_MIN * len(same)
    enough_found = found * SLOWER >= FOUND_MIN * len(slower)
    print(f"no difference: {alike} of {len(same)}, wanted at least {NO_DIFFERENCE_MIN} of {SAME}: {'met' if few_alarms else 'MISSED'}")
    print(f"found: {found} of {len(slower)}, wanted {FOUND_MIN} of {SLOWER}: {'met' if enough_found else 'MISSED'}")
    return few_alarms and enough_found


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--same", type=int, default=SAME, help="comparisons of a function with itself (%(default)s)")
    parser.add_argument("--slower", type=int, default=SLOWER, help="comparisons with one that does 10 %% more (%(default)s)")
    parser.add_argument("--pairs", type=int, default=200, help="at most, in each (%(default)s)")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{', '.join(work.__name__ for work, _ in WORKS)}; up to {arguments.pairs} pairs a comparison")
    same = comparisons(arguments.same, 0, arguments)
    show("the same function", same)
    slower = comparisons(arguments.slower, MORE, arguments)
    show("10 % more work", slower)
    holds = judge(same, slower)
    return bench.end({"same": [vars(outcome) for outcome in same], "slower": [vars(outcome) for outcome in slower]}, 0 if holds else 3)


if __name__ == "__main__":
    sys.exit(main())
