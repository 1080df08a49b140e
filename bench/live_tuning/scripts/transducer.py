"""Trains a recurrent transducer (Graves 2012) on made-up speech: the sum over all alignments is a loop in Python whose length
changes from batch to batch, and batches come from a generator.

A label sounds as two to four noisy copies of its own frame. Batches are made from the seed, all of one length each.
"""

import argparse
import random

import torch
from torch import nn

on_ready = None  # Called with model, optimizer and None (no loader) just before the loop.

LABELS, BLANK, FRAME = 12, 0, 24


def batches(batch_size, seed):
    """Frames and labels, without end."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    sounds = torch.randn(LABELS, FRAME, generator=generator)
    while True:
        count = draw.randint(3, 8)
        length = count * draw.randint(2, 4)
        labels = torch.randint(1, LABELS, (batch_size, count), generator=generator)
        frames = sounds[labels].repeat_interleave(length // count, dim=1)
        yield frames + 0.5 * torch.randn(frames.shape, generator=generator), labels


class Transducer(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.encoder = nn.GRU(FRAME, hidden, batch_first=True, bidirectional=True)
        self.embedding = nn.Embedding(LABELS, 32)
        self.prediction = nn.GRU(32, hidden, batch_first=True)
        self.from_encoder, self.from_prediction = nn.Linear(2 * hidden, hidden), nn.Linear(hidden, hidden)
        self.joint = nn.Linear(hidden, LABELS)

    def forward(self, frames, labels):
        """Log-probabilities of every label at each frame behind each prefix of the labels."""
        heard, _ = self.encoder(frames)
        begun = torch.cat([torch.full_like(labels[:, :1], BLANK), labels], dim=1)
        said, _ = self.prediction(self.embedding(begun))
        joined = self.from_encoder(heard).unsqueeze(2) + self.from_prediction(said).unsqueeze(1)
        return self.joint(torch.tanh(joined)).log_softmax(dim=-1)


def transducer_loss(log_probabilities, labels):
    """Minus the log of the sum over all ways to read the labels off the frames."""
    _, length, prefixes, _ = log_probabilities.shape
    blank = log_probabilities[..., BLANK]
    wanted = labels.unsqueeze(1).unsqueeze(3).expand(-1, length, -1, 1)
    emit = log_probabilities[:, :, :-1].gather(3, wanted).squeeze(3)
    row = None
    for frame in range(length):
        cells = []
        for prefix in range(prefixes):
            below = None if row is None else row[prefix] + blank[:, frame - 1, prefix]
            before = cells[-1] + emit[:, frame, prefix - 1] if prefix else None
            if below is None and before is None:
                cells.append(torch.zeros_like(blank[:, 0, 0]))
            elif below is None or before is None:
                cells.append(before if below is None else below)
            else:
                cells.append(torch.logaddexp(below, before))
        row = cells
    return -(row[-1] + blank[:, -1, -1]).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Transducer()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    if on_ready is not None:
        on_ready(model, optimizer, None)

    for step, (frames, labels) in zip(range(1, args.steps + 1), batches(args.batch_size, args.seed)):
        optimizer.zero_grad()
        loss = transducer_loss(model(frames, labels), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 200 == 0 or step == args.steps:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
