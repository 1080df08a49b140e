#!/usr/bin/env python3
"""How often headrace compare raises a false alarm, and how often it finds 5 %, on a real job of a second a process.

A job against itself, and against one with 5 % more work in each step; each comparison ends when it is decided. Judged: at most one alarm in
40, and 18 of 20 found, where pairs that scatter by more than 5 % may stay inconclusive with the pairs that they need. Takes one to two
hours; exit code 3: a bar is missed. The same by drawn pairs, in a minute: make bench NAME=compare_bench.

--record keeps the pairs of the job with itself, of which that bench draws anew:
make bench NAME=compare_bench ARGS=bench/compare/recorded_pairs.json

usage: make bench NAME=compare [ARGS='--same 4 --slower 2 --record bench/compare/recorded_pairs.json']
"""

import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

JOB = Path(__file__).resolve().parent / "job.py"
METRIC, MORE, SCATTER_MAX = "step_p50_s", 0.05, 0.05
# Of the bar.
SAME, SLOWER, ALARMS_MAX, FOUND_MIN = 40, 20, 1, 18
LIMIT_S = 3600.0


@dataclass(frozen=True)
class Outcome:
    verdict: str
    change: float
    pairs: int
    scatter: float
    pairs_needed: int | None

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Outcome":
        (metric,) = document["metrics"]
        return cls(metric["verdict"], metric["change"]["median"], document["pairs"], metric["scatter"], metric["pairs_needed"])

    def is_alarm(self) -> bool:
        return self.verdict in ("regressed", "improved")

    def is_found(self) -> bool:
        """Or left open with the pairs that it needs, where the scatter is above the bar's."""
        return self.verdict == "regressed" or (self.verdict == "inconclusive" and self.scatter > SCATTER_MAX and self.pairs_needed is not None)


def rounds_of_a_second() -> int:
    """Work a step, so that a process takes about a second: of the fastest of some tries."""
    sys.path.insert(0, str(JOB.parent))
    import job

    tries = []
    for _ in range(20):
        begin = time.perf_counter()
        job.step(20)
        tries.append(time.perf_counter() - begin)
    return max(1, round(20 * 1.0 / job.STEPS / min(tries)))


def program(folder: Path, name: str, rounds: int) -> Path:
    """Arguments are alike for both, so each has a script of its own."""
    path = folder / f"{name}.py"
    path.write_text(f"import runpy, sys\nsys.argv = ['job.py', '{rounds}']\nrunpy.run_path({str(JOB)!r}, run_name='__main__')\n")
    return path


def compared(old: Path, new: Path, pairs: int, folder: Path) -> dict[str, Any]:
    """What headrace compare wrote."""
    document = folder / "compare.json"
    harness.run([harness.PROGRAMS / "headrace", "compare", old, new, "--metrics", METRIC, "--pairs", pairs, "--python", sys.executable, "--quiet",
                 "--json", document], limit_s=LIMIT_S, accepted=(0, 3))
    return json.loads(document.read_text())


def recorded(documents: list[dict[str, Any]], machine: dict[str, Any], date: str) -> dict[str, Any]:
    """The pairs of comparisons of a job with itself, one after the other, as compare_bench reads them."""
    names = documents[0]["recorded"]["metrics"]
    effects = [pair for document in documents for pair in document["recorded"]["effects"]]
    return {"format": "headrace-recorded-pairs", "version": 1, "date": date, "machine": machine,
            "recorded": {"metrics": names, "effects": effects}}


def show(title: str, outcomes: list[Outcome]) -> None:
    counts = {verdict: sum(outcome.verdict == verdict for outcome in outcomes) for verdict in ("regressed", "improved", "equivalent", "inconclusive")}
    print(f"{title}: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    if outcomes:
        print(f"  pairs {harness.with_range([outcome.pairs for outcome in outcomes])}, scatter of pairs "
              f"{harness.with_range([outcome.scatter * 100 for outcome in outcomes], 1)} %, change "
              f"{harness.with_range([outcome.change * 100 for outcome in outcomes], 1)} %", flush=True)


def judge(same: list[Outcome], slower: list[Outcome]) -> bool:
    """Shares of the bars where there are fewer comparisons; without any a bar is neither met nor missed."""
    alarms, found = sum(outcome.is_alarm() for outcome in same), sum(outcome.is_found() for outcome in slower)
    few_alarms = alarms <= max(ALARMS_MAX, ALARMS_MAX * len(same) // SAME)
    enough_found = found * SLOWER >= FOUND_MIN * len(slower)
    print(f"alarms: {alarms} of {len(same)}, wanted at most {ALARMS_MAX} of {SAME}: {'met' if few_alarms else 'MISSED'}")
    print(f"found: {found} of {len(slower)}, wanted at least {FOUND_MIN} of {SLOWER}: {'met' if enough_found else 'MISSED'}")
    return few_alarms and enough_found


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--same", type=int, default=SAME, help="comparisons of the job with itself (%(default)s)")
    parser.add_argument("--slower", type=int, default=SLOWER, help="comparisons with 5 %% more work (%(default)s)")
    parser.add_argument("--pairs", type=int, default=60, help="at most, in each (%(default)s)")
    parser.add_argument("--record", type=Path, help="file that keeps the pairs of the job with itself")
    arguments = parser.parse_args()
    if arguments.record and not arguments.same:
        parser.error("--record: wanted comparisons of the job with itself, found --same 0")
    rounds = rounds_of_a_second()
    bench = harness.Bench(__file__, arguments, f"{rounds} rounds a step; up to {arguments.pairs} pairs a comparison")
    folder = Path(tempfile.mkdtemp(prefix="headrace-compare-"))
    try:
        old, copy = program(folder, "old", rounds), program(folder, "copy", rounds)
        new = program(folder, "new", round(rounds * (1 + MORE)))
        documents = [compared(old, copy, arguments.pairs, folder) for _ in range(arguments.same)]
        same = [Outcome.of(document) for document in documents]
        show("the same job", same)
        if arguments.record:
            harness.write_json(arguments.record, recorded(documents, bench.machine, bench.date))
        slower = [Outcome.of(compared(old, new, arguments.pairs, folder)) for _ in range(arguments.slower)]
        show("5 % more work", slower)
    finally:
        shutil.rmtree(folder)
    holds = judge(same, slower)
    return bench.end({"same": [vars(outcome) for outcome in same], "slower": [vars(outcome) for outcome in slower]}, 0 if holds else 3)


if __name__ == "__main__":
    sys.exit(main())
