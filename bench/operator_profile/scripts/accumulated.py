"""The small convolutional network with gradients that are gathered over four batches before an update."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 4, 2, 20


class SmallCnn(nn.Module):
    def __init__(self, channels=8, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x):
        return self.classifier(self.features(x))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    accumulation_steps = 4
    count = BATCH * accumulation_steps * STEPS // EPOCHS
    dataset = TensorDataset(torch.randn(count, 3, 24, 24), torch.randint(10, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = SmallCnn().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    with profile():
        for epoch in range(EPOCHS):
            optimizer.zero_grad()
            for i, (images, labels) in enumerate(loader):
                images, labels = images.to(device), labels.to(device)
                loss = criterion(model(images), labels) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
            scheduler.step()
            print(f"epoch {epoch + 1}: loss {loss.item() * accumulation_steps:.4f}")


if __name__ == "__main__":
    main()
