"""Data sets of more than an image and a label, for the tests of fields: worker processes import them from this file."""

import collections

import array_fields
import numpy
import torch
from array_fields import SIZE, OtherAtFive, boxes, grey_pil, lists, numbers, pil  # noqa: F401: tests find all in one place.
from torch.utils.data import Dataset

TYPES = {"uint8": torch.uint8, "int64": torch.int64, "float32": torch.float32, "bfloat16": torch.bfloat16,
         "float64": torch.float64, "float16": torch.float16, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
         "bool": torch.bool}


class Detection(Dataset):
    """Image, boxes and their classes, several labels at once, a mask and a caption. Sample 3 has no boxes."""

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        random = numbers(index)
        count = 0 if index == 3 else int(random.integers(0, 6))
        return {"image": random.integers(0, 256, (6, 5, 3), dtype=numpy.uint8),
                "boxes": random.random((count, 4), dtype=numpy.float32),
                "box_labels": torch.from_numpy(random.integers(0, 9, count)),
                "tags": torch.from_numpy(random.integers(0, 2, 7).astype(bool)),
                "mask": random.integers(0, 3, (6, 5)).astype(numpy.int16),
                "caption": "größe " * (index % 4) + str(index)}


class Tupled(Detection):
    def __getitem__(self, index):
        return tuple(super().__getitem__(index).values())


class Targets(Detection):
    """As torchvision's detection data sets: the image, and a dict of the rest."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return sample.pop("image"), sample


Pair = collections.namedtuple("Pair", ["features", "score"])


class Named(Dataset):
    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return Pair(torch.full((2, 3), float(index)), index / 2)


class Of(array_fields.Of, Dataset):
    """The same, as torch has data sets."""


def every_type(index):
    sample = {name: torch.from_numpy(numbers(index).integers(0, 2, (2, 3))).to(dtype) for name, dtype in TYPES.items()}
    return {**sample, "number": float(index), "count": index, "odd": index % 2 == 1, "list": [1.5, index], "word": f"w{index}",
            "scalar": torch.tensor(index, dtype=torch.int16), "nested": {"a": index, "b": {"c": torch.ones(2)}}}


def transformed(index):
    """As after ToTensor."""
    return torch.full((3, 4, 4), index / 100), index % 3


def planes(index):
    """As after PILToTensor."""
    return torch.full((3, 8, 9), index, dtype=torch.uint8), index % 3


def pair_with_many_labels(index):
    return numpy.full((6, 5, 3), index, numpy.uint8), torch.tensor([index % 2, 1.0])


def three(index):
    return torch.tensor(index), torch.ones(index % 3, 2), "text"


def vector(index):
    return {"x": torch.full((3,), float(index)), "y": index}


def missing_sometimes(index):
    return {"x": float(index), **({"mask": torch.ones(2, dtype=torch.int8)} if index % 3 else {})}


class Counting(torch.utils.data.IterableDataset):
    """Boxes in its own order, and how often it was begun."""

    def __init__(self, size=SIZE, told=True, sample=boxes):
        self.size, self.sample, self.begun = size, sample, 0
        if told:
            self.__class__ = CountingWithLength

    def __iter__(self):
        self.begun += 1
        return map(self.sample, range(self.size))


class CountingWithLength(Counting):
    def __len__(self):
        return self.size


class Drawing(torch.utils.data.IterableDataset):
    """Draws from a generator that goes on from epoch to epoch. What it saves says also where in its epoch it stands."""

    def __init__(self, seed=5):
        self.random, self.at, self.given = numpy.random.default_rng(seed), 0, 0

    def __iter__(self):
        while self.at < SIZE:
            self.at += 1
            self.given += 1
            yield {"y": self.at - 1, "x": self.random.random(self.at % 4)}
        self.at = 0

    def __len__(self):
        return SIZE

    def state_dict(self):
        return {"at": self.at, "random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.at, self.random.bit_generator.state = state["at"], state["random"]


class DrawingOn(Drawing):
    """Does not say where it ends."""

    def __len__(self):
        raise NotImplementedError("nobody knows")  # As some have it; those without __len__ raise TypeError.


class Once(torch.utils.data.IterableDataset):
    """What can be gone over once, and then has nothing more."""

    def __init__(self, samples):
        self.samples = iter(samples)

    def __iter__(self):
        return self.samples


def user_pairs():
    data = Of(pil)
    data.classes = 3
    return data


def one_box_first(index):
    """As detection data sets: the first sample has one box."""
    count = 1 + index % 3
    return {"boxes": torch.full((count, 4), float(index)), "labels": torch.arange(count)}


def image_and_one_box_first(index):
    return numpy.full((6, 5, 3), index, numpy.uint8), one_box_first(index)


def label_in_an_array(index):
    return numpy.full((6, 5, 3), index, numpy.uint8), torch.tensor([index % 3])


def image_and_nested(index):
    """With names in groups, and a field that one in three samples lacks."""
    target = {"boxes": torch.full((index % 3, 4), float(index)), "of": {"id": index, "name": f"n{index}"}}
    return numpy.full((6, 5, 3), index, numpy.uint8), {**target, **({"weight": index / 2} if index % 3 else {})}


def dict_of_image_and_label(index):
    return {"image": numpy.full((6, 5, 3), index, numpy.uint8), "labels": index % 3}


class Untold(Of):
    """Classes that belong to no field of its samples."""

    @property
    def classes(self):
        raise RuntimeError("classes are not known yet")
