"""torch's DataLoader with OpenCV's decoder and albumentations, which resizes bilinearly without antialiasing by default."""

import albumentations
import cv2
import numpy
from albumentations.pytorch import ToTensorV2

import protocol
from torchvision_pil import Photographs, loader

cv2.setNumThreads(0)
FLOAT = [albumentations.Normalize(protocol.MEAN, protocol.DEVIATION), ToTensorV2()]
DRAWN = [albumentations.RandomResizedCrop((protocol.SIZE, protocol.SIZE)), albumentations.HorizontalFlip()]
TRAIN, TRAIN_UINT8 = albumentations.Compose([*DRAWN, *FLOAT]), albumentations.Compose([*DRAWN, ToTensorV2()])
VALIDATION = albumentations.Compose([albumentations.SmallestMaxSize(protocol.RESIZE),
                                     albumentations.CenterCrop(protocol.SIZE, protocol.SIZE), *FLOAT])


def decoded(path: str) -> numpy.ndarray:
    return cv2.cvtColor(cv2.imdecode(numpy.fromfile(path, dtype=numpy.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def photographs(folder, transform):
    return Photographs(folder, lambda path: transform(image=decoded(path))["image"])


class AugmentedImages(protocol.SmallImages):
    def __init__(self, folder, transform):
        super().__init__(folder)
        self.transform = transform

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return self.transform(image=image)["image"], label


def train(arguments):
    return loader(photographs(arguments.folder, TRAIN), arguments)


def validation(arguments):
    return loader(photographs(arguments.folder, VALIDATION), arguments, shuffle=False)


def decoded_cache(arguments):
    return loader(AugmentedImages(arguments.folder, TRAIN), arguments)


def decoded_cache_uint8(arguments):
    return loader(AugmentedImages(arguments.folder, TRAIN_UINT8), arguments)


if __name__ == "__main__":
    protocol.main(f"{cv2.__version__}, albumentations {albumentations.__version__}",
                  {"train": train, "validation": validation, "decoded_cache": decoded_cache,
                   "decoded_cache_uint8": decoded_cache_uint8})
