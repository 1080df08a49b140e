"""Records what the steps of five jobs take, one after the other: what `decisions` draws its runs from.

usage: make bench NAME=live-tuning ARGS='recordings --minutes 9'

Writes runs/live_tuning/recordings.json, a job at a time: {"format": "headrace-step-times", "version": 1, "machine": what it was
recorded on, "jobs": {name of the script: {"day", "commit", "seed", "load_1_min", "step_s": seconds of each step in a row, the
first 20 left out}}}. A job that is there already is left alone.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import harness
from live_tuning import rows, scripts_known

FORMAT, VERSION = "headrace-step-times", 1
JOBS = ("char_lstm", "unet_photos", "vit", "cnn", "tabular_mlp")
STEPS = 40_000
LIMIT_S = 180.0
LEAST = 40  # Steps in a row that a segment must have.


def read(path: Path) -> dict[str, Any]:
    """The document; one without jobs where there is no file."""
    if not path.exists():
        return {"format": FORMAT, "version": VERSION, "machine": harness.machine(), "jobs": {}}
    document = json.loads(path.read_text())
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        found = f"{document.get('format')}, version {document.get('version')}"
        raise SystemExit(f"{path}: wanted {FORMAT}, version {VERSION}, found {found}")
    return document


def path_of(arguments: argparse.Namespace) -> Path:
    return arguments.rows / f"recordings{'-quick' * arguments.quick}.json"


def step_times(path: Path) -> dict[str, list[float]]:
    """Of each job with enough steps to draw from."""
    return {name: job["step_s"] for name, job in read(path)["jobs"].items() if len(job["step_s"]) >= LEAST}


def record(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    steps, limit_s = (60, 2.0) if arguments.quick else (STEPS, LIMIT_S)
    before = os.getloadavg()[0]
    found = scripts_known.play(name, arguments, "untouched", steps, limit_s=limit_s, step_s=True)
    return {"day": time.strftime("%Y-%m-%d", time.gmtime()), "commit": rows.commit(), "seed": 1, "load_1_min": before,
            "step_s": found["step_s"]}


def main(words: list[str]) -> int:
    parser = harness.parser(__doc__)
    scripts_known.add_options(parser, JOBS)
    rows.add_options(parser)
    arguments = parser.parse_args(words)
    bench = harness.Bench(__file__, arguments, f"recordings: at most {LIMIT_S:g} s of each job")
    path = path_of(arguments)
    document = {**read(path), "jobs": {}} if arguments.anew else read(path)
    begin = time.monotonic()
    left = [name for name in scripts_known.runnable(arguments) if name not in document["jobs"]]
    recorded = 0
    for name in left:
        if arguments.minutes and recorded and time.monotonic() - begin + LIMIT_S > 60 * arguments.minutes:
            break
        document["jobs"][name] = record(name, arguments)
        harness.write_json(path, document)
        recorded += 1
        print(f"{name}: done", file=sys.stderr, flush=True)
    print(harness.table(["job", "day, commit", "steps", "median ms", "quartiles"], [
        [name, f"{job['day']}, {job['commit']}", f"{len(job['step_s']):,}", f"{1e3 * statistics.median(job['step_s']):,.2f}",
         " - ".join(f"{1e3 * value:,.2f}" for value in harness.quartiles(job["step_s"]))]
        for name, job in document["jobs"].items()], left=(0, 1)))
    print(f"{path}" + ("; not all is recorded yet: the same command goes on from here" if recorded < len(left) else ""))
    return bench.end({"jobs": {name: len(job["step_s"]) for name, job in document["jobs"].items()}})
