"""The small convolutional network with images in channels-last order."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 16, 2, 20


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


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randn(count, 3, 32, 32), torch.randint(10, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = SmallCnn().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1], gamma=0.1)

    with profile():
        for epoch in range(EPOCHS):
            for step, (images, labels) in enumerate(loader):
                images = images.to(device, memory_format=torch.channels_last)
                labels = labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(images), labels)
                loss.backward()
                optimizer.step()
                if (step + 1) % 5 == 0:
                    print(f"epoch {epoch + 1}, step {step + 1}: loss {loss.item():.4f}")
            scheduler.step()


if __name__ == "__main__":
    main()
