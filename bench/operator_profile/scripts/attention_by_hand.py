"""Classifies sets of vectors by an attention that is written out."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 8, 2, 20


class Attention(nn.Module):
    def __init__(self, width=64, heads=4, classes=10):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        out = torch.softmax(scores, dim=-1) @ v
        return self.head(out.transpose(1, 2).reshape(batch, length, width).mean(dim=1))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randn(count, 32, 64), torch.randint(10, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = Attention().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)

    with profile():
        for epoch in range(EPOCHS):
            for inputs, labels in loader:
                inputs, labels = inputs.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()
                scheduler.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
