"""Trains a LightningModule on Fashion-MNIST with Lightning's Trainer.

Needs the package lightning, which the frameworks' environment has and the project's own has not.
"""

import argparse
import gzip
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

try:
    import lightning
except ImportError as error:
    raise SystemExit(f"lightning_module: wanted lightning, of the frameworks' environment; found: {error}") from None

on_ready = None  # Called with model, optimizer and loader just before the loop, when the Trainer has made them.

DATA = Path("/usr/share/datasets/fashion-mnist")


class Ready(lightning.Callback):
    def on_train_start(self, trainer, module):
        if on_ready is not None:
            (optimizer,) = trainer.optimizers
            on_ready(module, optimizer, trainer.train_dataloader)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 7 * 7, 10))
        self.last_loss = None

    def forward(self, images):
        return self.layers(images)

    def training_step(self, batch, batch_index):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.last_loss = loss.detach()
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def read(name, header):
    return torch.frombuffer(bytearray(gzip.decompress((DATA / f"{name}.gz").read_bytes())), dtype=torch.uint8, offset=header)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    lightning.seed_everything(args.seed, verbose=False)
    images = read("train-images-idx3-ubyte", 16).view(-1, 1, 28, 28).float() / 255
    dataset = TensorDataset(images, read("train-labels-idx1-ubyte", 8).long())
    loader = DataLoader(dataset, args.batch_size, shuffle=True, drop_last=True)
    module = Classifier()
    trainer = lightning.Trainer(
        max_steps=args.steps, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Ready()])
    trainer.fit(module, loader)
    print(f"step {trainer.global_step}: loss {module.last_loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
