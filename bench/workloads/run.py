#!/usr/bin/env python3
"""Fixed, seeded workloads of data and training, in one command: samples a second of each.

tensor records   a pack of vectors of float32, read in a drawn order
photographs      JPEG files of tools/make_photos.py: decoded, random resized crop to 128, flip, normalised
boxes            images with a list of boxes each, of a data set in Python
MLP, convolutions, attention
                 steps of hr.Trainer, from the same weights on the same batches each time

Samples, orders and starting weights are the same in each run: the fingerprint beside a figure is of them, and two figures
with different ones are of different work. Video clips and serving are told as unavailable until they are built.

The small mode, --times 1, is to be done within 10 minutes on two cores; exit status 3: it was not. Where headrace compare
runs this, each workload is a metric.

usage: make bench NAME=workloads        or: bench/run.py workloads --only boxes --rounds 20
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

from workloads import workloads  # noqa: E402

SMALL_S = 600.0  # On two cores, wanted at most.
MISSED = 3


def rate(workload: workloads.Workload) -> float:
    begin = time.perf_counter()
    seen = workload.run()
    if seen != workload.samples:
        raise SystemExit(f"{workload.name}: wanted {workload.samples} samples, found {seen}")
    return seen / (time.perf_counter() - begin)


def table(made: Sequence[workloads.Workload], found: Mapping[str, Sequence[float]]) -> str:
    rows = [(one.name, f"{one.samples:,}", harness.with_interval(found[one.name]), one.fingerprint) for one in made]
    rows += [(name, "", f"{harness.UNAVAILABLE}: not built yet", "") for name in workloads.NOT_BUILT]
    return harness.table(("workload", "samples", "samples/s", "fingerprint"), rows)


def metrics(found: Mapping[str, Sequence[float]]) -> str:
    """A line of JSON for headrace compare, with the middle of each workload's rates."""
    return json.dumps({f"{name.replace(' ', '_').lower()}_samples_per_s": harness.Summary.of(values).median
                       for name, values in found.items()}) + "\n"


def status_of(seconds: float, times: float) -> int:
    return MISSED if times == 1 and seconds > SMALL_S else 0


def chosen(made: Sequence[workloads.Workload], names: Sequence[str]) -> list[workloads.Workload]:
    known = [one.name for one in made]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"--only: wanted {', '.join(known)}, found {', '.join(unknown)}")
    return [one for one in made if not names or one.name in names]


def arguments_of() -> argparse.Namespace:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("--photos", type=Path, default=harness.ROOT / "photos")
    parser.add_argument("--times", type=float, default=1, help="samples of a run, by the small mode's (%(default)s)")
    parser.add_argument("--only", action="append", default=[], help="a workload; may be said again")
    return parser.parse_args()


def main() -> int:
    begin, arguments = time.monotonic(), arguments_of()
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds after one that is not counted; "
                          f"{harness.interval_remark(arguments.rounds)}")
    with tempfile.TemporaryDirectory(prefix="headrace-workloads-") as scratch:
        made = chosen(workloads.make(Path(scratch), arguments.photos, arguments.times), arguments.only)
        arms = [harness.Arm(one.name, lambda _, one=one: rate(one)) for one in made]
        found = bench.measure(arms, arguments.rounds, warm_up=1)
    print(table(made, found))
    if result := os.environ.get("HEADRACE_RESULT"):
        Path(result).write_text(metrics(found))
    seconds = time.monotonic() - begin
    status = status_of(seconds, arguments.times)
    print(f"{seconds:.0f} s in all, wanted at most {SMALL_S:.0f} s in the small mode: {'MISSED' if status else 'met'}"
          if arguments.times == 1 else f"{seconds:.0f} s in all")
    return bench.end({"fingerprints": {one.name: one.fingerprint for one in made}, "unavailable": workloads.NOT_BUILT}, status)


if __name__ == "__main__":
    sys.exit(main())
