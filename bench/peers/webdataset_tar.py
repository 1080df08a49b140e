"""WebDataset: tar shards, worker processes of torch's DataLoader, Pillow and torchvision's transforms (antialiased)."""

from importlib.metadata import version
from pathlib import Path

import torch
import webdataset

import protocol
from torchvision_pil import TRAIN, VALIDATION

SHARDS = 12


def prepare(folder):
    paths, labels = protocol.photographs(folder)
    (folder / "tar").mkdir(exist_ok=True)
    for shard in range(SHARDS):
        with webdataset.TarWriter(str(folder / "tar" / f"{shard:02d}.tar")) as tar:
            for index in range(shard, len(paths), SHARDS):
                tar.write({"__key__": f"{index:06d}", "jpg": Path(paths[index]).read_bytes(), "cls": labels[index]})


def batches(arguments, transform, training: bool):
    torch.set_num_threads(1)
    shards = sorted(str(path) for path in (arguments.folder / "tar").glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards) if training else False)
    if training:
        dataset = dataset.shuffle(500)
    dataset = dataset.decode("pil").to_tuple("jpg", "cls").map_tuple(transform, int).batched(protocol.BATCH, partial=False)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=arguments.threads, persistent_workers=True)
    return protocol.forever(lambda: loader)


def train(arguments):
    return batches(arguments, TRAIN, True)


def validation(arguments):
    return batches(arguments, VALIDATION, False)


if __name__ == "__main__":
    protocol.main(version("webdataset"), {"train": train, "validation": validation}, prepare)
