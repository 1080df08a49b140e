#!/usr/bin/env python3
"""Cuts a folder of photographs in ImageFolder layout from the images of Debian's wallpaper packages.

A class is one wallpaper. Its training photographs are cut from two thirds of it and its validation photographs from the
other third, so that no pixel is in both. Sizes, qualities and kinds are mixed as in a folder from many cameras: 4:2:0
mostly, 4:4:4 partly, a few progressive, a few grey. The same packages, Pillow, seed and count give the same bytes.

Without --out the folder is ${XDG_CACHE_HOME:-~/.cache}/headrace/photos-<hash of this script, versions, seed and count>,
and `photos` at the repository's root links to it. It is written aside and renamed when whole: a folder of that name is
whole, and is left as it is. Takes half a minute on two cores, and 200 MB.
"""

import argparse
import collections
import dataclasses
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy
import PIL
from PIL import Image, ImageFile

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = [line for line in (ROOT / "tools" / "apt-packages-photos.txt").read_text().splitlines() if line and line[0] != "#"]
SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}
CLASSES = 12
CLASSES_MIN = 10
WIDTH_MIN, HEIGHT_MIN = 1600, 1000  # Of a wallpaper; smaller ones are screenshots of it, or too small to cut from.
PIXELS_MAX = 40_000_000             # A wallpaper of 120 MB decoded.
DETAIL_MIN = 1.5                    # Mean step between neighbouring pixels at about 1000 px; below it, crops are one flat colour.
VALIDATION_SHARE = 0.2
AREA = (60_000, 800_000)            # Pixels of a photograph, drawn evenly on a logarithmic scale.
ASPECT = (0.75, 16 / 9)             # Width over height.
ZOOM_MAX = 4.0                      # At most so many pixels of the wallpaper, along each side, for one of the photograph.
SHARE_444, SHARE_PROGRESSIVE, SHARE_GREY = 0.24, 0.04, 0.03
QUALITY = (55, 96)


class Unusable(Exception):
    """What a person has to do something about; shown as one line."""


@dataclasses.dataclass(frozen=True)
class Wallpaper:
    """An image that a class is cut from."""

    label: str    # Name of the class, such as plasma-autumn.
    path: Path
    width: int
    height: int
    detail: float  # Of the flatter one of its left and right third.


@dataclasses.dataclass(frozen=True)
class Photo:
    """One photograph to cut: where from, how large, and how to store it."""

    name: str
    box: tuple[int, int, int, int]  # Of the wallpaper: left, top, right, bottom.
    size: tuple[int, int]           # Width and height; never larger than the box.
    quality: int
    subsampling: str
    progressive: bool
    grey: bool


def package_versions() -> dict[str, str]:
    """Versions of those of the packages that are installed."""
    found = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n", *PACKAGES],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    words = [line.split() for line in found.splitlines()]
    return {word[1]: word[2] for word in words if word[0] == "installed"}


