"""Data sets of fields as NumPy arrays and images of Pillow, for the tests of fields: a worker process that reads them imports torch
only where it is needed for bfloat16, and so starts at once."""

import os
import pathlib
import re
import sys
import tempfile

import numpy

LIST = pathlib.Path(__file__).parent.parent / "include" / "headrace" / "dtypes.inc"
DTYPES = tuple(re.findall(r'^HEADRACE_DTYPE.*?"(\w+)"', LIST.read_text(), re.MULTILINE))
FORMS = ("dense", "rows", "shapes", "absent")  # Ragged along the first axis; along more; a field that some samples lack.
COMBINATIONS = len(DTYPES) * len(FORMS)
SIZE = 60


def as_type(values, dtype):
    if dtype != "bfloat16":
        return numpy.asarray(values).astype(dtype)
    import torch

    return torch.from_numpy(numpy.asarray(values)).to(torch.bfloat16)


class Combination:
    """Samples of one to five fields. The first is of the type and form of the seed; type, shape and form of the others, texts
    among them, follow from it, too. Every third seed has up to 300 rows in a sample; sample 1 has as many, samples 2 and, of
    every other seed, the last four have none. `described`: type, shape, whether some lack it."""

    def __init__(self, seed):
        random = numpy.random.default_rng(seed)
        self.seed, self.size = seed, int(random.integers(9, 30))
        self.rows = 300 if seed % 3 == 0 else 5
        self.none_from = self.size - 4 if seed % 2 == 0 else self.size
        self.described = {"f0": self._field(DTYPES[seed % len(DTYPES)], FORMS[seed // len(DTYPES) % len(FORMS)], random)}
        for place in range(1, int(random.integers(1, 6))):
            dtype, form = DTYPES[int(random.integers(len(DTYPES)))], FORMS[int(random.integers(len(FORMS)))]
            field = self._field(dtype, form, random)
            self.described[f"f{place}"] = ("text", [-1], field[2]) if random.integers(0, 5) == 0 else field

    def _field(self, dtype, form, random):
        rank = int(random.integers({"dense": 0, "rows": 1, "shapes": 2, "absent": 0}[form], 4))
        shape = [int(side) for side in random.integers(0, 4, rank)]
        ragged = form in ("rows", "shapes") or form == "absent" and rank > 0 and self.seed % 2 == 0
        if ragged:
            shape[0] = -1
        if form == "shapes":
            shape[-1] = -1
        return dtype, shape, form == "absent"

    def rows_of(self, index, random):
        if index == 1:
            return self.rows
        return 0 if index == 2 or index >= self.none_from else int(random.integers(0, self.rows + 1))

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        random = numpy.random.default_rng([self.seed, index])
        sample = {}
        for name, (dtype, shape, optional) in self.described.items():
            lacks = optional and random.integers(0, 4) == 0
            extents = [extent if extent >= 0 else self.rows_of(index, random) if axis == 0 else int(random.integers(0, 5))
                     for axis, extent in enumerate(shape)]
            values = random.integers(0, 2 if dtype == "bool" else 100, extents)
            if lacks:
                sample[name] = None
            elif dtype == "text":
                sample[name] = "".join(chr(97 + value % 26) + "ä" * (value % 2) for value in values)
            else:
                sample[name] = as_type(values, dtype)
        return sample


class Scenes:
    """An image, boxes and their classes, a mask of any size, a fixed vector, a text, and a score that some lack."""

    def __init__(self, size=240):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        random = numpy.random.default_rng([7, index])
        count = 0 if index % 11 == 3 else int(random.integers(0, 40))
        return {"image": random.integers(0, 256, (6, 5, 3), dtype=numpy.uint8), "boxes": random.random((count, 4), dtype=numpy.float32),
                "kinds": random.integers(0, 9, count), "mask": random.integers(0, 3, random.integers(0, 7, 2)).astype(numpy.int16),
                "tags": random.integers(0, 2, 7).astype(bool), "caption": "größe " * (index % 4) + str(index),
                "score": None if index % 5 == 0 else float(index)}


class Spoiled(Scenes):
    """Gives something else for sample 5 as long as the file is there."""

    def __init__(self, file, spoil):
        super().__init__(24)
        self.file, self.spoil = str(file), spoil

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        del sample["score"]
        return self.spoil(sample) if index == 5 and os.path.exists(self.file) else sample


class SpoiledTuples(Spoiled):
    """Gives (image, label) or tuples of all its fields, and as long as the file is there a dict for sample 5."""

    def __init__(self, file, are_pairs):
        super().__init__(file, dict)
        self.are_pairs = are_pairs

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index == 5 and os.path.exists(self.file):
            return sample
        return (sample["image"], index) if self.are_pairs else tuple(sample.values())


# What may become of a sample.

def without_boxes(sample):
    del sample["boxes"]
    return sample


def other_type(sample):
    return {**sample, "boxes": numpy.zeros((3, 4))}


def other_rank(sample):
    return {**sample, "boxes": numpy.zeros(4, numpy.float32)}


def other_columns(sample):
    return {**sample, "boxes": numpy.zeros((3, 5), numpy.float32)}


def ragged_tags(sample):
    return {**sample, "tags": numpy.zeros(6, bool)}


def no_text(sample):
    return {**sample, "caption": "\ud800"}


def a_tuple(sample):
    return tuple(sample.values())


def a_name_twice(sample):
    return sample["image"], sample


def huge_boxes(sample):
    """10 GiB that take none: a file with nothing in it."""
    with tempfile.TemporaryFile() as file:
        file.truncate(10 << 30)
        return {**sample, "boxes": numpy.memmap(file, numpy.float32, "r", shape=(10 << 26, 4))}


def falling_offsets(sample):
    """In a worker: of this sample it says that the second field's bytes lie before the first one's."""
    worker = sys.modules["__main__"]
    worker.HEAD = FallingHead(worker, worker.HEAD, len(sample))
    return sample


class FallingHead:
    def __init__(self, worker, head, fields):
        self.worker, self.head, self.fields, self.size = worker, head, fields, head.size

    def pack_into(self, slot, at, *numbers):
        field = at // self.size
        self.head.pack_into(slot, at, *numbers[:5], 0 if field == 1 else numbers[5], *numbers[6:])
        if field == self.fields - 1:
            self.worker.HEAD = self.head


class OfAnotherFormat(Scenes):
    """Its workers speak format 1 of the protocol."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        sys.modules["__main__"].FORMAT = 1


def numbers(index):
    return numpy.random.default_rng([7, index])


class Of:
    """Of what `make`, a function at the top of a module, makes of an index."""

    def __init__(self, make, size=SIZE):
        self.make, self.size = make, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.make(index)


class OtherAtFive(Of):
    """Gives something else for sample 5."""

    def __init__(self, make, other, size=SIZE):
        super().__init__(make, size)
        self.other = other

    def __getitem__(self, index):
        return self.other if index == 5 else self.make(index)


def pil(index):
    from PIL import Image

    return Image.fromarray(numbers(index).integers(0, 256, (6, 5, 3), dtype=numpy.uint8)), index % 3


def grey_pil(index):
    from PIL import Image

    return Image.fromarray(numbers(index).integers(0, 256, (6, 5), dtype=numpy.uint8)), index % 3


def boxes(index):
    return {"boxes": numpy.zeros((index % 4, 4), numpy.float32), "name": str(index)}


def lists(index):
    """As annotations come from a JSON file; the first sample has none."""
    return {"boxes": [[float(index), 1.0, 2.0, 3.0]] * (index % 3), "kinds": [index] * (index % 3)}
