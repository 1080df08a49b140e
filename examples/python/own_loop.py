"""Trains a small CNN on Fashion-MNIST with a loop of its own, which tunes itself while it runs: one line before it.

--data is a folder with the four IDX files, gzip or plain, as Debian's package dataset-fashion-mnist has them.
"""

import argparse

import headrace as hr
import torch
from torch import nn


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--out", help="a folder for report.html and ledger.json")
    args = parser.parse_args()

    torch.manual_seed(1)
    transform = {"mean": [0.2860], "std": [0.3530]}
    loader = hr.Loader(f"idx:{args.data}", batch_size=args.batch_size, drop_last=True, transform=transform)
    test_loader = hr.Loader(f"idx:{args.data}", split="test", batch_size=1000, transform=transform)
    model = nn.Sequential(block(1, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 9, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    tuning = hr.autotune(model, optimizer, loader, epochs=args.epochs, out=args.out)

    for epoch in range(args.epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {accuracy(model, test_loader):.4f}")
    print(tuning.report())


if __name__ == "__main__":
    main()
