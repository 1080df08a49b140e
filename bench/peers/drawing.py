"""torchvision's random resized crop, for rivals that bring none."""

import math

import numpy

import protocol


def crop(random: numpy.random.Generator, height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height, width."""
    for _ in range(10):
        area = height * width * random.uniform(*protocol.AREA)
        ratio = math.exp(random.uniform(math.log(protocol.RATIO[0]), math.log(protocol.RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int(random.integers(height - h + 1)), int(random.integers(width - w + 1)), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def center(height: int, width: int) -> tuple[int, int, int, int]:
    """What becomes SIZE pixels when the short side becomes RESIZE."""
    side = round(min(height, width) * protocol.SIZE / protocol.RESIZE)
    return (height - side) // 2, (width - side) // 2, side, side
