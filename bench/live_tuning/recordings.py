"""Records what the steps of five jobs take, one after the other: what `decisions` draws its runs from.

usage: make bench NAME=live-tuning ARGS='recordings --minutes 20'

Writes a row for each job to runs/live_tuning/recordings.jsonl: the seconds of each step in a row, of at most 3 min or 40,000
steps, the first 20 left out.
"""

import argparse
import statistics

import harness
import rows
from live_tuning import scripts_known

JOBS = ("char_lstm", "unet_photos", "vit", "cnn", "tabular_mlp")
STEPS = 40_000
LIMIT_S = 180.0
LEAST = 40  # Steps in a row that a segment must have.


def step_times(found: rows.Rows) -> dict[str, list[float]]:
    """Of each job with enough steps to draw from."""
    return {key["job"]: figures["step_s"] for key, figures in found.found() if len(figures["step_s"]) >= LEAST}


def record(name: str, quick: bool) -> dict[str, list[float]]:
    steps, limit_s = (60, 2.0) if quick else (STEPS, LIMIT_S)
    return {"step_s": scripts_known.play(name, "untouched", steps, limit_s=limit_s, step_s=True)["step_s"]}


def items(names: list[str], arguments: argparse.Namespace) -> list[rows.Item]:
    return [rows.Item({"job": name}, LIMIT_S + 15, lambda name=name: record(name, arguments.quick)) for name in names]


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    scripts_known.add_options(parser, JOBS)
    rows.add_options(parser, "live_tuning")
    arguments = parser.parse_args(words)
    names = scripts_known.runnable(arguments)
    bench = harness.Bench(__file__, arguments, f"recordings: at most {LIMIT_S:g} s of each job")
    found = rows.open_rows(arguments, "recordings")
    session = rows.Session(found, arguments.minutes)
    complete = session.run(items(names, arguments))
    jobs = step_times(found)
    if jobs:
        print(harness.table(["job", "steps", "median ms", "quartiles"], [
            [name, f"{len(step_s):,}", f"{1e3 * statistics.median(step_s):,.2f}",
             " - ".join(f"{1e3 * value:,.2f}" for value in harness.quartiles(step_s))] for name, step_s in jobs.items()]))
    bar = rows.Bar("jobs recorded", f"{len(JOBS)}", f"{len(jobs)}", rows.at_the_end(len(jobs) >= len(JOBS), complete))
    return bench.end({"jobs": {name: len(step_s) for name, step_s in jobs.items()}}, rows.tell(session, complete, [bar]))
