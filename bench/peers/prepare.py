#!/usr/bin/env python3
"""Fills a folder with what the rivals read, all of it from the photographs of tools/make_photos.py and Fashion-MNIST:

photographs/train   every photograph of both splits, by class, as hard links (copies where a link cannot be); val is the same
small/train         the same with a short side of 256 pixels, JPEG of quality 95; val is the same
small.bin, .json    the pixels of small/train one behind the other, and where each begins, its height, width and label
fashion             link to Debian's Fashion-MNIST

What only one rival reads is written by its own script with --prepare.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from PIL import Image

from protocol import RESIZE

FASHION = Path("/usr/share/datasets/fashion-mnist")


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def with_short_side(image: Image.Image, side: int) -> Image.Image:
    scale = side / min(image.size)
    return image.resize([max(side, round(length * scale)) for length in image.size], Image.Resampling.BILINEAR)


def prepare(photos: Path, folder: Path) -> None:
    entries, at = [], 0
    with open(folder / "small.bin", "wb") as pixels:
        for source in sorted(photos.glob("*/*/*.jpg")):
            split, name = source.parts[-3], source.parts[-2]
            below = Path("train") / name / f"{split}-{source.name}"
            link(source.resolve(), folder / "photographs" / below)
            target = folder / "small" / below
            target.parent.mkdir(parents=True, exist_ok=True)
            with_short_side(Image.open(source).convert("RGB"), RESIZE).save(target, quality=95)
            small = Image.open(target)
            entries.append({"at": at, "height": small.height, "width": small.width, "class": name})
            at += pixels.write(small.tobytes())
    classes = sorted({entry["class"] for entry in entries})
    for entry in entries:
        entry["label"] = classes.index(entry.pop("class"))
    (folder / "small.json").write_text(json.dumps(entries))
    for form in ("photographs", "small"):
        (folder / form / "val").symlink_to("train")
    (folder / "fashion").symlink_to(FASHION)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
