"""The operations of headrace.transforms, a class each. `make docs` writes this file; they are declared in
include/headrace/options/transforms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._operation import Operation

__all__ = [
    "Resize",
    "CenterCrop",
    "RandomCrop",
    "RandomResizedCrop",
    "Pad",
    "RandomHorizontalFlip",
    "ToDtype",
    "Normalize",
    "RandomGrayscale",
]

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Resize(Operation):
    """Resizes the image.

    size: Pixels: one number for the shorter side, the other follows; two for height and width.
    interpolation: Interpolation mode: bilinear.
    max_size: Bound of the longer side, in pixels, where size is one number; 0 sets none.
    antialias: Apply antialiasing where the image is made smaller.
    """

    size: int | Sequence[int]
    interpolation: str = "bilinear"
    max_size: int = 0
    antialias: bool = True


@dataclass(frozen=True)
class CenterCrop(Operation):
    """Takes the middle of the image.

    size: Pixels: one number is a square, two are height and width.
    """

    size: int | Sequence[int]


@dataclass(frozen=True)
class RandomCrop(Operation):
    """Takes a part of the image, at a place that is drawn for each sample.

    size: Pixels: one number is a square, two are height and width.
    padding: Pixels added: one number for each side; two for left and right, and for top and bottom; four for left, top,
        right and bottom.
    pad_if_needed: Pad images that are smaller than size.
    fill: The value of each pixel that is added.
    padding_mode: Which pixels are added: constant, those of fill.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] = ()
    pad_if_needed: bool = False
    fill: float = 0.0
    padding_mode: str = "constant"


@dataclass(frozen=True)
class RandomResizedCrop(Operation):
    """Takes a rectangle whose area, shape and place are drawn for each sample, and resizes it.

    size: Pixels: one number is a square, two are height and width.
    scale: Lower and upper bound of the crop's share of the image's area.
    ratio: Lower and upper bound of the crop's aspect ratio, width / height.
    interpolation: Interpolation mode: bilinear.
    antialias: Apply antialiasing where the image is made smaller.
    """

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (0.75, 1.3333333333333333)
    interpolation: str = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class Pad(Operation):
    """Adds pixels around the image.

    padding: Pixels added: one number for each side; two for left and right, and for top and bottom; four for left, top,
        right and bottom.
    fill: The value of each pixel that is added.
    padding_mode: Which pixels are added: constant, those of fill.
    """

    padding: int | Sequence[int]
    fill: float = 0.0
    padding_mode: str = "constant"


@dataclass(frozen=True)
class RandomHorizontalFlip(Operation):
    """Flips the image horizontally with probability p. Wrong for text and digits.

    p: Probability.
    """

    p: float = 0.5


@dataclass(frozen=True)
class ToDtype(Operation):
    """Changes the type of the pixels; without it they stay uint8. bfloat16 is rounded last, behind a Normalize that
    follows.

    dtype: float32, bfloat16 or uint8.
    scale: Scale 0 to 255 to 0 to 1.
    """

    dtype: str | torch.dtype
    scale: bool = False


@dataclass(frozen=True)
class Normalize(Operation):
    """Subtracts the mean of each channel and divides by its standard deviation.

    mean: Mean of each channel, of the values as they come; one serves all channels.
    std: Standard deviation of each channel; one serves all channels.
    """

    mean: Sequence[float]
    std: Sequence[float]


@dataclass(frozen=True)
class RandomGrayscale(Operation):
    """Converts to grayscale with probability p: each channel becomes 0.2989 red + 0.587 green + 0.114 blue.

    p: Probability.
    """

    p: float = 0.1
