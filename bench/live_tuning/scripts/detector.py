"""Trains a small anchor-free detector: each cell of the last layer says whether an object's centre lies in it, and its size.

The images are made from the seed: one to four rectangles of three colours on a noisy ground, so every image has another number
of boxes.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

on_ready = None  # Called with model, optimizer and loader just before the loop.

SIDE, STRIDE, CLASSES = 96, 4, 3


class Rectangles(Dataset):
    def __init__(self, size, seed):
        self.size = size
        self.seed = seed

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        image = 0.2 * torch.rand(3, SIDE, SIDE, generator=generator)
        count = int(torch.randint(1, 5, (), generator=generator))
        boxes, labels = [], []
        for _ in range(count):
            width, height = torch.randint(12, 40, (2,), generator=generator).tolist()
            left = int(torch.randint(0, SIDE - width, (), generator=generator))
            top = int(torch.randint(0, SIDE - height, (), generator=generator))
            label = int(torch.randint(0, CLASSES, (), generator=generator))
            image[label, top:top + height, left:left + width] += 0.6
            boxes.append([left, top, left + width, top + height])
            labels.append(label)
        return image, torch.tensor(boxes, dtype=torch.float32), torch.tensor(labels)


def collate(samples):
    images, boxes, labels = zip(*samples)
    return torch.stack(images), boxes, labels


def targets_of(boxes, labels):
    """Of a batch: a heat map that is 1 at centres, the sizes of the boxes, and where these count."""
    cells = SIDE // STRIDE
    heat = torch.zeros(len(boxes), CLASSES, cells, cells)
    size, counts = torch.zeros(len(boxes), 2, cells, cells), torch.zeros(len(boxes), 1, cells, cells)
    around = torch.arange(cells, dtype=torch.float32)
    for i, (own_boxes, own_labels) in enumerate(zip(boxes, labels)):
        for (left, top, right, bottom), label in zip(own_boxes.tolist(), own_labels.tolist()):
            x, y = (left + right) / 2 / STRIDE, (top + bottom) / 2 / STRIDE
            column, row = int(x), int(y)
            distance = (around[:, None] - row) ** 2 + (around[None, :] - column) ** 2
            heat[i, label] = torch.maximum(heat[i, label], torch.exp(-distance / 2))
            size[i, :, row, column] = torch.tensor([right - left, bottom - top]) / SIDE
            counts[i, 0, row, column] = 1
    return heat, size, counts


def convolution(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class Detector(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.backbone = nn.Sequential(
            convolution(3, width, 2), convolution(width, width), convolution(width, 2 * width, 2),
            convolution(2 * width, 2 * width), convolution(2 * width, 2 * width))
        self.heat = nn.Sequential(convolution(2 * width, width), nn.Conv2d(width, CLASSES, 1))
        self.size = nn.Sequential(convolution(2 * width, width), nn.Conv2d(width, 2, 1))

    def forward(self, images):
        features = self.backbone(images)
        return {"heat": self.heat(features), "size": self.size(features)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(Rectangles(4000, args.seed), args.batch_size, shuffle=True, drop_last=True, collate_fn=collate)
    model = Detector()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    if on_ready is not None:
        on_ready(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for images, boxes, labels in loader:
            heat, size, counts = targets_of(boxes, labels)
            found = model(images)
            heat_loss = F.binary_cross_entropy_with_logits(found["heat"], heat, reduction="sum") / counts.sum()
            size_loss = (F.l1_loss(found["size"], size, reduction="none") * counts).sum() / counts.sum()
            loss = heat_loss + 5 * size_loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0 or step == args.steps:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
