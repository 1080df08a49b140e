"""The headrace.Loader that gives what a DataLoader over files gives: the same samples with the same transforms, each known
to be reproduced to within rounding. What is drawn at random, a plain shuffle included, is drawn by other generators."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, default_collate

from ._loader import Loader
from .errors import Error

_SPLITS = ("train", "val", "test")  # What a folder is called, too.


class _Unknown(Exception):
    """Why no headrace.Loader can stand for it."""


def native_loader_for(loader: DataLoader, *, takes_samplers: bool = False, **settings: Any) -> Loader | str:
    """The Loader, or why there is none. Its random draws come from torch's first seed and the epoch. With `takes_samplers` a
    sampler or batch sampler of the user's own is shared with it, which calls its set_epoch; without it there is no Loader then.
    `settings`: keywords of Loader that change no sample."""
    try:
        options = {**_batch_options(loader, takes_samplers), "seed": torch.initial_seed() % 2**62, "training": True, **settings}
        torchvision = sys.modules.get("torchvision")
        kind = type(loader.dataset)
        if torchvision is not None and kind is torchvision.datasets.ImageFolder:
            native_loader = _folder_loader(loader.dataset, torchvision, options)
        elif torchvision is not None and kind in (
                torchvision.datasets.MNIST, torchvision.datasets.FashionMNIST, torchvision.datasets.KMNIST):
            native_loader = _idx_loader(loader.dataset, torchvision, options)
        else:
            raise _Unknown(f"the data set is a {kind.__name__}, neither torchvision's ImageFolder nor of its MNIST kind")
    except _Unknown as reason:
        return str(reason)
    except Error as error:  # A folder that headrace does not read, an option out of its range.
        return str(error)
    native_loader._dataset = loader.dataset  # Loops ask for len(loader.dataset).
    return native_loader


def draws(native_loader: Loader) -> bool:
    """Whether anything of its batches is drawn at random."""
    options = native_loader.options
    transform = options["transform"]
    return (options["shuffle"] or transform["crop"] != "center" or transform["pad"] > 0
            or transform["flip_probability"] > 0)


def _batch_options(loader: DataLoader, takes_samplers: bool) -> dict[str, Any]:
    if loader.__class__ is not DataLoader:  # Of one that autotune watches, type() is another.
        raise _Unknown(f"the loader is a {type(loader).__name__}")
    batches = loader.batch_sampler
    is_plain = type(batches) is BatchSampler
    if loader.collate_fn is not default_collate or batches is None or not (is_plain or takes_samplers):
        raise _Unknown("the loader collates its batches in its own way")
    if loader.worker_init_fn is not None:
        raise _Unknown("the loader has a worker_init_fn")
    if torch.get_default_dtype() is not torch.float32:
        raise _Unknown(f"the default dtype is {torch.get_default_dtype()}")
    if not is_plain:
        return {"batch_sampler": batches}
    sampler = batches.sampler  # That of the loader may be another, which nobody asks.
    options = {"batch_size": batches.batch_size, "last_batch": "drop" if batches.drop_last else "keep"}
    shuffled = type(sampler) is RandomSampler and not sampler.replacement
    if (shuffled or type(sampler) is SequentialSampler) and len(sampler) == len(loader.dataset):
        return {**options, "shuffle": shuffled}
    if not takes_samplers:
        raise _Unknown(f"the order comes from a {type(sampler).__name__} that is not a plain shuffle of all samples")
    return {**options, "sampler": sampler}


def _folder_loader(data: Any, torchvision: Any, options: dict[str, Any]) -> Loader:
    if data.loader is not torchvision.datasets.folder.default_loader or torchvision.get_image_backend() != "PIL":
        raise _Unknown("the data set opens its images in its own way")
    if data.target_transform is not None:
        raise _Unknown("the labels are transformed")
    root = os.path.normpath(os.fspath(data.root))
    parent, name = os.path.split(root)
    if name not in _SPLITS:
        raise _Unknown(f"the folder is {root}; headrace reads DIR/train, DIR/val and DIR/test")
    transform = _transform(data.transform, torchvision.transforms)
    native_loader = Loader(f"folder:{parent or os.curdir}", split=name, transform=transform, **options)
    written = [(os.path.normpath(path), label) for path, label in data.samples]
    found = (native_loader.sample(index) for index in range(native_loader.samples))
    if native_loader.samples != len(written) or any(
            (os.path.normpath(path), label) != there for (path, label), there in zip(found, written)):
        raise _Unknown("the data set's files are not those that headrace finds in its folder")
    return native_loader


def _idx_loader(data: Any, torchvision: Any, options: dict[str, Any]) -> Loader:
    if data.target_transform is not None:
        raise _Unknown("the labels are transformed")
    source, split = f"idx:{data.raw_folder}", "train" if data.train else "test"
    transform = _transform(data.transform, torchvision.transforms, tuple(data.data.shape[1:]))
    # The data set in memory may be another one than the files by now.
    plain = Loader(source, split=split, training=False, batch_size=1024)
    if plain.samples != len(data.data) or len(data.targets) != len(data.data):
        raise _Unknown("the data set's images are not those of its files")
    for start, (images, labels) in zip(range(0, plain.samples, 1024), plain):
        part = slice(start, start + 1024)
        if not torch.equal(images.squeeze(1).mul(255).round_().to(torch.uint8), data.data[part]) or not torch.equal(
                labels, torch.as_tensor(data.targets[part])):
            raise _Unknown("the data set's images are not those of its files")
    return Loader(source, split=split, transform=transform, **options)


def _transform(written: Any, known: Any, stored: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Options for these of torchvision's transforms (`known`). `stored`: height and width that all images have and keep."""
    steps = list(written.transforms) if type(written) is known.Compose else [written]
    options = _crop(steps, known) if stored is None else _pad(steps, known, stored)
    if options is None:
        raise _no_chain(written, stored)
    if steps and type(steps[0]) is known.RandomHorizontalFlip:
        options["flip_probability"] = steps.pop(0).p
    if not steps or type(steps.pop(0)) is not known.ToTensor:
        raise _no_chain(written, stored)
    if steps and type(steps[0]) is known.Normalize:
        step = steps.pop(0)
        options["mean"], options["std"] = (torch.as_tensor(value, dtype=torch.float64).flatten().tolist()
                                                 for value in (step.mean, step.std))
    if steps:
        raise _no_chain(written, stored)
    return options


