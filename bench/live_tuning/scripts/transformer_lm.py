"""Trains a transformer language model on sequences of very different lengths, with two micro-batches an update.

A sequence is made from the seed: numbers that go up by the same step, wrap around, and are sometimes wrong.
"""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Sampler

on_ready = None  # Called with model, optimizer and loader just before the loop.

VOCABULARY = 512
PADDING = 0
ACCUMULATION = 2


class Progressions(Dataset):
    def __init__(self, size, seed):
        draw = random.Random(seed)
        self.sequences = []
        for _ in range(size):
            start, step, length = draw.randrange(VOCABULARY), draw.randrange(1, 9), draw.randint(12, 128)
            self.sequences.append(torch.tensor([
                1 + (draw.randrange(VOCABULARY) if draw.random() < 0.05 else start + step * i) % (VOCABULARY - 1)
                for i in range(length)]))

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return self.sequences[index]


class BatchesOfLikeLength(Sampler):
    """Batches whose sequences have about one length, in random order."""

    def __init__(self, lengths, batch_size):
        by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
        self.batches = [by_length[at:at + batch_size] for at in range(0, len(by_length) - batch_size + 1, batch_size)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for place in torch.randperm(len(self.batches)).tolist():
            yield self.batches[place]


class LanguageModel(nn.Module):
    def __init__(self, dim=128, layers=4):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, dim), nn.Embedding(128, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.output = nn.Linear(dim, VOCABULARY)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.positions(torch.arange(length))
        return self.output(self.encoder(x, mask=mask, is_causal=True))


def collate(sequences):
    return pad_sequence(sequences, batch_first=True, padding_value=PADDING)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="updates, of two micro-batches each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    dataset = Progressions(4000, args.seed)
    sampler = BatchesOfLikeLength([len(sequence) for sequence in dataset.sequences], args.batch_size)
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)

    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=50)

    if on_ready is not None:
        on_ready(model, optimizer, loader)

    update, micro_batch = 0, 0
    while update < args.steps:
        for tokens in loader:
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PADDING)
            (loss / ACCUMULATION).backward()
            micro_batch += 1
            if micro_batch % ACCUMULATION:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            update += 1
            if update % 100 == 0 or update == args.steps:
                print(f"step {update}: loss {loss.item():.4f}", flush=True)
            if update == args.steps:
                break


if __name__ == "__main__":
    main()
