#!/usr/bin/env python3
"""What each level of profiling adds to a training loop, on and off in drawn order (T-13: 10 to 25 % for the detailed one).

One process, one thread, steps of a small network on the CPU. Levels: the spans of a step (hr.Trace); those of every tenth step alone
(PROF-12: well under full); all operators with shapes and memory (hr.profile, of the engine); the same with stacks by torch.profiler, as a
reference. What starting and stopping take is not included. Each level's share is told with its interval, the detailed one's beside the
range of bench/overhead_budgets.py; exit code 3: it is above that, or a tenth of the steps costs more than half of all of them.

usage: make bench NAME=profile-overhead
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402
from overhead_budgets import DETAILED_PROFILING as BUDGET  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

PLAIN, SPANS, SAMPLED, DETAILED, THEIRS = "plain", "spans", "spans, every 10th", "operators, shapes, memory", "torch.profiler, stacks"


class Loop:
    def __init__(self, steps: int) -> None:
        torch.manual_seed(1)
        self._steps = steps
        self._model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
                                    nn.LazyLinear(10))
        self._images, self._labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
        self._model(self._images)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)

    def seconds(self, profiled: Callable[[], Any], spans: bool = False) -> float:
        """Of a step. spans: the parts of each are recorded by hand, as a native loop records them."""
        with profiled():
            begin = time.perf_counter()
            for number in range(self._steps):
                self._step_with_spans(number) if spans else self._step()
            return (time.perf_counter() - begin) / self._steps

    def _step(self) -> None:
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._model(self._images), self._labels).backward()
        self._optimizer.step()

    def _step_with_spans(self, number: int) -> None:
        hr.Trace.step(number)
        with hr.span("zero_grad"):
            self._optimizer.zero_grad()
        with hr.span("forward"):
            loss = nn.functional.cross_entropy(self._model(self._images), self._labels)
        with hr.span("backward"):
            loss.backward()
        with hr.span("optimizer"):
            self._optimizer.step()


def arms(loop: Loop) -> list[harness.Arm]:
    def theirs() -> Any:
        return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True,
                                      with_stack=True)

    return [harness.Arm(PLAIN, lambda _: loop.seconds(nullcontext)),
            harness.Arm(SPANS, lambda _: loop.seconds(hr.Trace, spans=True)),
            harness.Arm(SAMPLED, lambda _: loop.seconds(lambda: hr.Trace(every_steps=10), spans=True)),
            harness.Arm(DETAILED, lambda _: loop.seconds(
                lambda: hr.profile(["cpu"], source="engine", record_shapes=True, profile_memory=True))),
            harness.Arm(THEIRS, lambda _: loop.seconds(theirs))]


def main() -> int:
    parser = harness.parser(__doc__, rounds=41)
    parser.add_argument("--steps", type=int, default=20, help="a block (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds of {arguments.steps} steps a level")
    found = bench.measure(arms(Loop(arguments.steps)), arguments.rounds, warm_up=2)
    in_us = {name: [value * 1e6 for value in values] for name, values in found.items()}
    print(harness.arms_table(in_us, "us a step", digits=1, reference=PLAIN))
    shares = {name: [ratio - 1 for ratio in harness.ratios(found[name], found[PLAIN])] for name in found if name != PLAIN}
    for name, share in shares.items():
        print(BUDGET.line(name, share) if name == DETAILED else f"{name}: {BUDGET.found(share)}")
    tenth, full = statistics.median(shares[SAMPLED]), statistics.median(shares[SPANS])
    costly = tenth > max(full / 2, 0.005)  # Half a per cent is what this clock tells apart.
    print(f"a tenth of the steps: {tenth:+.2%} of {full:+.2%}, wanted half at most: {'MISSED' if costly else 'met'}; "
          f"{harness.interval_remark(arguments.rounds)}")
    return bench.end({name: statistics.median(share) for name, share in shares.items()}, 3 if BUDGET.is_above(shares[DETAILED]) or costly else 0)


if __name__ == "__main__":
    sys.exit(main())