def _no_chain(written: Any, stored: tuple[int, ...] | None) -> _Unknown:
    first = "RandomResizedCrop, or Resize and CenterCrop or RandomCrop" if stored is None else "RandomCrop or none"
    steps = getattr(written, "transforms", [written])
    names = ", ".join(f"{type(step).__module__}.{type(step).__name__}".removeprefix("torchvision.transforms.transforms.")
                      for step in steps)
    return _Unknown(f"wanted the transforms {first}, then RandomHorizontalFlip or none, ToTensor, Normalize or none, found "
                    f"{names}")


def _crop(steps: list[Any], known: Any) -> dict[str, Any] | None:
    """Takes the steps that crop and resize; None: they are not those that are known."""
    bilinear = known.InterpolationMode.BILINEAR
    if steps and type(steps[0]) is known.RandomResizedCrop:
        step = steps.pop(0)
        if step.interpolation is bilinear:
            return {"crop": "random_resized", "size": _side(step.size), "scale": list(step.scale), "ratio": list(step.ratio)}
    elif len(steps) >= 2 and type(steps[0]) is known.Resize and type(steps[1]) in (known.CenterCrop, known.RandomCrop):
        resize, crop = steps.pop(0), steps.pop(0)
        shorter = [resize.size] if isinstance(resize.size, int) else list(resize.size)
        is_random = type(crop) is known.RandomCrop
        if len(shorter) == 1 and resize.interpolation is bilinear and resize.max_size is None and not (
                is_random and (crop.padding is not None or crop.pad_if_needed)):
            return {"crop": "random" if is_random else "center", "size": _side(crop.size), "resize": shorter[0]}
    else:
        return None
    raise _Unknown("the crop or resize has options that headrace does not have")


def _pad(steps: list[Any], known: Any, stored: tuple[int, ...]) -> dict[str, Any]:
    """Takes the step that pads and crops back, where there is one."""
    if not steps or type(steps[0]) is not known.RandomCrop:
        return {}
    step = steps.pop(0)
    if tuple(step.size) != stored or not isinstance(step.padding, int) or step.fill != 0 or (
            step.padding_mode != "constant"):
        raise _Unknown("the crop has options that headrace does not have")
    return {"pad": step.padding}


def _side(size: Any) -> int:
    height, width = size
    if height != width:
        raise _Unknown(f"the images are {height} x {width}; headrace crops squares")
    return height
