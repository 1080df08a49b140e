"""Changes planted into a live run, and traps: bf16 without AMX, threads that fight, a random loss, a model that recompiles.

usage: make bench NAME=live-tuning ARGS='traps --minutes 60'

Each of --runs runs of each case is a process of its own with another seed, which ends when hr.autotune has decided. Planted, all
five at once: 10 % faster and equal, 10 % faster with gradients 5 % off, 5 % slower, without effect, and one that raises. The
traps: bf16 with oneDNN held to AVX-512, which computes it by way of float32; a change beside which as many threads spin as there
are cores; the first two of the planted changes in a loop whose loss is multiplied by a random number, so that no two gradients
are alike; torch.compile of a model that is called with another number of inputs each time. Wanted: the right verdict with the
right reason in 20 of 20 runs of each.
"""

import argparse
import collections
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import harness
import rows

HERE = Path(__file__).resolve().parent
RUNS = 20
FASTER, WRONG, SLOWER, NOTHING, THROWS = "faster", "faster-but-wrong", "slower", "no-effect", "throws"
SPINNING, BF16, COMPILE = "spinning", "bf16 autocast", "torch.compile"
KEPT, NUMERICS, ERROR = ("kept", "none"), ("refused", "numerics"), ("failed", "error")
LEFT = {("refused", "slower"), ("refused", "no_gain")}
# By case and change, verdicts that are right. One without effect need not be decided.
RIGHT: dict[str, dict[str, set[tuple[str, str]]]] = {
    "planted": {FASTER: {KEPT}, WRONG: {NUMERICS}, SLOWER: LEFT,
                NOTHING: {*LEFT, ("inconclusive", "none"), ("inconclusive", "budget")}, THROWS: {ERROR}},
    "bf16 without AMX": {BF16: LEFT},
    "fighting threads": {SPINNING: LEFT},
    "random loss": {FASTER: {KEPT}, WRONG: {NUMERICS}},
    "recompiling": {COMPILE: {ERROR}}}
SAYS = {COMPILE: "recompilations"}  # What the sentence has to hold.
SECONDS = {"planted": 60.0, "bf16 without AMX": 30.0, "fighting threads": 60.0, "random loss": 60.0, "recompiling": 150.0}
TYPICAL_S = {"planted": 35.0, "bf16 without AMX": 15.0, "fighting threads": 25.0, "random loss": 30.0, "recompiling": 45.0}
ENVIRONMENT = {"bf16 without AMX": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}
QUICK = ("planted", "random loss")


def run(case: str, seed: int, seconds: float) -> dict[str, Any]:
    request = {"case": case, "seed": seed, "seconds": seconds, "changes": list(RIGHT[case])}
    return harness.run_json([sys.executable, HERE / "trap_loop.py", json.dumps(request)],
                            environment={**harness.python_path(), **ENVIRONMENT.get(case, {})}, limit_s=3 * seconds + 180)


def items(arguments: argparse.Namespace) -> Iterator[rows.Item]:
    """All cases in turns, so that a call that ends early has some of each."""
    for seed in range(1, arguments.runs + 1):
        for case in QUICK if arguments.quick else RIGHT:
            seconds = 1.0 if arguments.quick else SECONDS[case]
            yield rows.Item({"case": case, "seed": seed}, TYPICAL_S[case],
                            lambda case=case, seed=seed, seconds=seconds: run(case, seed, seconds))


def trials_of(change: str, runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [trial for figures in runs for trial in figures["trials"] if trial["name"] == change]


def is_right(case: str, trial: Mapping[str, Any]) -> bool:
    return (trial["verdict"], trial["reason"]) in RIGHT[case][trial["name"]] and SAYS.get(trial["name"], "") in trial["sentence"]


def bar_of(case: str, change: str, runs: Sequence[Mapping[str, Any]], whole: bool) -> rows.Bar:
    """A run without a trial of the change is not right: that nothing was tried shows nothing."""
    what, wanted = f"{case}, {change}", f"right in {RUNS} of {RUNS}"
    trials = trials_of(change, runs)
    problems = "; ".join(dict.fromkeys(figures["problem"] for figures in runs if figures["problem"]))
    if not trials:
        return rows.Bar(what, wanted, f"no trial: {problems or 'not run'}", rows.at_the_end(False, whole))
    right = sum(is_right(case, trial) for trial in trials)
    without = f"; without a trial {len(runs) - len(trials)}: {problems or 'no problem told'}" if len(trials) < len(runs) else ""
    return rows.Bar(what, wanted, f"{right} of {len(runs)}{without}",
                    rows.once_complete(right == (max(RUNS, len(runs)) if whole else len(runs)), whole))


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each case")
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    arguments.runs = min(arguments.runs, 1) if arguments.quick else arguments.runs
    bench = harness.Bench(__file__, arguments, f"traps: {arguments.runs} runs of each of {len(RIGHT)} cases")
    found = rows.open_rows(arguments, "traps")
    session = rows.Session(found, arguments.minutes)
    complete = session.run(items(arguments))
    whole = complete and not session.lacks and arguments.runs >= RUNS and not arguments.quick
    lines, bars = [], []
    for case, changes in RIGHT.items():
        for change in changes:
            runs = [figures for _, figures in found.found(case=case)]
            bars.append(bar_of(case, change, runs, whole))
            trials = trials_of(change, runs)
            if not trials:
                continue
            right = sum(is_right(case, trial) for trial in trials)
            verdicts = collections.Counter(f"{trial['verdict']} {trial['reason']}" for trial in trials)
            wrong = next((trial["sentence"] for trial in trials if not is_right(case, trial)), "")
            lines.append([case, change, f"{right} of {len(runs)}",
                          ", ".join(f"{verdict} {count}" for verdict, count in verdicts.most_common()), wrong])
    if lines:
        print("\n" + harness.table(["case", "change", "right", "verdicts", "the first that is not"], lines, left=(0, 1, 3, 4)))
    return bench.end({"bars": [str(bar) for bar in bars]}, rows.tell(session, complete, bars))
