#!/usr/bin/env python3
"""Compares a plain loop and hr.Trainer with an optimizer that steps itself, and hr.Trainer with AdamW beside them: an MLP of
matrices (256-256-256-16, batch 64), one thread. Prints one JSON object.

usage: optimizers.py OPTIMIZER [--rounds N] [--steps N]      with the package of the build in PYTHONPATH

First both make --compared steps on the same batches, and all bits of their weights, optimizer state and groups are compared. Then
blocks of --steps steps of each take turns in this process. The network has no biases, of which Muon takes none.
"""

import argparse
import importlib.metadata
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import harness  # noqa: E402

import headrace as hr  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

BATCH, WIDTH, CLASSES, BATCHES = 64, 256, 16, 32
PLAIN, OURS, ADAMW = "plain", "ours", "adamw"  # The arms.
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def adamw8bit(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    from torchao.optim import AdamW8bit

    return AdamW8bit(parameters, lr=1e-3)


def lamb(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    from timm.optim import Lamb

    return Lamb(parameters, lr=1e-3)


def muon(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Muon(parameters, lr=1e-3)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, fused=True)


OPTIMIZERS: dict[str, tuple[Make, str]] = {  # With the package whose version is told.
    "adamw8bit": (adamw8bit, "torchao"), "lamb": (lamb, "timm"), "muon": (muon, "torch")}


def forward(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class Training:
    """A network and its optimizer, the same ones each time, and batches in turn."""

    def __init__(self, make: Make) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(),
                                   nn.Linear(WIDTH, CLASSES, bias=False))
        self._batches = itertools.cycle([(torch.randn(BATCH, WIDTH), torch.randint(CLASSES, (BATCH,))) for _ in range(BATCHES)])
        self.optimizer = make(list(self.model.parameters()))  # Last: its import may draw.

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return next(self._batches)

    def tensors(self) -> list[torch.Tensor]:
        """All that its steps change."""
        groups = [{name: value for name, value in group.items() if name != "params"} for group in self.optimizer.param_groups]
        return list(tensors_in([list(self.model.parameters()), list(self.optimizer.state.values()), groups]))

    def state_bytes(self) -> int:
        """Of the memory that the optimizer's state lies in, each piece once."""
        storages = [tensor.untyped_storage() for tensor in tensors_in(list(self.optimizer.state.values()))]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class PlainLoop(Training):
    def step(self) -> None:
        self.optimizer.zero_grad()
        forward(self.model, self.batch()).backward()
        self.optimizer.step()


class Engine(Training):
    def __init__(self, make: Make) -> None:
        super().__init__(make)
        self.trainer = hr.Trainer(self.model, self.optimizer, forward)

    def step(self) -> None:
        self.trainer.step(self.batch())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Those in lists and dicts, in their order. A tensor that is made of others, as torchao's, stands for these."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            for name in value.__tensor_flatten__()[0]:
                yield from tensors_in(getattr(value, name))
        else:
            yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def have_same_bits(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8)

    return len(some) == len(others) and all(torch.equal(bits(one), bits(other)) for one, other in zip(some, others))


def microseconds_a_step(step: Callable[[], None], steps: int) -> float:
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    return 1e6 * (time.perf_counter() - begin) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("optimizer", choices=list(OPTIMIZERS))
    parser.add_argument("--rounds", type=int, default=9, help="that are counted; each runs every arm once (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of a block (%(default)s)")
    parser.add_argument("--compared", type=int, default=20, help="steps before bits are compared (%(default)s)")
    parser.add_argument("--order-seed", type=int, default=1, help="of the drawn order in which arms take turns (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make, package = OPTIMIZERS[arguments.optimizer]
    loop, engine, native = PlainLoop(make), Engine(make), Engine(adamw)
    for _ in range(arguments.compared):
        loop.step()
        engine.step()
        native.step()
    found = {"same_bits": have_same_bits(loop.tensors(), engine.tensors()), "compared": arguments.compared,
             "bytes": engine.state_bytes(), "adamw_bytes": native.state_bytes(),
             "by": engine.trainer.explain()["optimizer"]["by"], "adamw_by": native.trainer.explain()["optimizer"]["by"]}
    arms = {PLAIN: loop.step, OURS: engine.step, ADAMW: native.step}
    found["us"] = harness.interleave([harness.Arm(name, lambda _, step=step: microseconds_a_step(step, arguments.steps))
                                      for name, step in arms.items()], arguments.rounds, warm_up=1, seed=arguments.order_seed)
    if (threads := torch.get_num_threads()) != 1:
        raise SystemExit(f"wanted steps of 1 thread, found {threads} at the end")
    version = importlib.metadata.version
    print("\n" + json.dumps({**found, "version": version(package), "torch": version("torch")}))


if __name__ == "__main__":
    main()
