"""Predicts a sequence's class by a GRU cell that is called moment by moment."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 16, 2, 20


class UnrolledGru(nn.Module):
    def __init__(self, inputs=32, hidden=64, classes=4):
        super().__init__()
        self.cell = nn.GRUCell(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        state = x.new_zeros(x.size(0), self.cell.hidden_size)
        for moment in x.unbind(1):
            state = self.cell(moment, state)
        return self.head(state)


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randn(count, 20, 32), torch.randint(4, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = UnrolledGru().to(device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))

    with profile():
        for epoch in range(EPOCHS):
            for i, (sequences, labels) in enumerate(loader):
                sequences, labels = sequences.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = F.cross_entropy(model(sequences), labels)
                loss.backward()
                nn.utils.clip_grad_value_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                if i % 5 == 0:
                    print(f"epoch {epoch + 1}, batch {i}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
