"""torch's DataLoader with torchvision's decode_jpeg (libjpeg-turbo) and v2 transforms on uint8 tensors, antialiased."""

import torch
import torchvision
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

import protocol
from torchvision_pil import loader

FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(protocol.MEAN, protocol.DEVIATION)]
TRAIN = v2.Compose([v2.RandomResizedCrop(protocol.SIZE, antialias=True), v2.RandomHorizontalFlip(), *FLOAT])
VALIDATION = v2.Compose([v2.Resize(protocol.RESIZE, antialias=True), v2.CenterCrop(protocol.SIZE), *FLOAT])


class Photographs(torch.utils.data.Dataset):
    def __init__(self, folder, transform):
        self.paths, self.labels = protocol.photographs(folder)
        self.transform = transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        picture = decode_jpeg(read_file(self.paths[index]), mode=ImageReadMode.RGB)
        return self.transform(picture), self.labels[index]


def train(arguments):
    return loader(Photographs(arguments.folder, TRAIN), arguments)


def validation(arguments):
    return loader(Photographs(arguments.folder, VALIDATION), arguments, shuffle=False)


if __name__ == "__main__":
    protocol.main(torchvision.__version__, {"train": train, "validation": validation})
