"""Trains a small vision transformer on Fashion-MNIST with a warm-up, a cosine schedule and clipping, while headrace.autotune tunes
the run. bfloat16 is allowed.

--data is a folder with the four IDX files, gzip or plain, as Debian's package dataset-fashion-mnist has them.
"""

import argparse
import math

import headrace as hr
import torch
from torch import nn


class ViT(nn.Module):
    def __init__(self, dim=192, depth=6, heads=3, patch=4):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.positions = nn.Parameter(0.02 * torch.randn(1, (28 // patch) ** 2, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.encoder(tokens + self.positions).mean(dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--depth", type=int, default=6)
    args = parser.parse_args()

    torch.manual_seed(1)
    loader = hr.Loader(f"idx:{args.data}", batch_size=args.batch_size, drop_last=True, transform={
        "pad": 2, "flip_probability": 0.5, "mean": [0.2860], "std": [0.3530]})
    model = ViT(depth=args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    warm_up = max(1, args.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / args.steps)))

    tuning = hr.autotune(model, optimizer, loader, steps=args.steps, allow="reduced_precision")

    step = 0
    while step < args.steps:
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.4f}")
            if step == args.steps:
                break
    print(tuning.report())


if __name__ == "__main__":
    main()
