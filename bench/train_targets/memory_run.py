#!/usr/bin/env python3
"""A whole training run in a process of its own, for its peak memory. Prints one JSON object.

usage: memory_run.py RUN [--steps N]      with the package of the build in PYTHONPATH

idle_bytes    resident memory once all is imported, before the first tensor.
peak_bytes    the most that was resident from there on (VmHWM of the process).
tensor_bytes  the most that tensors held, as torch's allocator counts it.
loss          of the last update's whole batch, before it.

The net is blocks of two convolutions with GroupNorm, so that parts of a batch have the gradient of the whole. Batches come one after
the other as one that reads them would: each is made when it is needed.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from headrace import _engine_door  # noqa: E402
from torch import nn  # noqa: E402

BLOCKS, CHANNELS, SIDE, BATCH, PARTS = 8, 32, 32, 64, 4
PLAIN, TRAINER, ACCUMULATION, CHECKPOINTING, OPTIMISED, WITH_BF16 = (
    "plain", "trainer", "accumulation", "checkpointing", "optimised", "optimised-bf16")
RUNS = (PLAIN, TRAINER, ACCUMULATION, CHECKPOINTING, OPTIMISED, WITH_BF16)

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.GroupNorm(8, CHANNELS), nn.ReLU(),
                                    nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False), nn.GroupNorm(8, CHANNELS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(images + self.layers(images))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(CHANNELS, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.stem(images)
        for block in self.blocks:
            features = block(features)
        return self.head(features.mean((2, 3)))


def batches(steps: int) -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        yield (torch.randn(BATCH, 3, SIDE, SIDE, generator=generator), torch.randint(10, (BATCH,), generator=generator))


def forward(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def parts_of(batch: Batch, count: int) -> Iterator[Batch]:
    return zip(*(tensor.chunk(count) for tensor in batch), strict=True)


def train(run: str, steps: int) -> float:
    """The mean loss of the last update's batch."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if run in (CHECKPOINTING, OPTIMISED, WITH_BF16):
        hr.gradient_checkpointing_enable(model)
    if run == PLAIN:
        for batch in batches(steps):
            optimizer.zero_grad()
            loss = forward(model, batch)
            loss.backward()
            optimizer.step()
        return loss.item()
    parts = PARTS if run in (ACCUMULATION, OPTIMISED, WITH_BF16) else 1
    trainer = hr.Trainer(model, optimizer, forward, gradient_accumulation_steps=parts, precision="bf16" if run == WITH_BF16 else "fp32")
    for batch in batches(steps):
        losses = [float(trainer.step(part)) for part in parts_of(batch, parts)]
    return sum(losses) / parts


def resident(field: str) -> int:
    """Bytes by /proc/self/status: VmRSS is now, VmHWM the most since the process began or forget_peak()."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{field}:")).split()[1])


def forget_peak() -> None:
    """proc(5), clear_refs: 5 sets VmHWM to what is resident now. What importing took for a while is no part of training."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--steps", type=int, default=2, help="updates (%(default)s)")
    arguments = parser.parse_args()
    engine = _engine_door.engine("bench/train_targets")
    _, _, reason = engine.watch_tensor_memory()  # Before the first tensor.
    forget_peak()
    found: dict[str, Any] = {"idle_bytes": resident("VmRSS")}
    found["loss"] = train(arguments.run, arguments.steps)
    found |= {"peak_bytes": resident("VmHWM"), "tensor_bytes": None if reason else engine.tensor_memory()[1]}
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
