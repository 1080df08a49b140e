"""torch's DataLoader with OpenCV's decoder and albumentations, which resizes bilinearly without antialiasing by default."""

import json

import albumentations
import cv2
import numpy
import torch
from albumentations.pytorch import ToTensorV2

import protocol
from torchvision_pil import loader

cv2.setNumThreads(0)
FLOAT = [albumentations.Normalize(protocol.MEAN, protocol.DEVIATION), ToTensorV2()]
TRAIN = albumentations.Compose([albumentations.RandomResizedCrop((protocol.SIZE, protocol.SIZE)),
                                albumentations.HorizontalFlip(), *FLOAT])
VALIDATION = albumentations.Compose([albumentations.SmallestMaxSize(protocol.RESIZE),
                                     albumentations.CenterCrop(protocol.SIZE, protocol.SIZE), *FLOAT])


def decoded(path: str) -> numpy.ndarray:
    return cv2.cvtColor(cv2.imdecode(numpy.fromfile(path, dtype=numpy.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


class Photographs(torch.utils.data.Dataset):
    def __init__(self, folder, transform):
        self.paths, self.labels = protocol.photographs(folder)
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(image=decoded(self.paths[index]))["image"], self.labels[index]


class Small(torch.utils.data.Dataset):
    """Decoded pictures from the mapped file of all pixels."""

    def __init__(self, folder):
        self.entries = json.loads((folder / "small.json").read_text())
        self.pixels = numpy.memmap(folder / "small.bin", dtype=numpy.uint8, mode="r")

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        entry = self.entries[index]
        height, width = entry["height"], entry["width"]
        picture = self.pixels[entry["at"]:entry["at"] + height * width * 3].reshape(height, width, 3)
        return TRAIN(image=numpy.asarray(picture))["image"], entry["label"]


def train(arguments):
    return loader(Photographs(arguments.folder, TRAIN), arguments)


def validation(arguments):
    return loader(Photographs(arguments.folder, VALIDATION), arguments, shuffle=False)


def decoded_cache(arguments):
    return loader(Small(arguments.folder), arguments)


if __name__ == "__main__":
    protocol.main(f"{cv2.__version__}, albumentations {albumentations.__version__}",
                  {"train": train, "validation": validation, "decoded_cache": decoded_cache})
