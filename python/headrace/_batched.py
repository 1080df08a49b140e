"""torchvision's MNIST-like data sets, whose batches can be made in one piece with the bits of the sample-by-sample way."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate


class BatchedImages(Dataset):
    """Grey images that the data set holds in memory as one tensor: ToTensor and Normalize over a batch at a time."""

    def __init__(self, plain: Any, mean: torch.Tensor | None, std: torch.Tensor | None) -> None:
        self.plain, self.mean, self.std = plain, mean, std

    def __getattr__(self, name: str) -> Any:
        if name == "plain":  # Not there yet while a copy is made.
            raise AttributeError(name)
        return getattr(self.plain, name)  # classes, transform, targets: as the data set itself.

    def __len__(self) -> int:
        return len(self.plain)

    def __getitem__(self, index: int) -> Any:
        return self.plain[index]

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        chosen = torch.tensor(indices)
        images = self.plain.data[chosen].unsqueeze(1).to(torch.get_default_dtype()).div_(255)
        if self.mean is not None:
            images.sub_(self.mean).div_(self.std)
        return [images, self.plain.targets[chosen]]


def as_it_is(batch: Any) -> Any:
    """The collate function of batches that are whole already."""
    return batch


def batched(loader: DataLoader) -> BatchedImages | str:
    """The data set of `loader` in its batched form, or why there is none."""
    plain = loader.dataset
    torchvision = sys.modules.get("torchvision")
    if torchvision is None or type(plain) not in (
            torchvision.datasets.MNIST, torchvision.datasets.FashionMNIST, torchvision.datasets.KMNIST):
        return f"the data set is a {type(plain).__name__}, not one of torchvision's MNIST kind"
    if loader.collate_fn is not default_collate or loader.batch_sampler is None:
        return "the loader collates its batches in its own way"
    if plain.target_transform is not None:
        return "the labels are transformed"
    known = torchvision.transforms
    steps = plain.transform.transforms if type(plain.transform) is known.Compose else [plain.transform]
    if [type(step) for step in steps] == [known.ToTensor]:
        return BatchedImages(plain, None, None)
    if [type(step) for step in steps] == [known.ToTensor, known.Normalize]:
        mean, std = (torch.as_tensor(value, dtype=torch.get_default_dtype()).view(-1, 1, 1)
                           for value in (steps[1].mean, steps[1].std))
        if mean.numel() == std.numel() == 1:
            return BatchedImages(plain, mean, std)
    return "its transforms are other than ToTensor and Normalize"
