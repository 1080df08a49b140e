"""Fine-tunes torchvision's ResNet-18 on a folder of photographs.

--data is an ImageFolder: train/CLASS/*.jpg and val/CLASS/*.jpg. --weights is a state_dict of resnet18, of 1000 classes or of
as many as the folder has; without it the network begins at random.
"""

import argparse
import pathlib
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def accuracy(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (model(images).argmax(1) == labels).sum().item()
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("photos"))
    parser.add_argument("--weights", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    augment = transforms.Compose([
        transforms.RandomResizedCrop(args.size), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize])
    plain = transforms.Compose([
        transforms.Resize(args.size), transforms.CenterCrop(args.size), transforms.ToTensor(), normalize])
    train_set = datasets.ImageFolder(args.data / "train", augment)
    val_set = datasets.ImageFolder(args.data / "val", plain)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, args.batch_size)

    model = models.resnet18()
    if args.weights:
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    model.fc = nn.Linear(model.fc.in_features, len(train_set.classes))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))

    for epoch in range(args.epochs):
        begin = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
        seconds = time.perf_counter() - begin
        print(f"epoch {epoch + 1}: {seconds:.3f} s, loss {loss.item():.4f}, accuracy {accuracy(model, val_loader):.4f}")


if __name__ == "__main__":
    main()