def package_images(package: str) -> list[Path]:
    """The package's images by name alone. Links are left out: they name the same image once more."""
    listing = subprocess.run(["dpkg", "-L", package], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    paths = [Path(line) for line in listing.splitlines()]
    return [path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file() and not path.is_symlink()]


def label_of(package: str, path: Path) -> str:
    """Sizes and the light and dark forms of a wallpaper are one class: plasma-kay, gnome-grid, mate-elephants."""
    parts = path.parts
    name = parts[parts.index("contents") - 1] if "contents" in parts else re.sub(r"(_\d+x\d+|-[ld])$", "", path.stem)
    return f"{package.split('-')[0]}-{name}".lower().replace(" ", "-")


def detail_of(image: ImageFile.ImageFile) -> float:
    """Mean step between neighbouring grey values, 0 to 255, of the flatter one of the left and the right third."""
    image.draft("RGB", (1024, 1024))  # A JPEG is decoded at an eighth, a quarter or half of its size where that suffices.
    small = image.reduce(-(-max(image.size) // 1280))
    grey = numpy.asarray(small.convert("L"), dtype=numpy.float32)
    third = grey.shape[1] // 3
    return min(float(numpy.abs(numpy.diff(part, axis=0)).mean() + numpy.abs(numpy.diff(part, axis=1)).mean())
               for part in (grey[:, :third], grey[:, -third:]))


def examine(package: str, path: Path) -> Wallpaper | None:
    """None: too small, transparent, flat, or not an image that this Pillow can read."""
    try:
        with Image.open(path) as image:
            width, height = image.size
            if width < WIDTH_MIN or height < HEIGHT_MIN or width * height > PIXELS_MAX:
                return None
            if "A" in image.getbands() and image.getchannel("A").getextrema()[0] < 255:
                return None  # What shows through is the desktop's to choose.
            detail = detail_of(image)
    except (OSError, ValueError):
        return None
    return Wallpaper(label_of(package, path), path, width, height, detail) if detail >= DETAIL_MIN else None


def choose_wallpapers(threads: ThreadPoolExecutor) -> list[Wallpaper]:
    """One image a class, the classes with most to see, in the order of their names."""
    files = [(package, path) for package in PACKAGES for path in package_images(package)]
    found: dict[str, Wallpaper] = {}
    for wallpaper in threads.map(lambda file: examine(*file), files):
        if wallpaper is None:
            continue
        other = found.get(wallpaper.label)
        if other is None or (wallpaper.width * wallpaper.height, wallpaper.detail) > (other.width * other.height, other.detail):
            found[wallpaper.label] = wallpaper
    if len(found) < CLASSES_MIN:
        raise Unusable(f"found {len(found)} usable images, wanted {CLASSES_MIN}; they come with the Debian packages "
                       f"{', '.join(PACKAGES)}: run tools/setup.sh photos")
    most = sorted(found.values(), key=lambda wallpaper: (-wallpaper.detail, wallpaper.label))[:CLASSES]
    return sorted(most, key=lambda wallpaper: wallpaper.label)


def part_of(wallpaper: Wallpaper, split: str, seed: int) -> tuple[int, int]:
    """First and last column, exclusive, of what the split's photographs may show: the left or right third validates."""
    left = random.Random(f"{seed} {wallpaper.label} part").random() < 0.5
    cut = wallpaper.width // 3 if left else wallpaper.width - wallpaper.width // 3
    return (0, cut) if left == (split == "val") else (cut, wallpaper.width)


def plan_photo(wallpaper: Wallpaper, split: str, index: int, seed: int) -> Photo:
    """Draws one photograph. Its draws depend on nothing but the arguments, so a larger count only adds photographs."""
    draw = random.Random(f"{seed} {wallpaper.label} {split} {index}")
    begin, end = part_of(wallpaper, split, seed)
    area = AREA[0] * (AREA[1] / AREA[0]) ** draw.random()
    aspect = ASPECT[0] * (ASPECT[1] / ASPECT[0]) ** draw.random()
    width, height = (area * aspect) ** 0.5, (area / aspect) ** 0.5
    fit = min((end - begin) / width, wallpaper.height / height)
    zoom = min(fit, ZOOM_MAX ** draw.random())
    shrink = min(1.0, zoom)  # A wallpaper too small for this photograph gives a smaller one; nothing is blown up.
    box_width, box_height = int(width * zoom), int(height * zoom)
    left = begin + draw.randrange(end - begin - box_width + 1)
    top = draw.randrange(wallpaper.height - box_height + 1)
    return Photo(
        name=f"{index:04d}.jpg",
        box=(left, top, left + box_width, top + box_height),
        size=(min(box_width, round(width * shrink)), min(box_height, round(height * shrink))),
        quality=draw.randrange(*QUALITY),
        subsampling="4:4:4" if draw.random() < SHARE_444 else "4:2:0",
        progressive=draw.random() < SHARE_PROGRESSIVE,
        grey=draw.random() < SHARE_GREY)


def cut(image: Image.Image, photo: Photo, folder: Path) -> None:
    """Writes one photograph. Cropped before it is resized, so that the filter sees no pixel outside the box."""
    small = image.crop(photo.box).resize(photo.size, Image.Resampling.LANCZOS)
    if photo.grey:
        small.convert("L").save(folder / photo.name, quality=photo.quality, progressive=photo.progressive)
    else:
        small.save(folder / photo.name, quality=photo.quality, subsampling=photo.subsampling, progressive=photo.progressive)


def split_counts(count: int, classes: int) -> dict[str, list[int]]:
    """Photographs of each class in each split; together `count`, classes equal to within one."""
    totals = [count // classes + (place < count % classes) for place in range(classes)]
    validation = [max(1, round(total * VALIDATION_SHARE)) for total in totals]
    return {"train": [total - part for total, part in zip(totals, validation)], "val": validation}


def cut_class(wallpaper: Wallpaper, counts: dict[str, int], seed: int, target: Path) -> list[Photo]:
    with Image.open(wallpaper.path) as opened:
        image = opened.convert("RGB")
    photos = []
    for split, count in counts.items():
        folder = target / split / wallpaper.label
        folder.mkdir(parents=True)
        for index in range(count):
            photos.append(plan_photo(wallpaper, split, index, seed))
            cut(image, photos[-1], folder)
    return photos


def write_photos(target: Path, count: int, seed: int, identity: dict[str, object]) -> list[Photo]:
    """Fills the folder `target`, which must not exist. Threads suffice: Pillow works without Python's lock."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        wallpapers = choose_wallpapers(threads)
        counts = split_counts(count, len(wallpapers))
        target.mkdir(parents=True)
        jobs = [threads.submit(cut_class, wallpaper, {split: counts[split][place] for split in counts}, seed, target)
                for place, wallpaper in enumerate(wallpapers)]
        photos = [photo for job in jobs for photo in job.result()]
    origins = [{"class": wallpaper.label, "image": str(wallpaper.path),
                "columns": {split: part_of(wallpaper, split, seed) for split in counts}} for wallpaper in wallpapers]
    (target / "about.json").write_text(json.dumps({**identity, "classes": origins}, indent=1) + "\n")
    return photos


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Two at once would write the same folder: the second waits. The lock goes with the process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def identify(count: int, seed: int) -> dict[str, object]:
    """All that decides the photographs' bytes."""
    return {"script": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), "packages": package_versions(),
            "pillow": PIL.__version__, "count": count, "seed": seed}


def make(target: Path, count: int, seed: int, identity: dict[str, object]) -> str:
    """Makes `target` unless it is there. Returns what it did, in a sentence."""
    start = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone_in(target.parent):
        if target.exists():
            return f"{target} is there already"
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)  # An earlier one was killed here; the lock says that none is at work.
        photos = write_photos(partial, count, seed, identity)
        os.sync()  # A name that outlives a power cut must not hold half of the files.
        partial.rename(target)
    kinds = collections.Counter("grey" if photo.grey else photo.subsampling for photo in photos)
    pixels = sum(photo.size[0] * photo.size[1] for photo in photos) / len(photos) / 1e6
    size = sum(path.stat().st_size for path in target.rglob("*.jpg")) / 1e6
    classes = len(list((target / "train").iterdir()))
    return (f"{len(photos)} photographs of {classes} classes in {target}: {size:.0f} MB, mean {pixels:.2f} megapixel, "
            f"{', '.join(f'{kinds[kind]} {kind}' for kind in ('4:2:0', '4:4:4', 'grey'))}, "
            f"{sum(photo.progressive for photo in photos)} progressive; {time.monotonic() - start:.0f} s")


def link(target: Path) -> None:
    """Points `photos` at the repository's root to the folder."""
    name = ROOT / "photos"
    if name.is_symlink() and Path(os.readlink(name)) == target:
        return
    if name.exists() and not name.is_symlink():
        raise Unusable(f"{name} is a folder of its own; wanted to make it a link to {target}: move yours away")
    aside = name.with_name(f"photos.{os.getpid()}")
    aside.symlink_to(target)
    aside.rename(name)


def run(arguments: argparse.Namespace) -> None:
    if arguments.count < 2 * CLASSES:
        raise Unusable(f"--count {arguments.count} is too few: {CLASSES} classes need 2 photographs each")
    if shutil.which("dpkg-query") is None:
        raise Unusable("no dpkg-query: this is not Debian, whose wallpaper packages the photographs are cut from")
    identity = identify(arguments.count, arguments.seed)
    if arguments.out is not None:
        target = arguments.out.resolve()
        if target.exists():
            raise Unusable(f"{target} exists: name a folder that does not")
        print(f"photos: {make(target, arguments.count, arguments.seed, identity)}")
        return
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    done = make(cache / f"photos-{key}", arguments.count, arguments.seed, identity)
    link(cache / f"photos-{key}")
    print(f"photos: {done}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="photographs in all (default 3000)")
    parser.add_argument("--seed", type=int, default=1, help="decides every draw (default 1)")
    parser.add_argument("--out", type=Path, help="a folder to make, instead of the one in the cache and the link to it")
    try:
        run(parser.parse_args())
    except (Unusable, OSError) as error:
        print(f"photos: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
