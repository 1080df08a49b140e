"""Trains a small CNN on Fashion-MNIST by headrace.Trainer, saves a checkpoint in the middle, and goes on from it.

--data is a folder with the four IDX files, gzip or plain, as Debian's package dataset-fashion-mnist has them.
"""

import argparse

import headrace as hr
import torch
from torch import nn


def forward(model, batch):
    outputs = model(batch["image"])
    right = (outputs.argmax(1) == batch["labels"]).float().mean()
    return nn.functional.cross_entropy(outputs, batch["labels"]), {"accuracy": right}


def make_trainer():
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 49, 10))
    return hr.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3), forward, max_grad_norm=1.0)


def tell(epoch):
    print(f"epoch {epoch['epoch']}: loss {epoch['loss']:.4f}, {epoch['samples_per_second']:,.0f} images/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--checkpoint", default="fashion.safetensors")
    args = parser.parse_args()

    transform = {"mean": [0.2860], "std": [0.3530]}
    loader = hr.Loader(f"idx:{args.data}", batch_size=args.batch_size, transform=transform)
    test_loader = hr.Loader(f"idx:{args.data}", split="test", batch_size=1000, transform=transform)

    trainer = make_trainer()
    trainer.fit(loader, epochs=args.epochs // 2, on_epoch=tell)
    trainer.save(args.checkpoint)

    again = make_trainer()  # As in another process, some time later.
    again.load(args.checkpoint)
    again.fit(loader, epochs=args.epochs, on_epoch=tell)
    print(again, again.evaluate(test_loader))


if __name__ == "__main__":
    main()
