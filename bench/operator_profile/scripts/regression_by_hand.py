"""Fits four matrices to a table by hand-written layers and a penalty on the weights."""

from contextlib import nullcontext

import torch
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 32, 2, 20


def forward(weights, x):
    for weight in weights:
        x = torch.sin(x @ weight) + 0.1 * x
    return x


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    loader = DataLoader(TensorDataset(torch.randn(count, 64), torch.randn(count, 64)), batch_size=BATCH, shuffle=True)

    weights = [(torch.randn(64, 64, device=device) / 8).requires_grad_() for _ in range(4)]
    optimizer = torch.optim.SGD(weights, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

    with profile():
        for epoch in range(EPOCHS):
            for inputs, targets in loader:
                inputs, targets = inputs.to(device), targets.to(device)
                error = ((forward(weights, inputs) - targets) ** 2).mean()
                loss = error + 1e-4 * sum((weight ** 2).sum() for weight in weights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}, of that error {error.item():.4f}")


if __name__ == "__main__":
    main()
