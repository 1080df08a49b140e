#!/usr/bin/env python3
"""What profiling adds to a training loop, in levels and switched off (T-13: 10 to 25 % for the detailed level).

One process, one thread, steps of a small network on the CPU, arms in drawn order.

levels      the spans of a step (hr.Trace); those of every tenth step alone (PROF-12: well under full); all operators with shapes and
            memory (hr.profile, of the engine); the same with stacks by torch.profiler, as a reference. What starting and stopping take is
            not included. Each level's share is told with its interval, the detailed one's beside the range of bench/overhead_budgets.py.
scopes      PROF-18: a scope of a PerformanceProfiler that is off, over 10^6 of them a round; 1 us at most.
production  CFG-07: a step of an epoch by the preset minimal_overhead over the plain one, where both compute the same; 1 % more at most.
            Beside it what the preset takes once an epoch, and the preset with all that its level asks for of the model.

T-10 to T-12 (cache, memory monitor, pools) are told as unavailable until these are built.

Exit code 3: a median is above its bound, or a tenth of the steps costs more than half of all of them.

usage: make bench NAME=profile-overhead                        all parts
       make bench NAME=profile-overhead ARGS='scopes'          or some of them
"""

import argparse
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
from overhead_budgets import NOT_BUILT  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from switched_off import production_part, scopes_part  # noqa: E402
from torch import nn  # noqa: E402

PLAIN, SPANS, SAMPLED, DETAILED, THEIRS = "plain", "spans", "spans, every 10th", "operators, shapes, memory", "torch.profiler, stacks"


def network() -> nn.Module:
    """Of images of 32 x 32."""
    return nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10))


class Loop:
    def __init__(self, steps: int) -> None:
        torch.manual_seed(1)
        self._steps = steps
        self._model = network()
        self._images, self._labels = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
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


def levels_part(bench: harness.Bench, arguments: argparse.Namespace) -> tuple[Any, bool]:
    found = bench.measure(arms(Loop(arguments.steps)), arguments.rounds, warm_up=2, title="levels")
    in_us = {name: [value * 1e6 for value in values] for name, values in found.items()}
    print(f"\n{harness.arms_table(in_us, 'us a step', digits=1, reference=PLAIN)}")
    shares = {name: [ratio - 1 for ratio in harness.ratios(found[name], found[PLAIN])] for name in found if name != PLAIN}
    for name, share in shares.items():
        print(BUDGET.line(name, share) if name == DETAILED else f"{name}: {BUDGET.found(share)}")
    tenth, full = statistics.median(shares[SAMPLED]), statistics.median(shares[SPANS])
    costly = tenth > max(full / 2, 0.005)  # Half a per cent is what this clock tells apart.
    print(f"a tenth of the steps: {tenth:+.2%} of {full:+.2%}, wanted half at most: {'MISSED' if costly else 'met'}")
    return {name: statistics.median(share) for name, share in shares.items()}, BUDGET.is_above(shares[DETAILED]) or costly


PARTS: dict[str, Callable[[harness.Bench, argparse.Namespace], tuple[Any, bool]]] = {  # Figures, and whether a bound is missed.
    "levels": levels_part, "scopes": scopes_part, "production": lambda bench, arguments: production_part(bench, arguments, network)}


def part(word: str) -> str:
    if word not in PARTS:
        raise argparse.ArgumentTypeError(f"wanted one of {', '.join(PARTS)}, found {word}")
    return word


def main() -> int:
    parser = harness.parser(__doc__, rounds=41)
    parser.add_argument("parts", nargs="*", type=part, metavar="PART", help=f"{', '.join(PARTS)}; none: all")
    parser.add_argument("--steps", type=int, default=20, help="a block, or an epoch of the preset (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bench = harness.Bench(__file__, arguments, f"{arguments.rounds} rounds of {arguments.steps} steps")
    done = {name: PARTS[name](bench, arguments) for name in arguments.parts or PARTS}
    print(harness.interval_remark(arguments.rounds))
    if not arguments.parts:
        print(*(budget.unavailable("not built yet") for budget in NOT_BUILT), sep="\n")
    return bench.end({name: figures for name, (figures, _) in done.items()}, 3 if any(is_missed for _, is_missed in done.values()) else 0)


if __name__ == "__main__":
    sys.exit(main())
