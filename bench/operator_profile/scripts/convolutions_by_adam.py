"""The small convolutional network with AdamW, a one-cycle rate, and images that are flipped and shifted as they are read."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 8, 2, 20


class SmallCnn(nn.Module):
    def __init__(self, channels=16, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x):
        return self.classifier(self.features(x))


class Images(Dataset):
    def __init__(self, count):
        self.images = torch.randn(count, 3, 32, 32)
        self.labels = torch.randint(10, (count,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(1).item() < 0.5:
            image = image.flip(-1)
        return (image - 0.5) / 0.25, self.labels[index]


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(Images(BATCH * STEPS // EPOCHS), batch_size=BATCH, shuffle=True, drop_last=True)

    model = SmallCnn().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=STEPS)

    with profile():
        for epoch in range(EPOCHS):
            running_loss = 0.0
            for images, labels in loader:
                images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
                optimizer.zero_grad(set_to_none=True)
                loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
                loss.backward()
                optimizer.step()
                scheduler.step()
                running_loss += loss.item() * images.size(0)
            print(f"epoch {epoch + 1}: loss {running_loss / len(loader.dataset):.4f}")


if __name__ == "__main__":
    main()
