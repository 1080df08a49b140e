"""Trains an MLP on a table: predicts a number from 24 measured columns and a category.

The table is made from the seed: a smooth function of some of the columns, an offset for each category, and noise.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

on_ready = None  # Called with model, optimizer and loader just before the loop.

COLUMNS = 24
CATEGORIES = 50


def make_table(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, COLUMNS, generator=generator)
    category = torch.randint(CATEGORIES, (rows,), generator=generator)
    offset = torch.randn(CATEGORIES, generator=generator)
    target = numbers[:, 0] * numbers[:, 1] + torch.sin(2 * numbers[:, 2]) + offset[category]
    target += 0.1 * torch.randn(rows, generator=generator)
    return TensorDataset(numbers, category, target)


class TabularNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embedding = nn.Embedding(CATEGORIES, 8)
        self.layers = nn.Sequential(
            nn.Linear(COLUMNS + 8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 1))

    def forward(self, numbers, category):
        return self.layers(torch.cat([numbers, self.embedding(category)], dim=1)).squeeze(1)


def loss_of(model, batch):
    numbers, category, target = batch
    return F.mse_loss(model(numbers, category), target)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    dataset = make_table(100_000, args.seed)
    # Whole batches are taken out of the tensors at once: a batch of single rows would take longer than the step.
    sampler = BatchSampler(RandomSampler(dataset), args.batch_size, drop_last=True)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)

    model = TabularNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    if on_ready is not None:
        on_ready(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5000 == 0 or step == args.steps:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
