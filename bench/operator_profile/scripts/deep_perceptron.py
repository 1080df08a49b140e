"""A narrow network of 13 layers on small batches: many small operators, Adam, a rate that falls with each step."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 32, 2, 20


class DeepNet(nn.Module):
    def __init__(self, width=64, depth=12, classes=5):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randn(count, 64), torch.randint(5, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = DeepNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)

    with profile():
        for epoch in range(EPOCHS):
            for i, (inputs, labels) in enumerate(loader):
                inputs, labels = inputs.to(device), labels.to(device)
                loss = F.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
                if i % 5 == 0:
                    print(f"epoch {epoch + 1}, batch {i}: loss {loss.item():.4f}, rate {scheduler.get_last_lr()[0]:.2e}")


if __name__ == "__main__":
    main()
