#!/usr/bin/env python3
"""What of headrace is always on costs a step of the demo job: spans, and a monitor with a file, the machine's figures and a record a step.

The job of examples/fashion_mnist.toml from Python, as it is written there, in one run. Every five steps recording is on or off, in drawn
order: a pair is a block of either, what starting and stopping take is not counted. In one pair of ten a third block runs under torch.profiler,
beside which the cost is told. The monitor works all the time; in blocks without recording the loop hands it nothing.

counted    events a step, of all threads, by the nanoseconds that trace_bench finds for a span; and the loop's call of the monitor; and the CPU
           time of the monitor's threads, all of which is charged to the steps that hand it something. At most 0.1 % of a step.
measured   what a step takes more in a pair's block with recording. The upper end of its interval below 1 %.

Exit code 3: either is missed. About ten minutes on two cores.

usage: make bench NAME=always-on
"""

import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
from always_on.cost import Counted, cpu_ns, events_in, measured, span_ns, threads  # noqa: E402
from train_fashion.small_cnn import SmallCnn  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

BATCH = 128
BLOCK = 5  # Steps.
WARM_UP = 50
PROFILED_EVERY = 10  # Pairs.
COUNTED_BLOCKS = 20  # Of which events are counted.
CALLS = 1000
EVENTS = 1 << 13  # A thread: more than a block has.
ON, OFF, PROFILED = "on", "off", "torch.profiler"

Record = Callable[[int, dict[str, float]], bool]


class Job:
    """examples/fashion_mnist.toml."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        model = SmallCnn()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
        self._trainer = hr.Trainer(model, optimizer, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]))
        loader = hr.Loader(f"idx:{harness.FASHION_MNIST}", batch_size=BATCH, num_workers=1, last_batch="drop",
                           transform={"mean": [0.2860], "std": [0.3530]})
        self._batches: Iterator[Any] = itertools.chain.from_iterable(itertools.repeat(loader))
        self._steps = 0
        self._step_s = 0.0

    def block(self, steps: int = BLOCK, record: Record | None = None) -> float:
        """Seconds of a step. record: is handed the time of each."""
        begin = end = time.perf_counter()
        for _ in range(steps):
            self._trainer.step(next(self._batches))
            self._steps += 1
            if record is not None:
                now = time.perf_counter()
                record(self._steps, {"step_s": now - end, "samples_per_s": BATCH / (now - end)})
                end = now
        return (time.perf_counter() - begin) / steps


class Blocks:
    """Of the run, each after its kind."""

    def __init__(self, job: Job, record: Record, folder: Path) -> None:
        self._job, self._record, self._folder = job, record, folder
        self.events: list[int] = []  # Of a block.

    def seconds(self, kind: str) -> float:
        """Of a step."""
        if kind == OFF:
            return self._job.block()
        if kind == PROFILED:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
                return self._job.block()
        with hr.Trace(EVENTS) as trace:
            step_s = self._job.block(record=self._record)
        if len(self.events) < COUNTED_BLOCKS:
            (path,) = trace.write(self._folder / "events.jsonl", "jsonl")
            self.events.append(events_in(path.read_text().splitlines()) + trace.dropped)
        return step_s


def call_ns(record: Record) -> float:
    """Of the loop's call of the monitor."""
    begin = time.perf_counter_ns()
    for number in range(CALLS):
        record(number, {"step_s": 0.01, "samples_per_s": 100.0})
    return (time.perf_counter_ns() - begin) / CALLS


def run_of(pairs: int, seed: int, folder: Path) -> tuple[dict[str, list[float]], list[float], list[int], float, float]:
    """Seconds of a step by kind; of the pairs with a profile its share over the one that is off; events of a block; the loop's call and
    the CPU time of the monitor's threads over the run, in nanoseconds."""
    job, drawn = Job(), random.Random(seed)
    found: dict[str, list[float]] = {ON: [], OFF: []}
    profiled: list[float] = []
    job.block(WARM_UP)
    before = threads()
    with hr.monitor(csv=folder / "metrics.csv") as monitor:
        record_ns = call_ns(monitor.record)
        monitor.flush()
        blocks, monitors = Blocks(job, monitor.record, folder), threads() - before
        begin_ns = cpu_ns(monitors)
        for pair in range(pairs):
            kinds = [ON, OFF, *([PROFILED] if pair % PROFILED_EVERY == 0 else [])]
            times = {kind: blocks.seconds(kind) for kind in drawn.sample(kinds, len(kinds))}
            for kind in (ON, OFF):
                found[kind].append(times[kind])
            if PROFILED in times:
                profiled.append(times[PROFILED] / times[OFF] - 1)
        monitor.flush()
        monitor_ns = cpu_ns(monitors) - begin_ns
    return found, profiled, blocks.events, record_ns, monitor_ns


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=1600, help="of two blocks of five steps (%(default)s)")
    arguments = parser.parse_args()
    bench = harness.Bench(__file__, arguments, f"{arguments.pairs} pairs of {BLOCK} steps each")
    event_ns = span_ns(harness.run([harness.PROGRAMS / "trace_bench"], accepted=(0, 3)).output)
    with tempfile.TemporaryDirectory(prefix="headrace-always-on-") as folder:
        found, profiled, events, record_ns, monitor_ns = run_of(arguments.pairs, arguments.order_seed, Path(folder))
    bench.keep(found, "seconds of a step")
    counted = Counted(statistics.mean(events) / BLOCK, event_ns, record_ns, monitor_ns / (BLOCK * arguments.pairs), statistics.median(found[OFF]))
    added = [ratio - 1 for ratio in harness.ratios(found[ON], found[OFF])]
    line, is_low = measured(added)
    print(f"{counted}\n{line}\ntorch.profiler in the same run: {harness.with_interval([100 * share for share in profiled], '%', 1)} in "
          f"{len(profiled)} pairs\n{harness.interval_remark(arguments.pairs)}")
    return bench.end({"events_a_step": counted.events, "counted": counted.share, "added": added, "profiled": profiled},
                     0 if counted.is_met and is_low else 3)


if __name__ == "__main__":
    sys.exit(main())
