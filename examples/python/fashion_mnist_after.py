"""Trains a small CNN on Fashion-MNIST with torchvision's data set and a DataLoader.

--data is a folder as torchvision lays it out: FashionMNIST/raw/train-images-idx3-ubyte and so on. From Debian's files:

    mkdir -p data/FashionMNIST/raw
    for f in /usr/share/datasets/fashion-mnist/*.gz; do gunzip <$f >data/FashionMNIST/raw/$(basename $f .gz); done
"""

import argparse
import time

import headrace as hr
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


def accuracy(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.2860,), (0.3530,))])
    train_set = datasets.FashionMNIST(args.data, train=True, transform=transform, download=True)
    test_set = datasets.FashionMNIST(args.data, train=False, transform=transform, download=True)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(test_set, args.batch_size)

    model = nn.Sequential(block(1, 32), block(32, 64), block(64, 128), nn.Flatten(), nn.Linear(128 * 9, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    tuned = hr.tune(model, loader, optimizer, lambda model, batch: criterion(model(batch[0]), batch[1]),
                    epochs=args.epochs)
    print(tuned.summary())
    loader = tuned.loader

    for epoch in range(args.epochs):
        begin = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - begin
        print(f"epoch {epoch + 1}: {seconds:.3f} s, loss {loss.item():.4f}, accuracy {accuracy(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
