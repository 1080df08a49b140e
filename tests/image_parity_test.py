"""Images decoded, cropped and resized by us are those that Pillow and torchvision make of the same files."""

import os
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import RandomCrop, RandomResizedCrop
from torchvision.transforms import functional as transforms
from torchvision.transforms.v2 import functional as transforms_v2

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("HEADRACE_BIN_DIR", ROOT / "build" / "release" / "bin"))


def probe(*words, text=None):
    given = None if text is None else text.encode()
    done = subprocess.run([BIN / "image_probe", *map(str, words)], input=given, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def decoded(path, channels=3):
    head, pixels = probe("whole", channels, path).split(b"\n", 1)
    height, width = map(int, head.split())
    image = np.frombuffer(pixels, np.uint8).reshape(height, width, channels)
    return image[..., 0] if channels == 1 else image


def photograph(height, width, seed):
    """Smooth colours, edges and noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed)
    channels = []
    for c in range(3):
        smooth = 128 + 60 * np.sin(x * 0.02 * (c + 1) + seed) + 50 * np.cos(y * 0.015 * (3 - c))
        edges = 40 * ((x * 3 + y * 2) % 97 < 30)
        channels.append(smooth + edges + noise.normal(0, 8, (height, width)))
    return Image.fromarray(np.stack(channels, -1).clip(0, 255).astype(np.uint8))


def differences(ours, wanted):
    return np.abs(np.asarray(ours, np.int16) - np.asarray(wanted, np.int16))


JPEG_FORMS = {
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "progressive": {"progressive": True},
    "optimised": {"optimize": True, "quality": 40},
    "best": {"quality": 100, "subsampling": 0},
    "restarts": {"restart_marker_rows": 1},
}


@pytest.mark.parametrize("form", JPEG_FORMS)
def test_jpeg_pixels_are_those_of_pillow_and_torchvision(form, tmp_path):
    for size in [(1, 1), (16, 40), (301, 257), (375, 500)]:
        path = tmp_path / f"{size[0]}x{size[1]}.jpg"
        photograph(*size, seed=3).save(path, **JPEG_FORMS[form])
        ours = decoded(path)
        np.testing.assert_array_equal(ours, np.array(Image.open(path).convert("RGB")))
        # torchvision's wheel brings a libjpeg-turbo of its own, whose progressive smoothing is another version's.
        theirs = decode_image(read_file(str(path)), ImageReadMode.RGB).permute(1, 2, 0).numpy()
        assert differences(ours, theirs).max() <= 1
        np.testing.assert_array_equal(decoded(path, 1), np.array(Image.open(path).convert("RGB").convert("L")))


def random_image(mode, size, seed):
    samples = size[0] * size[1] * len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, size[::-1], np.random.default_rng(seed).bytes(samples))


def without_adobe_marker(path):
    """Takes the APP14 segment out of a JPEG."""
    data = path.read_bytes()
    at = data.index(b"\xff\xee")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    path.write_bytes(data[:at] + data[at + 2 + length :])


@pytest.mark.parametrize("marker", [True, False])
def test_cmyk_jpeg_becomes_pillows_rgb_and_grey(marker, tmp_path):
    path = tmp_path / "inks.jpg"
    random_image("CMYK", (61, 83), 4).resize((200, 150)).save(path, quality=95)
    if not marker:
        without_adobe_marker(path)
    image = Image.open(path)
    assert image.mode == "CMYK"
    np.testing.assert_array_equal(decoded(path), np.array(image.convert("RGB")))
    np.testing.assert_array_equal(decoded(path, 1), np.array(image.convert("L")))


def test_grey_jpeg_becomes_pillows_rgb_and_grey(tmp_path):
    path = tmp_path / "grey.jpg"
    photograph(75, 131, 5).convert("L").save(path)
    np.testing.assert_array_equal(decoded(path), np.array(Image.open(path).convert("RGB")))
    np.testing.assert_array_equal(decoded(path, 1), np.array(Image.open(path).convert("L")))


def save_png(path, mode, depth):
    """A random image of that mode, with `depth` bits a sample."""
    size, noise = (61, 83), np.random.default_rng(depth)
    if mode == "I;16":
        Image.fromarray(noise.integers(0, 600, size, dtype=np.uint16)).save(path)
    elif mode == "1":
        Image.fromarray(noise.integers(0, 2, size, dtype=np.uint8) * 255).convert("1").save(path)
    elif mode == "P":
        indices = noise.integers(0, 2**depth, size, dtype=np.uint8)
        image = Image.frombytes("P", size[::-1], indices.tobytes())
        image.putpalette(noise.bytes(3 * 2**depth))
        image.save(path, bits=depth, transparency=0)
    else:
        random_image(mode, size, 6).save(path)


PNG_MODES = [("1", 1), ("L", 8), ("LA", 8), ("RGB", 8), ("RGBA", 8), ("I;16", 16)] + [("P", d) for d in (1, 2, 4, 8)]


@pytest.mark.parametrize("mode,depth", PNG_MODES)
def test_png_becomes_pillows_rgb_and_grey(mode, depth, tmp_path):
    path = tmp_path / "image.png"
    save_png(path, mode, depth)
    image = Image.open(path)
    assert image.mode == mode
    np.testing.assert_array_equal(decoded(path), np.array(image.convert("RGB")))
    np.testing.assert_array_equal(decoded(path, 1), np.array(image.convert("L")))


def random_boxes(count, height, width, seed):
    draw = random.Random(seed)
    for _ in range(count):
        box_height, box_width = draw.randint(1, height), draw.randint(1, width)
        yield draw.randint(0, height - box_height), draw.randint(0, width - box_width), box_height, box_width


def cropped(lines):
    """What the probe makes of lines (path, y, x, height, width, size), as images."""
    data = probe("crop", text="".join(" ".join(map(str, line)) + "\n" for line in lines))
    images, at = [], 0
    for *_, size in lines:
        images.append(np.frombuffer(data, np.uint8, size * size * 3, at).reshape(size, size, 3))
        at += size * size * 3
    assert at == len(data)
    return images


@pytest.mark.parametrize("size", [224, 64])
@pytest.mark.parametrize("form", ["420", "444"])
def test_crops_are_those_of_torchvision_and_pillow(form, size, tmp_path):
    """Enlarged ones too: a box may be smaller than the image it becomes."""
    lines = []
    for seed, (height, width) in enumerate([(375, 500), (500, 333), (97, 41), (800, 1000)]):
        path = tmp_path / f"{seed}.jpg"
        photograph(height, width, seed).save(path, **JPEG_FORMS[form])
        lines += [(path, *box, size) for box in random_boxes(40, height, width, seed)]
    for (path, y, x, height, width, _), ours in zip(lines, cropped(lines)):
        image = decode_image(read_file(str(path)), ImageReadMode.RGB)
        theirs = transforms_v2.resized_crop(image, y, x, height, width, [size, size], antialias=True)
        pillows = Image.open(path).crop((x, y, x + width, y + height)).resize((size, size), Image.Resampling.BILINEAR)
        for wanted in [theirs.permute(1, 2, 0).numpy(), np.array(pillows)]:
            difference = differences(ours, wanted)
            assert difference.mean() <= 1 / 2 and difference.max() <= 2, (y, x, height, width)


class Draws:
    """Gives torchvision the numbers that we drew, in place of torch's generator."""

    def __init__(self, words, monkeypatch):
        self.words = iter(words)
        monkeypatch.setattr(torch.Tensor, "uniform_", lambda into, low, high: into.fill_(self.between(low, high)))
        monkeypatch.setattr(torch, "randint", lambda low, high, size: torch.tensor([low + self.below(high - low)]))

    def between(self, low, high):
        return float(low) + next(self.words) * 2.0**-32 * (float(high) - float(low))

    def below(self, bound):
        product = next(self.words) * bound
        while product % 2**32 < 2**32 % bound:
            product = next(self.words) * bound
        return product >> 32


def windows(crop, size, resize, images):
    text = "".join(f"{height} {width} {index}\n" for index, (height, width) in enumerate(images))
    for line, (height, width) in zip(probe("window", crop, size, resize, text=text).decode().splitlines(), images):
        numbers = list(map(int, line.split()))
        yield height, width, numbers[:4], numbers[4:8], numbers[8:]


def image_sizes(count):
    draw = random.Random(count)
    sizes = [(1, 1), (1, 9), (300, 500), (500, 300), (256, 256), (2000, 3), (224, 224)]
    return sizes + [(draw.randint(1, 900), draw.randint(1, 900)) for _ in range(count)]


def test_random_resized_crops_are_torchvisions(monkeypatch):
    """Same draws, same rectangle: torchvision's float32 logarithm may turn one in thousands by a pixel."""
    same = total = 0
    for height, width, vertical, horizontal, words in windows("random_resized", 224, 0, image_sizes(2000)):
        image = torch.empty(3, height, width, device="meta")
        with monkeypatch.context() as patch:
            Draws(words, patch)
            try:
                wanted = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
            except StopIteration:  # Ten tries that took more than the draws the probe writes.
                continue
        total += 1
        same += wanted == (vertical[0], horizontal[0], vertical[1], horizontal[1])
        assert vertical[2:] == horizontal[2:] == [224, 0]
    assert total > 1990 and same >= 0.998 * total


def test_random_crops_are_torchvisions(monkeypatch):
    for height, width, vertical, horizontal, words in windows("random", 224, 256, image_sizes(300)):
        resized = transforms._compute_resized_output_size((height, width), [256])
        with monkeypatch.context() as patch:
            Draws(words, patch)
            y, x, *_ = RandomCrop.get_params(torch.empty(3, *resized, device="meta"), (224, 224))
        assert (vertical, horizontal) == ([0, height, resized[0], y], [0, width, resized[1], x])


@pytest.mark.parametrize("size,resize", [(224, 256), (64, 73), (33, 33)])
def test_evaluation_crops_are_torchvisions(size, resize):
    for height, width, vertical, horizontal, _ in windows("evaluation", size, resize, image_sizes(300)):
        resized = transforms._compute_resized_output_size((height, width), [resize])
        y, x = (int(round((length - size) / 2.0)) for length in resized)
        assert (vertical, horizontal) == ([0, height, resized[0], y], [0, width, resized[1], x])
