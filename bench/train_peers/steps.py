#!/usr/bin/env python3
"""Times the steps of one training loop: the MLP of bench/python_step (32-64-10, batch 16) with AdamW(fused=True), fed by a
DataLoader over tensors, one thread. Prints one JSON object.

usage: steps.py LOOP [--steps N]      for `ours` with the package of the build in PYTHONPATH

Timed is from the forward of step --warm-up to that of the step --steps later, within one epoch: what a loop does before, at an
epoch's end and after counts for nothing. Each loop is as its documentation's first example has it; what is on by default, as the
progress bars of Lightning and Composer, stays on.
"""

import argparse
import importlib.metadata
import json
import sys
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, LEFT = 16, 20  # Steps behind the last one that is timed, so that no epoch's end is near.


class StepClock:
    """Told of each step's forward."""

    def __init__(self, warm_up: int, steps: int) -> None:
        self._first, self._last = warm_up, warm_up + steps
        self._seen, self._begin, self._end = 0, 0.0, 0.0

    def tick(self) -> None:
        if self._seen == self._first:
            self._begin = time.perf_counter()
        elif self._seen == self._last:
            self._end = time.perf_counter()
        self._seen += 1

    def microseconds_a_step(self) -> float:
        if self._seen <= self._last:
            raise SystemExit(f"wanted more than {self._last} steps, found {self._seen}")
        return 1e6 * (self._end - self._begin) / (self._last - self._first)


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), fused=True)


def loader_of(batches: int) -> DataLoader:
    torch.manual_seed(2)
    data = TensorDataset(torch.randn(BATCH * batches, 32), torch.randint(10, (BATCH * batches,)))
    return DataLoader(data, batch_size=BATCH, shuffle=True)


def plain(clock: StepClock, loader: DataLoader) -> None:
    model = network()
    optimizer = adamw(model)
    for images, labels in loader:
        clock.tick()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()


def ours(clock: StepClock, loader: DataLoader, **options: object) -> None:
    import headrace as hr

    def forward(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        clock.tick()
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    model = network()
    hr.Trainer(model, adamw(model), forward, **options).fit(loader, 1)


def ours_with_all(clock: StepClock, loader: DataLoader) -> None:
    """The step guard is there by default."""
    ours(clock, loader, max_grad_norm=1.0, ema_decay=0.999, lr_scheduler={"name": "CosineAnnealingLR", "warmup_steps": 100})


def fabric(clock: StepClock, loader: DataLoader) -> None:
    from lightning.fabric import Fabric

    made = Fabric(accelerator="cpu", devices=1)
    made.launch()
    plain_model = network()
    model, optimizer = made.setup(plain_model, adamw(plain_model))
    for images, labels in made.setup_dataloaders(loader):
        clock.tick()
        optimizer.zero_grad()
        made.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()


def accelerate(clock: StepClock, loader: DataLoader) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain_model = network()
    model, optimizer, prepared = accelerator.prepare(plain_model, adamw(plain_model), loader)
    for images, labels in prepared:
        clock.tick()
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(images), labels))
        optimizer.step()


def lightning(clock: StepClock, loader: DataLoader) -> None:
    from lightning import LightningModule, Trainer

    class Classifier(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
            clock.tick()
            return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.layers)

    with tempfile.TemporaryDirectory(prefix="headrace-train-peers-") as folder:
        Trainer(accelerator="cpu", max_epochs=1, default_root_dir=folder).fit(Classifier(), loader)


def composer(clock: StepClock, loader: DataLoader) -> None:
    # Its loggers to its makers' cloud import mcli, of which nothing is called here.
    sys.modules.setdefault("mcli", types.ModuleType("mcli"))
    from composer import Trainer
    from composer.models import ComposerModel

    class Classifier(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
            clock.tick()
            return self.layers(batch[0])

        def loss(self, outputs: torch.Tensor, batch: list[torch.Tensor], *_given: object, **_options: object) -> torch.Tensor:
            return nn.functional.cross_entropy(outputs, batch[1])

    model = Classifier()
    Trainer(model=model, train_dataloader=loader, optimizers=adamw(model), max_duration="1ep", device="cpu").fit()


@dataclass(frozen=True)
class Loop:
    run: Callable[[StepClock, DataLoader], None]
    package: str  # Whose version is told; none: this tree's.


LOOPS = {"plain": Loop(plain, "torch"), "ours": Loop(ours, ""), "ours-with-all": Loop(ours_with_all, ""),
         "fabric": Loop(fabric, "lightning"), "accelerate": Loop(accelerate, "accelerate"),
         "lightning": Loop(lightning, "lightning"), "composer": Loop(composer, "mosaicml")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loop", choices=list(LOOPS))
    parser.add_argument("--steps", type=int, default=1000, help="that are timed (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=300, help="steps before them (%(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loop, clock = LOOPS[arguments.loop], StepClock(arguments.warm_up, arguments.steps)
    loop.run(clock, loader_of(arguments.warm_up + arguments.steps + LEFT))
    if (threads := torch.get_num_threads()) != 1:
        raise SystemExit(f"wanted steps of 1 thread, found {threads} at the end")
    version = importlib.metadata.version(loop.package) if loop.package else "this tree"
    # On a line of its own, whatever a progress bar has left of the last one.
    print("\n" + json.dumps({"us": clock.microseconds_a_step(), "version": version, "torch": importlib.metadata.version("torch")}))


if __name__ == "__main__":
    main()
