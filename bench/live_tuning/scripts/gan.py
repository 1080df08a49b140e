"""Trains a generator and a discriminator against each other on Fashion-MNIST, each with an optimizer of its own."""

import argparse
import gzip
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

on_ready = None  # Called with models, optimizers and loader just before the loop.

FILE = Path("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")
LATENT = 64


def load_images(count):
    images = torch.frombuffer(bytearray(gzip.decompress(FILE.read_bytes())), dtype=torch.uint8, offset=16)
    return images.view(-1, 1, 28, 28)[:count].float() / 127.5 - 1


def make_generator():
    return nn.Sequential(
        nn.Linear(LATENT, 128 * 7 * 7), nn.Unflatten(1, (128, 7, 7)), nn.BatchNorm2d(128), nn.ReLU(),
        nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 1, 4, 2, 1), nn.Tanh())


def make_discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 64, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(64, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.LeakyReLU(0.2),
        nn.Dropout(0.2), nn.Flatten(), nn.Linear(128 * 7 * 7, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(TensorDataset(load_images(30_000)), args.batch_size, shuffle=True, drop_last=True)
    generator, discriminator = make_generator(), make_discriminator()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real_label, fake_label = torch.ones(args.batch_size, 1), torch.zeros(args.batch_size, 1)

    if on_ready is not None:
        on_ready([discriminator, generator], [optimizer_d, optimizer_g], loader)

    step = 0
    while step < args.steps:
        for (real,) in loader:
            fake = generator(torch.randn(args.batch_size, LATENT))

            optimizer_d.zero_grad()
            loss_d = (F.binary_cross_entropy_with_logits(discriminator(real), real_label)
                      + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), fake_label))
            loss_d.backward()
            optimizer_d.step()

            optimizer_g.zero_grad()
            loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), real_label)
            loss_g.backward()
            optimizer_g.step()

            step += 1
            if step % 200 == 0 or step == args.steps:
                print(f"step {step}: discriminator {loss_d.item():.4f}, loss {loss_g.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
