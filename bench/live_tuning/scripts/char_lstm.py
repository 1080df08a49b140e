"""Trains an LSTM to predict the next character of a text.

The text is made from the seed: 400 words of random letters, the first of them far more frequent than the last.
"""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

on_ready = None  # Called with model, optimizer and loader just before the loop.


def make_text(words, seed):
    draw = random.Random(seed)
    vocabulary = ["".join(draw.choices("etaoinshrdlucmfwypvbgk", k=draw.randint(2, 8))) for _ in range(400)]
    return " ".join(draw.choices(vocabulary, [1 / rank for rank in range(1, 401)], k=words))


class Windows(Dataset):
    """Pieces of the text, and the same one character later."""

    def __init__(self, codes, length):
        self.codes = codes
        self.length = length

    def __len__(self):
        return (len(self.codes) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        return self.codes[start:start + self.length], self.codes[start + 1:start + self.length + 1]


class CharLstm(nn.Module):
    def __init__(self, characters, hidden=256):
        super().__init__()
        self.embedding = nn.Embedding(characters, 64)
        self.lstm = nn.LSTM(64, hidden, num_layers=2, batch_first=True, dropout=0.1)
        self.output = nn.Linear(hidden, characters)

    def forward(self, codes):
        hidden, _ = self.lstm(self.embedding(codes))
        return self.output(hidden)


def loss_of(model, batch):
    codes, following = batch
    return F.cross_entropy(model(codes).flatten(0, 1), following.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    text = make_text(60_000, args.seed)
    characters = sorted(set(text))
    codes = torch.tensor([characters.index(character) for character in text])
    loader = DataLoader(Windows(codes, args.length), args.batch_size, shuffle=True, drop_last=True)

    model = CharLstm(len(characters))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

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
            step += 1
            if step % 500 == 0 or step == args.steps:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
