"""The loaders of tests/recorded_bytes_test.py: every option that decides bytes at least once, over data made here."""

import hashlib
import io
from pathlib import Path

import numpy
import torch
from PIL import Image

import headrace as hr

FASHION = "idx:/usr/share/datasets/fashion-mnist"
BATCHES = 8  # Of each loader.
SIZES = ((48, 64), (64, 48), (40, 40), (96, 72), (33, 57))


def smooth(random, height, width):
    """An image like a photograph: JPEG of noise has nothing but the highest frequencies."""
    small = random.integers(0, 256, (6, 6, 3), dtype=numpy.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, number):
    out = io.BytesIO()
    if number % 5 == 4:
        image.save(out, "PNG")
    else:
        image.convert("L" if number % 7 == 3 else "RGB").save(
            out, "JPEG", quality=60 + number % 35, subsampling=number % 3, progressive=number % 4 == 3)
    return out.getvalue(), "png" if number % 5 == 4 else "jpg"


def make_folder(folder):
    """DIR/{train,test}/CLASS: 60 and 20 images of three classes, and list.txt of the same. Returns a digest of the files."""
    random = numpy.random.default_rng(7)
    lines, digest = [], hashlib.sha256()
    for split, count in (("train", 60), ("test", 20)):
        for number in range(count):
            content, kind = encoded(smooth(random, *SIZES[number % len(SIZES)]), number)
            path = Path(folder) / split / f"class{number % 3}" / f"{number:03}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            digest.update(content)
            lines.append(f"{path.relative_to(folder)}\t{number % 3}\t{split}")
    (Path(folder) / "list.txt").write_text("\n".join(lines) + "\n")
    return digest.hexdigest()


def break_one(folder):
    path = Path(folder) / "train/class2/020.jpg"
    path.write_bytes(path.read_bytes()[:40])


class Squares:
    """A source in Python: uint8 arrays."""

    classes = 4

    def __len__(self):
        return 50

    def __getitem__(self, index):
        return numpy.full((6, 5, 3), index * 5, dtype=numpy.uint8) + numpy.arange(5, dtype=numpy.uint8)[:, None], index % 4


SQUARE = {"size": 24}
NORMAL = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
FOLDER = {"on_corrupt": "zero", "batch_size": 7, "seed": 11}
CASES = {
    "idx": ("idx", {"batch_size": 64, "transform": {"mean": [0.286], "std": [0.353]}}),
    "idx, pad and flip": ("idx", {"batch_size": 100, "seed": 5, "transform": {"pad": 2, "flip_probability": 0.5}}),
    "idx, in order": ("idx", {"batch_size": 33, "shuffle": False}),
    "idx, test": ("idx", {"batch_size": 50, "split": "test"}),
    "idx, uint8": ("idx", {"batch_size": 16, "transform": {"dtype": "uint8"}}),
    "idx, bfloat16 nhwc": ("idx", {"batch_size": 16, "transform": {"dtype": "bfloat16", "layout": "nhwc", "mean": [0.3]}}),
    "idx, window": ("idx", {"batch_size": 32, "shuffle_window": 1000}),
    "idx, weighted": ("idx", {"batch_size": 32, "sampler": "weighted", "weights": [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]}),
    "idx, balanced": ("idx", {"batch_size": 32, "sampler": "class_balanced"}),
    "idx, rank 1 of 3": ("idx", {"batch_size": 20, "world_size": 3, "rank": 1}),
    "folder, center": ("folder", {**FOLDER, "transform": {**SQUARE, **NORMAL}}),
    "folder, random": ("folder", {**FOLDER, "transform": {**SQUARE, "crop": "random", "resize": 30, "flip_probability": 0.5}}),
    "folder, random_resized": ("folder", {**FOLDER, "transform": {**SQUARE, **NORMAL, "crop": "random_resized", "scale": [0.2, 0.9],
                                                                 "ratio": [0.5, 2.0], "flip_probability": 0.3}}),
    "folder, replaced": ("folder", {**FOLDER, "on_corrupt": "replace", "last_batch": "drop", "transform": SQUARE}),
    "folder, padded": ("folder", {**FOLDER, "last_batch": "pad", "transform": {**SQUARE, "pad": 3}}),
    "folder, buckets of bytes": ("folder", {**FOLDER, "buckets": 4, "transform": SQUARE}),
    "folder, buckets of shapes": ("folder", {**FOLDER, "buckets": 4, "bucket_by": "shape", "transform": SQUARE}),
    "folder, smaller decoding": ("folder", {**FOLDER, "scale_decode": True, "transform": {"size": 8, "crop": "random_resized"}}),
    "folder, nhwc uint8": ("folder", {**FOLDER, "transform": {**SQUARE, "dtype": "uint8", "layout": "nhwc"}}),
    "folder, cached": ("folder", {**FOLDER, "cache": "decoded", "transform": {**SQUARE, "crop": "random"}}),
    "folder, test": ("folder", {**FOLDER, "split": "test", "transform": SQUARE}),
    "list": ("list", {**FOLDER, "transform": {**SQUARE, "crop": "random_resized"}}),
    "pack": ("pack", {**FOLDER, "transform": {**SQUARE, "crop": "random_resized"}}),
    "pack of pixels": ("raw", {**FOLDER, "transform": {**SQUARE, "crop": "random_resized"}}),
    "pack of compressed pixels": ("lz4", {**FOLDER, "transform": {**SQUARE, "crop": "center", "pad": 1}}),
    "idx, less what is held out": ("idx", {"batch_size": 64, "val_fraction": 0.1}),
    "idx, held out": ("idx", {"batch_size": 64, "val_fraction": 0.1, "split": "val"}),
    "python": ("python", {"batch_size": 7, "seed": 2, "transform": {"flip_probability": 0.5, "mean": [0.1], "std": [0.5]}}),
}


