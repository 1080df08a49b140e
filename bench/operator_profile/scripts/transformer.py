"""Classifies sequences of tokens by a transformer's encoder: AdamW, a rate that first rises."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 8, 2, 20


class TransformerClassifier(nn.Module):
    def __init__(self, tokens=500, length=16, width=64, classes=10):
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=128, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x) + self.positions).mean(dim=1))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randint(500, (count, 16)), torch.randint(10, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = TransformerClassifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=10)

    model.train()
    with profile():
        for epoch in range(EPOCHS):
            running_loss = 0.0
            for tokens, labels in loader:
                tokens, labels = tokens.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(tokens), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                running_loss += loss.item()
            print(f"epoch {epoch + 1}: loss {running_loss / len(loader):.4f}, rate {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
