"""A data set of one's own: images of rectangles, each with as many boxes as it shows, read by worker processes.

Boxes differ in number from image to image, and are a field of their own in each batch. No data are needed.
"""

import argparse

import headrace as hr
import numpy
import torch
from torch import nn


class Rectangles:
    """What it takes is __len__ and __getitem__. Workers get it once, by pickle."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        draw = numpy.random.default_rng(index)
        image = numpy.zeros((48, 48, 3), numpy.uint8)
        boxes = numpy.zeros((draw.integers(1, 4), 4), numpy.float32)
        for box in boxes:
            top, left, height, width = (*draw.integers(0, 32, 2), *draw.integers(4, 16, 2))
            image[top:top + height, left:left + width] = draw.integers(64, 256, 3)
            box[:] = numpy.array([top, left, height, width]) / 48
        return {"image": image, "boxes": boxes, "name": f"image {index}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--worker-type", default="process", choices=["thread", "process"])
    args = parser.parse_args()

    torch.manual_seed(1)
    loader = hr.Loader(Rectangles(args.samples), batch_size=args.batch_size, num_workers=2, worker_type=args.worker_type,
                       fields={"boxes": hr.Field("float32", (-1, 4))}, transform={"size": 48})
    model = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
                          nn.Linear(32 * 11 * 11, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for batch in loader:
            boxes = batch["boxes"]  # boxes[i]: those of image i; boxes.values: all of them, one behind the other.
            of_image = torch.repeat_interleave(torch.arange(len(boxes)), boxes.offsets.diff())
            optimizer.zero_grad()
            loss = nn.functional.smooth_l1_loss(model(batch["image"])[of_image], boxes.values)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}; the last batch: {batch}")


if __name__ == "__main__":  # Worker processes import this file.
    main()
