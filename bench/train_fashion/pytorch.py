#!/usr/bin/env python3
"""The demo's job as a PyTorch user writes it: torchvision's FashionMNIST, a DataLoader, AdamW, four epochs, one test at the end.

Nothing here is slowed on purpose: torch and torchvision are used as their own tutorials do. The clock starts after the
imports and after the files lie where torchvision looks for them. Prints one JSON line.
"""

import argparse
import gzip
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

from small_cnn import SmallCnn


def unpack(source: Path, root: Path) -> None:
    """torchvision wants the unpacked files under FashionMNIST/raw; Debian's package holds them packed."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for packed in sorted(source.glob("*-ubyte.gz")):
        with gzip.open(packed) as reader, open(raw / packed.stem, "wb") as writer:
            shutil.copyfileobj(reader, writer)


def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(1) == labels).sum().item()
            total += len(labels)
    return correct / total


def train_epoch(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, criterion: nn.Module) -> None:
    model.train()
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()


def run(root: Path, seed: int, workers: int, epochs: int) -> dict:
    start = time.perf_counter()
    torch.manual_seed(seed)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.2860,), (0.3530,))])
    train_set = datasets.FashionMNIST(root, train=True, transform=transform)
    test_set = datasets.FashionMNIST(root, train=False, transform=transform)
    train_loader = DataLoader(train_set, batch_size=128, shuffle=True, num_workers=workers)
    test_loader = DataLoader(test_set, batch_size=128, num_workers=workers)
    model = SmallCnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    for _ in range(epochs):
        train_epoch(model, train_loader, optimizer, criterion)
    test_accuracy = accuracy(model, test_loader)
    return {"seconds": time.perf_counter() - start, "test_accuracy": test_accuracy}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-rival-") as folder:
        unpack(arguments.data, Path(folder))
        result = run(Path(folder), arguments.seed, arguments.workers, arguments.epochs)
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "seed": arguments.seed,
                      "workers": arguments.workers, **result}))


if __name__ == "__main__":
    main()
