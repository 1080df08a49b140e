"""Loaders by the names that published examples of YOLO training use."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from . import _config
from ._yolo_dataset import YoloDataset

if TYPE_CHECKING:
    import headrace

_WORKERS_MAX = 8
_IMAGE_SIZE = 640
_Sample = tuple[Any, Any, str, Any]  # As YoloDataset gives it, with image and shape as tensors.
_logger = logging.getLogger(__package__)


def create_cpu_optimized_dataloader(config: Any, split: str) -> headrace.Loader:
    """A headrace.Loader over the YOLO data set of `config.dataset_config["data_yaml_path"]`, with the settings of the published example for
    training on a CPU:

    - as many loading threads as this process may use cores, at most 8, which live as long as the loader,
    - decoded images stay in memory, up to half of what is free, so that later epochs decode none of them again,
    - no page-locked memory, with or without a GPU,
    - a new order in each epoch, and no smaller last batch, in the split "train" alone.

    A batch is a tuple: images, float32 (N, 3, size, size) from 0 to 1, letterboxed; labels, float32 (boxes, 6): number of the image in the
    batch, class, x, y, width and height as parts of the letterboxed image; the paths, N str; and the shapes, N pairs of height and
    width in pixels, as the files have them.

    config: any mapping or object with batch_size, image_size (640) and dataset_config, which has data_yaml_path: the text of data.yaml, or
        a .json file of the same keys. split: "train", "val" or "test".

    ValueError: a setting is missing or cannot be, or the data set has no such split or no images; while iterating: an image cannot be
    decoded, or a line of labels is no box. The file, and of labels the line, is named. OSError: a file cannot be read.
    """
    import headrace
    from headrace import _core
    from headrace.transforms import ToDtype

    batch_size = _config.number(config, "batch_size", int, 1)
    image_size = _config.number(config, "image_size", int, 1, default=_IMAGE_SIZE)
    path = _config.setting(config, "dataset_config.data_yaml_path")
    if not isinstance(path, (str, os.PathLike)):
        found = "none" if path is None else repr(path)
        raise ValueError(f"config.dataset_config.data_yaml_path: wanted the path of data.yaml, found {found}")
    data, is_training, workers = YoloDataset(path, split, image_size), split == "train", min(_core.usable_cores(), _WORKERS_MAX)
    _logger.info("[%s] %d images, batches of %d, %d workers, decoded images cached", split.upper(), len(data), batch_size, workers)
    fields = {"labels": headrace.Field("float32", (-1, 5)), "shape": headrace.Field("int64", (2,))}
    return headrace.Loader(data, training=is_training, batch_size=batch_size, shuffle=is_training, drop_last=is_training,
                           num_workers=workers, persistent_workers=True, pin_memory=False, cache="decoded", fields=fields,
                           transforms=[ToDtype("float32", scale=True)], collate_fn=_collated)


def _collated(samples: list[_Sample]) -> tuple[Any, Any, list[str], list[tuple[int, int]]]:
    import torch

    images, labels, paths, shapes = zip(*samples)
    boxes = [torch.cat([of_image.new_full((len(of_image), 1), number), of_image], dim=1) for number, of_image in enumerate(labels)]
    return torch.stack(images), torch.cat(boxes), list(paths), [(int(height), int(width)) for height, width in shapes]
