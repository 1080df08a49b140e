"""Trains torchvision's ResNet-18, as it is built for small images, on Fashion-MNIST, and looks at the test set now and then."""

import argparse
import gzip
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import models

on_ready = None  # Called with model, optimizer and loader just before the loop.

DATA = Path("/usr/share/datasets/fashion-mnist")


def read(name, header):
    return torch.frombuffer(bytearray(gzip.decompress((DATA / f"{name}.gz").read_bytes())), dtype=torch.uint8, offset=header)


def data_set(split, count):
    images = read(f"{split}-images-idx3-ubyte", 16).view(-1, 1, 28, 28)[:count].float() / 255
    return TensorDataset(F.pad((images - 0.286) / 0.353, (2, 2, 2, 2)), read(f"{split}-labels-idx1-ubyte", 8)[:count].long())


def small_resnet18():
    model = models.resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(1, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


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
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--evaluate-every", type=int, default=200)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(data_set("train", 20_000), args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(data_set("t10k", 256), 64)

    model = small_resnet18()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    if on_ready is not None:
        on_ready(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for images, labels in loader:
            if torch.rand(()) < 0.5:
                images = images.flip(3)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step % args.evaluate_every == 0:
                print(f"step {step}: accuracy {accuracy(model, test_loader):.4f}", flush=True)
            if step % 100 == 0 or step == args.steps:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
