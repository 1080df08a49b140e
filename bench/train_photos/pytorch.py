#!/usr/bin/env python3
"""ResNet-18 on a folder of photographs as a careful PyTorch user trains it: ImageFolder, DataLoader, SGD, float32.

Nothing here is slowed on purpose. The clock runs over --steps steps after --warmup steps, loading included; the warm-up
takes the start of the workers too. Prints one JSON line.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import models

from photo_loader import training_loader

ROOT = Path(__file__).resolve().parent.parent.parent


def batches_without_end(loader: DataLoader) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield from loader


def run(arguments: argparse.Namespace) -> dict:
    torch.manual_seed(arguments.seed)
    loader = training_loader(str(arguments.data / "train"), arguments.size, arguments.batch, arguments.workers,
                             arguments.transforms)
    model = models.resnet18(num_classes=len(loader.dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9, weight_decay=arguments.weight_decay)
    criterion = nn.CrossEntropyLoss()
    model.train()

    losses = []
    start = 0.0
    batches = batches_without_end(loader)
    for step in range(arguments.warmup + arguments.steps):
        if step == arguments.warmup:
            start = time.perf_counter()
        images, labels = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    seconds = time.perf_counter() - start
    return {"images_per_second": arguments.steps * arguments.batch / seconds, "seconds": seconds,
            "first_loss": losses[0], "last_loss": losses[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT / "photos")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--transforms", choices=["v1", "v2"], default="v1", help="v1 is the faster one here (bench/load_photos)")
    arguments = parser.parse_args()
    result = run(arguments)
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "seed": arguments.seed,
                      "workers": arguments.workers, "steps": arguments.steps, "batch": arguments.batch, **result}))


if __name__ == "__main__":
    main()
