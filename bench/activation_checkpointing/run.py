#!/usr/bin/env python3
"""Activation checkpointing of a net of 32 equal blocks (two convolutions with BatchNorm and ReLU beside a shortcut): bytes and time of a
training step, beside the plain loop and torch.utils.checkpoint.

plain              nothing is recomputed.
torch              torch.utils.checkpoint(use_reentrant=False) around each block.
hr, blocks         hr.gradient_checkpointing_enable(net).
hr, every 2        the same with every=2.
hr, budget 45 %    the same with budget_mib= of 45 % of what plain saves, so that there is room for what a backward needs besides.

Of each arm: what tensors hold beyond what they held before the step, at most, as torch's allocator counts it; ms a step; and how often
BatchNorm's statistics are updated in one. The arms take turns. Wanted: of "hr, budget 45 %" at most half of plain's bytes for at most 1.35
of its time; of "hr, blocks" no more bytes than torch's and at most 1.05 of its time; statistics updated once. Exit status 3: a bar is
missed.

usage: make bench NAME=activation-checkpointing
"""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

sys.path.insert(0, str(harness.PACKAGE))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import headrace as hr  # noqa: E402
from headrace import _engine_door  # noqa: E402

PLAIN, TORCH, BLOCKS, EVERY, BUDGET = "plain", "torch", "hr, blocks", "hr, every 2", "hr, budget 45 %"
SHARE = 0.45
BYTES_MAX, TIME_MAX = 0.5, 1.35  # Of plain's, with the budget.
TIME_OF_TORCH_MAX, BYTES_OF_TORCH_MAX = 1.05, 1.01  # Of torch's, with all blocks.


@dataclass(frozen=True)
class Size:
    blocks: int
    channels: int
    side: int
    batch: int


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first_norm, self.second_norm = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.first_norm(self.first(images)))
        return torch.relu(images + self.second_norm(self.second(features)))


class Net(nn.Module):
    def __init__(self, size: Size, by_torch: bool) -> None:
        super().__init__()
        channels = size.channels
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(Block(channels) for _ in range(size.blocks))
        self.head = nn.Linear(channels, 10)
        self._by_torch = by_torch

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = checkpoint(block, features, use_reentrant=False) if self._by_torch else block(features)
        return self.head(features.mean((2, 3)))


class Loop:
    """A plain loop over one of the nets."""

    def __init__(self, size: Size, name: str, budget_mib: float | None = None) -> None:
        torch.manual_seed(1)
        self._net = Net(size, by_torch=name == TORCH)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=0.01, momentum=0.9)
        self._images = torch.randn(size.batch, 3, size.side, size.side)
        self._labels = torch.randint(10, (size.batch,))
        options = {BLOCKS: {}, EVERY: {"every": 2}, BUDGET: {"budget_mib": budget_mib}}.get(name)
        self.checkpointing = None if options is None else hr.gradient_checkpointing_enable(self._net, **options)
        for _ in range(3):  # Optimizer state is there, and a budget's choice is in force.
            self.step()

    def step(self) -> None:
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._net(self._images), self._labels).backward()
        self._optimizer.step()

    def updates(self) -> int:
        """Of BatchNorm's statistics in a step."""
        before = int(self._net.blocks[0].first_norm.num_batches_tracked)
        self.step()
        return int(self._net.blocks[0].first_norm.num_batches_tracked) - before


def peak_of(engine: Any, step: Callable[[], object]) -> int:
    """Bytes beyond those that tensors held before."""
    engine.reset_peak_tensor_memory()
    before = engine.tensor_memory()[0]
    step()
    return engine.tensor_memory()[1] - before


def milliseconds(step: Callable[[], object], steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e3 * (time.perf_counter() - begin) / steps


def made(size: Size) -> dict[str, Loop]:
    loops = {name: Loop(size, name) for name in (PLAIN, TORCH, BLOCKS, EVERY)}
    budget_mib = SHARE * loops[BLOCKS].checkpointing.report.saved_bytes_before / 2**20
    return {**loops, BUDGET: Loop(size, BUDGET, budget_mib)}


def judge(peaks: Mapping[str, int], times: Mapping[str, Sequence[float]], updates: Mapping[str, int]) -> bool:
    """Tells each bar, and returns whether all are met."""
    def ratio(over: str, under: str) -> float:
        return statistics.median(harness.ratios(times[over], times[under]))

    bars = [
        (f"bytes of {BUDGET} over {PLAIN}", peaks[BUDGET] / peaks[PLAIN], BYTES_MAX),
        (f"time of {BUDGET} over {PLAIN}", ratio(BUDGET, PLAIN), TIME_MAX),
        (f"bytes of {BLOCKS} over {TORCH}", peaks[BLOCKS] / peaks[TORCH], BYTES_OF_TORCH_MAX),
        (f"time of {BLOCKS} over {TORCH}", ratio(BLOCKS, TORCH), TIME_OF_TORCH_MAX),
        (f"updates of statistics, {BLOCKS}", updates[BLOCKS], 1),
    ]
    for name, found, most in bars:
        print(f"{name}: {found:.2f}, wanted at most {most}: {'met' if found <= most else 'missed'}")
    return all(found <= most for _, found, most in bars)


def main() -> int:
    parser = harness.parser(__doc__, rounds=9)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=32)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    engine = _engine_door.engine("bench/activation_checkpointing")
    _, _, reason = engine.watch_tensor_memory()  # Before the first tensor.
    if reason:
        raise SystemExit(f"tensors are not counted: {reason}")
    size = Size(arguments.blocks, arguments.channels, arguments.side, arguments.batch)
    bench = harness.Bench(__file__, arguments, f"{size}, {arguments.rounds} rounds of {arguments.steps} steps; "
                                               f"{harness.interval_remark(arguments.rounds)}")
    loops = made(size)
    peaks = {name: peak_of(engine, loop.step) for name, loop in loops.items()}
    updates = {name: loop.updates() for name, loop in loops.items()}
    arms = [harness.Arm(name, lambda _, step=loop.step: milliseconds(step, arguments.steps)) for name, loop in loops.items()]
    times = bench.measure(arms, arguments.rounds, warm_up=1)
    print(harness.arms_table(times, "ms a step", 1, PLAIN))
    print(harness.table(("", "MiB at most", "of plain", "updates of statistics", "recomputed"), [
        (name, f"{peaks[name] / 2**20:.1f}", f"{peaks[name] / peaks[PLAIN]:.2f}", str(updates[name]),
         loop.checkpointing.report.applied if loop.checkpointing else "") for name, loop in loops.items()]))
    reports = {name: loop.checkpointing.report.as_dict() for name, loop in loops.items() if loop.checkpointing}
    is_met = judge(peaks, times, updates)
    return bench.end({"peaks": peaks, "updates": updates, "reports": reports}, 0 if is_met else 3)


if __name__ == "__main__":
    sys.exit(main())