SIDES = {"idx": [28], "python": [6, 5]}  # Of stored images; those of the other kinds differ.


def as_lists(kind, options):
    """The same options with operations in the place of transform."""
    given = {"size": 0, "crop": "center", "resize": 0, "pad": 0, "flip_probability": 0, "dtype": "float32", "mean": [0.0], "std": [1.0],
             **options.get("transform", {})}
    crop_of = {"center": "CenterCrop", "random": "RandomCrop"}

    def operations(training):
        size, crop = given["size"], given["crop"] if training else "center"
        if size and crop == "random_resized":
            yield {"name": "RandomResizedCrop", "size": size, **{key: given[key] for key in ("scale", "ratio") if key in given}}
        elif size:
            yield {"name": "Resize", "size": given["resize"] or (16 * size + 7) // 14}
            yield {"name": crop_of[crop], "size": [size, size]}
        if training and given["pad"]:
            yield {"name": "RandomCrop", "size": size or SIDES[kind], "padding": given["pad"]}
        if training:
            yield {"name": "RandomHorizontalFlip", "p": given["flip_probability"]}
        yield {"name": "ToDtype", "dtype": given["dtype"], "scale": True}
        if given["dtype"] != "uint8":
            yield {"name": "Normalize", "mean": given["mean"], "std": given["std"]}

    lists = {"transforms": list(operations(training=True))}
    if options.get("split") == "test":  # Elsewhere they follow from the others.
        lists["eval_transforms"] = list(operations(training=False))
    layout = {"transform": {"layout": given["layout"]}} if "layout" in given else {}
    return {**{key: value for key, value in options.items() if key != "transform"}, **layout, **lists}


def loader_of(kind, folder, options):
    source = {"idx": FASHION, "folder": f"folder:{folder}", "list": f"list:{folder}/list.txt", "pack": f"pack:{folder}/files.pack",
              "raw": f"pack:{folder}/raw.pack", "lz4": f"pack:{folder}/lz4.pack", "python": Squares()}[kind]
    return hr.Loader(source, **options)


def digest_of(loader, batches=BATCHES):
    """SHA-256 of the first batches: image, labels and which samples count."""
    digest, left = hashlib.sha256(), batches
    while left > 0:
        for batch in loader:
            for field in batch.fields.values():
                digest.update(field.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            left -= 1
            if left == 0:
                break
    return digest.hexdigest()
