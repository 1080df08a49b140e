"""torch's DataLoader with worker processes over torchvision's ImageFolder: Pillow decodes and resizes with antialiasing."""

import torch
import torchvision
from PIL import Image
from torchvision import datasets, transforms

import protocol

NORMALIZE = transforms.Normalize(protocol.MEAN, protocol.DEVIATION)
TRAIN = transforms.Compose([transforms.RandomResizedCrop(protocol.SIZE), transforms.RandomHorizontalFlip(),
                            transforms.ToTensor(), NORMALIZE])
VALIDATION = transforms.Compose([transforms.Resize(protocol.RESIZE), transforms.CenterCrop(protocol.SIZE),
                                 transforms.ToTensor(), NORMALIZE])
FASHION = transforms.Compose([transforms.RandomCrop(protocol.FASHION_SIDE, padding=protocol.FASHION_PAD),
                              transforms.RandomHorizontalFlip(), transforms.ToTensor(),
                              transforms.Normalize([protocol.FASHION_MEAN], [protocol.FASHION_DEVIATION])])


class Photographs(torch.utils.data.Dataset):
    """Every photograph as `image_of(path)`, for rivals that decode and transform in their own way."""

    def __init__(self, folder, image_of):
        self.paths, self.labels = protocol.photographs(folder)
        self.image_of = image_of

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.image_of(self.paths[index]), self.labels[index]


class Fashion(torch.utils.data.Dataset):
    """An image at a time, as torchvision's FashionMNIST gives it."""

    def __init__(self, folder):
        self.images, self.labels = protocol.fashion(folder)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return FASHION(Image.fromarray(self.images[index])), int(self.labels[index])


def loader(dataset, arguments, shuffle: bool = True, batch: int = protocol.BATCH):
    torch.set_num_threads(1)
    made = torch.utils.data.DataLoader(dataset, batch_size=batch, shuffle=shuffle, drop_last=True,
                                       num_workers=arguments.threads, persistent_workers=True)
    return protocol.forever(lambda: made)


def train(arguments):
    return loader(datasets.ImageFolder(arguments.folder / "photographs" / "train", TRAIN), arguments)


def validation(arguments):
    return loader(datasets.ImageFolder(arguments.folder / "photographs" / "val", VALIDATION), arguments, shuffle=False)


def fashion(arguments):
    return loader(Fashion(arguments.folder), arguments, batch=protocol.FASHION_BATCH)


if __name__ == "__main__":
    protocol.main(torchvision.__version__, {"train": train, "validation": validation, "fashion": fashion})
