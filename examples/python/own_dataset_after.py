"""Trains a network on a data set of one's own: which of ten tones a second of noisy sound holds.

Each sample is made from its index, waveform and logarithmic spectrogram, as data sets of sound often do it.
"""

import argparse
import time

import headrace as hr
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Tones(Dataset):
    RATE = 8000
    CLASSES = 10

    def __init__(self, size, seed):
        self.size = size
        self.seed = seed
        self.window = torch.hann_window(256)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % self.CLASSES
        time_s = torch.arange(self.RATE) / self.RATE
        frequency = 200 * 1.2**label * (1 + 0.02 * torch.randn((), generator=generator))
        wave = torch.sin(2 * torch.pi * frequency * time_s) + torch.randn(self.RATE, generator=generator)
        spectrum = torch.stft(wave, 256, 128, window=self.window, return_complex=True).abs()
        return spectrum.log1p().unsqueeze(0), label


def accuracy(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for sounds, labels in loader:
            right += (model(sounds).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(Tones(args.samples, seed=1), args.batch_size, shuffle=True, drop_last=True)
    test_loader = DataLoader(Tones(max(args.samples // 10, 100), seed=2), args.batch_size)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.AdaptiveMaxPool2d((15, 1)), nn.Flatten(), nn.Linear(32 * 15, 10))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    tuned = hr.tune(model, loader, optimizer, lambda model, batch: criterion(model(batch[0]), batch[1]),
                    epochs=args.epochs)
    print(tuned.summary())
    loader = tuned.loader

    for epoch in range(args.epochs):
        begin = time.perf_counter()
        for sounds, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(sounds), labels)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - begin
        print(f"epoch {epoch + 1}: {seconds:.3f} s, loss {loss.item():.4f}, accuracy {accuracy(model, test_loader):.4f}")


if __name__ == "__main__":
    main()
