#!/usr/bin/env python3
"""hr.watch around a loop: its time split against timers placed by hand, and what it costs a step of 5 ms.

Both in one process: blocks with and without the watch take turns. The hand-placed timers stand in the loop itself, in the
same run that the watch sees. The cost is told twice, by the clock and in CPU time of the process, which a neighbour on the
machine changes less; so that spinning threads do not count as work, torch computes with one thread.

usage: make bench NAME=python-watch
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

PARTS = ("data_wait", "forward", "backward", "optimizer")


class Loop:
    def __init__(self, batch_size: int) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        data = TensorDataset(torch.randn(batch_size * 100, 256), torch.randint(0, 10, (batch_size * 100,)))
        self.loader = DataLoader(data, batch_size, shuffle=True)

    def run(self) -> tuple[float, float]:
        """Seconds a step, and CPU seconds."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
        end, end_cpu = time.perf_counter(), time.process_time()
        return (end - begin) / len(self.loader), (end_cpu - begin_cpu) / len(self.loader)

    def run_with_timers(self) -> dict[str, float]:
        seconds = dict.fromkeys(PARTS, 0.0)
        clock = time.perf_counter
        asked = clock()
        for images, labels in self.loader:
            got = clock()
            self.optimizer.zero_grad()
            begin = clock()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            forward = clock()
            loss.backward()
            backward = clock()
            self.optimizer.step()
            end = clock()
            seconds["data_wait"] += got - asked
            seconds["forward"] += forward - begin
            seconds["backward"] += backward - forward
            seconds["optimizer"] += end - backward
            asked = clock()
        return seconds


def batch_size_for(step_s: float) -> int:
    """The batch size whose steps take about so long here."""
    size = 64
    while size < 16384 and Loop(size).run()[0] < step_s:
        size *= 2
    return size


def with_and_without(loop: Loop) -> list[harness.Arm]:
    """What Loop.run() gives, watched and not."""
    def watched(_round: int) -> tuple[float, float]:
        with hr.watch(loop.model, loop.optimizer, loop.loader):
            return loop.run()

    return [harness.Arm("watched", watched), harness.Arm("plain", lambda _: loop.run())]


def cost_of_a_step(bench: harness.Bench, pairs: int) -> tuple[list[float], float]:
    """Seconds that the watch adds to a step, one value a pair, and a step without it: with batches so small that noise in
    proportion to the step's own length hides nothing."""
    loop = Loop(4)
    loop.run()
    times = bench.measure(with_and_without(loop), pairs, title="a small step, watched or not: seconds, CPU seconds")
    added = [watched[0] - plain[0] for watched, plain in zip(times["watched"], times["plain"], strict=True)]
    return added, statistics.median(plain[0] for plain in times["plain"])


def against_timers(loop: Loop) -> dict[str, float]:
    """How far the watch's parts are off those of timers placed by hand, in one run of the loop."""
    with hr.watch(loop.model, loop.optimizer, loop.loader) as seen:
        by_hand = loop.run_with_timers()
    return {part: seen.split[part] / by_hand[part] - 1 for part in PARTS}


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.pairs} pairs of 100 steps")
    size = batch_size_for(0.005)
    loop = Loop(size)
    loop.run()
    found = bench.measure([harness.Arm("timers", lambda _: against_timers(loop)), *with_and_without(loop)], arguments.pairs,
                          title="off the timers; watched or not: seconds, CPU seconds")
    plain_s = [seconds for seconds, _cpu in found["plain"]]
    print(f"batch of {size}: {statistics.median(plain_s) * 1e3:.2f} ms a step without the watch")
    good = True
    for part in PARTS:
        values = [differences[part] for differences in found["timers"]]
        middle = statistics.median(values)
        good = good and abs(middle) <= 0.03
        print(f"  {part:<10} against timers by hand {middle:+.2%} [{min(values):+.2%}, {max(values):+.2%}]; wanted within 3 %")
    for place, name in enumerate(("overhead", "of CPU")):
        values = [watched[place] / plain[place] - 1 for watched, plain in zip(found["watched"], found["plain"], strict=True)]
        low, high = harness.quartiles(values)
        print(f"  {name:<10} {statistics.median(values):+.2%} [{low:+.2%}, {high:+.2%}] (median, quartiles); wanted under 1 %")
    added, step_s = cost_of_a_step(bench, 10 * arguments.pairs)
    low, high = harness.quartiles(added)
    share = statistics.median(added) / 0.005
    print(f"  a step of {step_s * 1e6:.0f} us takes {statistics.median(added) * 1e6:+.1f} us [{low * 1e6:+.1f}, {high * 1e6:+.1f}] more, "
          f"{share:.2%} of 5 ms; wanted under 1 %")
    return bench.end({"batch_size": size, "share_of_5_ms": share}, 0 if good and share < 0.01 else 3)


if __name__ == "__main__":
    sys.exit(main())
