"""torch's DataLoader with torchvision's decode_jpeg (libjpeg-turbo) and v2 transforms on uint8 tensors, antialiased."""

import torch
import torchvision
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

import protocol
from torchvision_pil import Photographs, loader

FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(protocol.MEAN, protocol.DEVIATION)]
TRAIN = v2.Compose([v2.RandomResizedCrop(protocol.SIZE, antialias=True), v2.RandomHorizontalFlip(), *FLOAT])
VALIDATION = v2.Compose([v2.Resize(protocol.RESIZE, antialias=True), v2.CenterCrop(protocol.SIZE), *FLOAT])


def photographs(folder, transform):
    return Photographs(folder, lambda path: transform(decode_jpeg(read_file(path), mode=ImageReadMode.RGB)))


def train(arguments):
    return loader(photographs(arguments.folder, TRAIN), arguments)


def validation(arguments):
    return loader(photographs(arguments.folder, VALIDATION), arguments, shuffle=False)


if __name__ == "__main__":
    protocol.main(torchvision.__version__, {"train": train, "validation": validation})
