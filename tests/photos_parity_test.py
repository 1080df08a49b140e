"""500 photographs, cut and resized by us, are those that torchvision and Pillow make of the same boxes; and decoded smaller they are nearly so."""

import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional as transforms

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))
COUNT = 500
MEAN_ALLOWED, LARGEST_ALLOWED = 1, 4  # Of 255.


def draw_boxes(folder: Path) -> list[tuple[Path, int, int, int, int, int]]:
    """Path, y, x, height, width and size: boxes as torchvision draws them, photographs of all classes and both splits."""
    files = random.Random(4).sample(sorted(folder.glob("*/*/*.jpg")), COUNT)
    torch.manual_seed(4)
    boxes = []
    for place, path in enumerate(files):
        with Image.open(path) as image:
            like = torch.empty(3, image.height, image.width)
        boxes.append((path, *RandomResizedCrop.get_params(like, [0.08, 1.0], [3 / 4, 4 / 3]), (64, 128)[place % 2]))
    return boxes


def crops_of(boxes: list[tuple], *how: str) -> list[tuple[tuple, np.ndarray]]:
    text = "".join(" ".join(map(str, box)) + "\n" for box in boxes)
    done = subprocess.run([BIN / "image_probe", "crop", *how], input=text.encode(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    pixels, begin, found = np.frombuffer(done.stdout, np.uint8), 0, []
    for box in boxes:
        size = box[-1]
        found.append((box, pixels[begin:begin + size * size * 3].reshape(size, size, 3)))
        begin += size * size * 3
    assert begin == len(pixels)
    return found


@pytest.fixture(scope="module")
def crops(photos) -> list[tuple[tuple, np.ndarray]]:
    return crops_of(draw_boxes(photos))


def torchvisions(path: Path, y: int, x: int, height: int, width: int, size: int) -> np.ndarray:
    image = decode_image(read_file(str(path)), ImageReadMode.RGB)
    return transforms.resized_crop(image, y, x, height, width, [size, size], antialias=True).permute(1, 2, 0).numpy()


def pillows(path: Path, y: int, x: int, height: int, width: int, size: int) -> np.ndarray:
    """What ImageFolder and RandomResizedCrop do with a file."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    return np.asarray(transforms.resized_crop(image, y, x, height, width, [size, size], antialias=True))


@pytest.mark.parametrize("theirs", [torchvisions, pillows])
def test_crops_of_photographs_are_theirs(crops, theirs, capsys):
    total, values, largest = 0, 0, 0
    for box, ours in crops:
        difference = np.abs(ours.astype(np.int16) - theirs(*box).astype(np.int16))
        assert difference.max() <= LARGEST_ALLOWED, box
        total, values, largest = total + int(difference.sum()), values + difference.size, max(largest, int(difference.max()))
    with capsys.disabled():
        print(f"\n{len(crops)} photographs against {theirs.__name__} crops: mean {total / values:.4f}/255, largest {largest}/255")
    assert total / values <= MEAN_ALLOWED


def test_photographs_decoded_smaller_are_nearly_those_decoded_as_they_are(photos, capsys):
    """data.scale_decode, over crops that it decodes smaller: at least twice the size of what they become."""
    boxes = [(*box[:5], min(box[3:5]) // (4, 5, 8)[place % 3]) for place, box in enumerate(draw_boxes(photos))]
    boxes = [box for box in boxes if box[5] >= 16]
    decibels = []
    for (box, plain), (_, scaled) in zip(crops_of(boxes), crops_of(boxes, "scaled")):
        square = np.mean((plain.astype(np.float64) - scaled) ** 2)
        assert square > 0 or plain.std() < 1, f"{box} was not decoded smaller"
        decibels.append(10 * np.log10(255 ** 2 / max(square, 1e-9)))
    decibels.sort()
    with capsys.disabled():
        print(f"\n{len(boxes)} photographs decoded smaller: PSNR at least {decibels[0]:.1f} dB, 1 % below "
              f"{decibels[len(decibels) // 100]:.1f}, half below {decibels[len(decibels) // 2]:.1f}")
    assert sum(value >= 40 for value in decibels) >= 0.99 * len(decibels)
