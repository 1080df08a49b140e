"""Trains a small vision transformer on Fashion-MNIST, with worker processes, a warm-up and a cosine schedule."""

import argparse
import gzip
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

on_ready = None  # Called with model, optimizer and loader just before the loop.

DATA = Path("/usr/share/datasets/fashion-mnist")


def read(name, header):
    return torch.frombuffer(bytearray(gzip.decompress((DATA / f"{name}.gz").read_bytes())), dtype=torch.uint8, offset=header)


class FashionMnist(Dataset):
    """Images that are moved by up to two pixels and flipped at random."""

    def __init__(self):
        self.images = read("train-images-idx3-ubyte", 16).view(-1, 1, 28, 28)
        self.labels = read("train-labels-idx1-ubyte", 8)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = F.pad(self.images[index].float() / 255, (2, 2, 2, 2))
        top, left = torch.randint(5, (2,)).tolist()
        image = image[:, top:top + 28, left:left + 28]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return (image - 0.286) / 0.353, int(self.labels[index])


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + self.project(attention)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, dim=192, depth=6, heads=3, patch=4):
        super().__init__()
        self.patches = nn.Conv2d(1, dim, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + (28 // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def loss_of(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels, label_smoothing=0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(FashionMnist(), args.batch_size, shuffle=True, num_workers=args.workers, drop_last=True)
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * min(1, step / args.steps))))

    if on_ready is not None:
        on_ready(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 100 == 0 or step == args.steps:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
