#!/usr/bin/env python3
"""hr.watch around a loop: its time split against timers placed by hand, and what it costs a step of 5 ms.

Both in one process: blocks with and without the watch take turns. The hand-placed timers stand in the loop itself, in the
same run that the watch sees. The cost is told twice, by the clock and in CPU time of the process, which a neighbour on the
machine changes less; so that spinning threads do not count as work, torch computes with one thread.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "build" / "release" / "python"))

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


def with_and_without(loop: Loop, pair: int) -> dict[bool, tuple[float, float]]:
    """What Loop.run() gives, watched (True) and not (False), one after the other; which comes first changes by the pair."""
    times = {}
    for watched in (pair % 2 == 0, pair % 2 == 1):
        if watched:
            with hr.watch(loop.model, loop.optimizer, loop.loader):
                times[True] = loop.run()
        else:
            times[False] = loop.run()
    return times


def cost_of_a_step(pairs: int) -> tuple[list[float], float]:
    """Seconds that the watch adds to a step, one value a pair, and a step without it: with batches so small that noise in
    proportion to the step's own length hides nothing."""
    loop = Loop(4)
    loop.run()
    times = [with_and_without(loop, pair) for pair in range(pairs)]
    return [both[True][0] - both[False][0] for both in times], statistics.median(both[False][0] for both in times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    args = parser.parse_args()

    torch.set_num_threads(1)
    size = batch_size_for(0.005)
    loop = Loop(size)
    loop.run()
    differences = {part: [] for part in PARTS}
    overheads, cpu_overheads, plain_s = [], [], []
    for pair in range(args.pairs):
        with hr.watch(loop.model, loop.optimizer, loop.loader) as seen:
            by_hand = loop.run_with_timers()
        for part in PARTS:
            differences[part].append(seen.split[part] / by_hand[part] - 1)
        times = with_and_without(loop, pair)
        overheads.append(times[True][0] / times[False][0] - 1)
        cpu_overheads.append(times[True][1] / times[False][1] - 1)
        plain_s.append(times[False][0])

    print(f"batch of {size}: {statistics.median(plain_s) * 1e3:.2f} ms a step without the watch, "
          f"{args.pairs} pairs of 100 steps")
    good = True
    for part in PARTS:
        middle = statistics.median(differences[part])
        good = good and abs(middle) <= 0.03
        print(f"  {part:<10} against timers by hand {middle:+.2%} "
              f"[{min(differences[part]):+.2%}, {max(differences[part]):+.2%}]; wanted within 3 %")
    for name, values in (("overhead", overheads), ("of CPU", cpu_overheads)):
        quarters = statistics.quantiles(values, n=4)
        print(f"  {name:<10} {quarters[1]:+.2%} [{quarters[0]:+.2%}, {quarters[2]:+.2%}] (median, quartiles); wanted under 1 %")
    added, step_s = cost_of_a_step(10 * args.pairs)
    quarters = [value * 1e6 for value in statistics.quantiles(added, n=4)]
    share = quarters[1] / 5000
    print(f"  a step of {step_s * 1e6:.0f} us takes {quarters[1]:+.1f} us [{quarters[0]:+.1f}, {quarters[2]:+.1f}] more, "
          f"{share:.2%} of 5 ms; wanted under 1 %")
    return 0 if good and share < 0.01 else 3


if __name__ == "__main__":
    sys.exit(main())
