"""A folder of photographs as a PyTorch user loads it: torchvision's ImageFolder and transforms, a DataLoader."""

import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.transforms import v2

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def training_transform(size: int, version: str):
    """torchvision's own training preset in its two forms: on Pillow images (v1), or on uint8 tensors (v2)."""
    if version == "v1":
        return transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(),
                                   transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
    return v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(),
                       v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])


def training_loader(folder: str, size: int, batch_size: int, workers: int, version: str) -> DataLoader:
    """Shuffled, whole batches only; Pillow decodes, as ImageFolder does unless told otherwise."""
    dataset = datasets.ImageFolder(folder, training_transform(size, version))
    return DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=workers,
                      persistent_workers=workers > 0)
