"""Images with boxes as YOLO data sets have them: data.yaml, image files, and a text file of boxes beside each."""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import _settings_file

if TYPE_CHECKING:
    import headrace
    import torch

SPLITS = ("train", "val", "test")
_SUFFIXES = (".jpg", ".jpeg", ".png")
_BESIDE = 114  # The value of pixels beside the image: that of YOLO's letterbox.
_BOX = "a class number, then x, y, width and height from 0 to 1"
_PNG = b"\x89PNG\r\n\x1a\n"
_WITHOUT_SIZE = (0xD8, 0x01, *range(0xD0, 0xD8))  # JPEG markers that have no length.
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG markers of a frame, which tell the size.


class Sample(NamedTuple):
    """image: uint8 (size, size, 3), letterboxed. labels: float32 (boxes, 5): class, x, y, width, height, as parts of that image.
    shape: height and width of the file's image, in pixels."""

    image: torch.Tensor
    labels: torch.Tensor
    path: str
    shape: tuple[int, int]


class YoloDataset:
    """The samples of one split, in the order of their paths; each is read, decoded and letterboxed when it is asked for. A letterbox
    keeps the aspect ratio: the image is resized until its longer side fits, and has gray beside it on both sides.

    data_yaml: names the folders of the splits, each one path or a list, relative to `path` where that is there, and to the file's own
        folder. An image's labels stand in a file of its name, in a folder labels in place of the last folder images of its path, else
        beside it; no such file: no boxes. May be a JSON file, by its name; YAML needs PyYAML.
    split: "train", "val" or "test". image_size: pixels of the sides.

    Several threads may read from it. ValueError: the split is none, or data_yaml does not name it, or no image is there; of a sample,
    a line of its labels is no box, or the image is neither JPEG nor PNG, with the file (and line) named. OSError: a file cannot be read.
    """

    def __init__(self, data_yaml: str | os.PathLike[str], split: str, image_size: int) -> None:
        if split not in SPLITS:
            raise ValueError(f"split: wanted one of {', '.join(SPLITS)}, found {split!r}")
        self.image_size = image_size
        self.paths = [str(path) for folder in _folders(Path(data_yaml), split) for path in _images(folder)]
        if not self.paths:
            raise ValueError(f"{os.fspath(data_yaml)}: {split}: wanted a folder with JPEG or PNG files, found none in it")

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        path = self.paths[index]
        with open(path, "rb") as file:
            data = file.read()
        shape = _size(path, data)
        image, place = _letterboxed(path, data, shape, self.image_size)
        return Sample(image, _labels(_labels_path(path), place, self.image_size), path, shape)


class _Place(NamedTuple):
    """Of an image within its letterbox, in pixels."""

    top: int
    left: int
    height: int
    width: int


def _folders(data_yaml: Path, split: str) -> list[Path]:
    told = _settings_file.read(data_yaml)
    given = told.get(split)
    named = [given] if isinstance(given, str) else given
    if not isinstance(named, list) or not named or not all(isinstance(name, str) for name in named):
        raise ValueError(f"{data_yaml}: {split}: wanted a folder or a list of folders, found {given!r}")
    root = data_yaml.parent / str(told.get("path") or "")
    folders = [root / name for name in named]
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{data_yaml}: {split}: wanted a folder, found none at {folder}")
    return folders


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)


def _labels_path(image: str) -> str:
    before, found, behind = image.rpartition(f"{os.sep}images{os.sep}")
    place = f"{before}{os.sep}labels{os.sep}{behind}" if found else image
    return os.path.splitext(place)[0] + ".txt"


def _labels(path: str, place: _Place, size: int) -> torch.Tensor:
    """Class and box of each line, the box as part of the letterbox."""
    import torch

    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        lines = []
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: wanted a text of boxes, found {error}") from None
    boxes = [_box(f"{path}:{number}", line, place, size) for number, line in enumerate(lines, 1) if line.strip()]
    return torch.tensor(boxes, dtype=torch.float32).reshape(-1, 5)


def _box(where: str, line: str, place: _Place, size: int) -> list[float]:
    try:
        number, x, y, width, height = map(float, line.split())
    except ValueError:
        raise ValueError(f"{where}: wanted {_BOX}, found {line!r}") from None
    if not (number.is_integer() and number >= 0 and all(0 <= part <= 1 for part in (x, y, width, height))):
        raise ValueError(f"{where}: wanted {_BOX}, found {line!r}")
    return [number, (place.left + x * place.width) / size, (place.top + y * place.height) / size, width * place.width / size,
            height * place.height / size]


def _letterboxed(path: str, data: bytes, shape: tuple[int, int], size: int) -> tuple[torch.Tensor, _Place]:
    import torch
    from headrace.errors import CorruptDataError

    scale = size / max(shape)
    height, width = (min(size, max(1, round(side * scale))) for side in shape)
    place = _Place((size - height) // 2, (size - width) // 2, height, width)
    try:
        resized = _resize(height, width).apply(data)
    except CorruptDataError as error:
        raise ValueError(f"{path}: {error}") from None
    image = torch.full((size, size, 3), _BESIDE, dtype=torch.uint8)
    image[place.top:place.top + height, place.left:place.left + width] = resized.permute(1, 2, 0)
    return image, place


@functools.lru_cache(64)
def _resize(height: int, width: int) -> headrace.Transform:
    import headrace
    from headrace.transforms import Resize

    return headrace.Transform([Resize((height, width))], layout="nhwc")


def _size(path: str, data: bytes) -> tuple[int, int]:
    """Height and width, by the header of a JPEG or PNG file."""
    try:
        if data.startswith(_PNG):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(b"\xff\xd8\xff"):
            height, width = struct.unpack_from(">HH", data, _frame(data) + 5)
        else:
            raise ValueError
    except (ValueError, IndexError, struct.error):
        height = width = 0
    if height < 1 or width < 1:
        raise ValueError(f"{path}: wanted a JPEG or PNG file with the image's size in it, found {len(data)} bytes that begin {data[:8]!r}")
    return height, width


def _frame(data: bytes) -> int:
    """Where the frame's header begins in a JPEG file (ITU-T T.81, B.1.1). IndexError or struct.error: the file ends before it."""
    place = 0
    while True:
        if data[place] != 0xFF:
            raise ValueError
        marker = data[place + 1]
        if marker in _FRAMES:
            return place
        if marker == 0xFF:  # A byte that fills up.
            place += 1
        elif marker in _WITHOUT_SIZE:
            place += 2
        else:
            place += 2 + struct.unpack_from(">H", data, place + 2)[0]
