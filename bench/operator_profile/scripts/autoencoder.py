"""Rebuilds grey images of 28 x 28 from what two convolutions leave of them."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 16, 2, 20


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.rand(BATCH * STEPS // EPOCHS, 1, 28, 28)), batch_size=BATCH, shuffle=True)

    model = Autoencoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    with profile():
        for epoch in range(EPOCHS):
            running_loss = 0.0
            for (images,) in loader:
                images = images.to(device)
                optimizer.zero_grad()
                loss = F.binary_cross_entropy(model(images), images)
                loss.backward()
                optimizer.step()
                running_loss += loss.item()
            scheduler.step()
            print(f"epoch {epoch + 1}: loss {running_loss / len(loader):.4f}")


if __name__ == "__main__":
    main()
