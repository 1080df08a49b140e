"""Trains a LightningModule on Fashion-MNIST, tuned by a callback while it runs. Needs the package lightning.

--data is a folder with the four IDX files, gzip or plain, as Debian's package dataset-fashion-mnist has them.
"""

import argparse

import headrace as hr
import lightning
import torch
from headrace.lightning import AutoTune
from torch import nn


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 14 * 14, 10))

    def training_step(self, batch, batch_index):
        images, labels = batch
        return nn.functional.cross_entropy(self.layers(images), labels)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    lightning.seed_everything(1, verbose=False)
    loader = hr.Loader(f"idx:{args.data}", batch_size=args.batch_size, drop_last=True, transform={"mean": [0.2860], "std": [0.3530]})
    tuning = AutoTune(allow="reduced_precision")
    trainer = lightning.Trainer(max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
                                enable_progress_bar=False, enable_model_summary=False, callbacks=[tuning])
    trainer.fit(Classifier(), loader)
    print(tuning.handle.report())


if __name__ == "__main__":
    main()
