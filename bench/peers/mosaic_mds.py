"""MosaicML streaming: MDS shards on the local disk, torch's DataLoader, Pillow and torchvision's transforms (antialiased)."""

import io
import shutil
from importlib.metadata import version
from pathlib import Path

import torch
from PIL import Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory

import protocol
from torchvision_pil import TRAIN, VALIDATION


class Photographs(StreamingDataset):
    def __init__(self, folder, transform, shuffle):
        super().__init__(local=str(folder / "mds"), batch_size=protocol.BATCH, shuffle=shuffle)
        self.transform = transform

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return self.transform(Image.open(io.BytesIO(sample["image"])).convert("RGB")), sample["label"]


def prepare(folder):
    shutil.rmtree(folder / "mds", ignore_errors=True)
    with MDSWriter(out=str(folder / "mds"), columns={"image": "bytes", "label": "int"}) as writer:
        for path, label in zip(*protocol.photographs(folder)):
            writer.write({"image": Path(path).read_bytes(), "label": label})


def batches(arguments, transform, training: bool):
    torch.set_num_threads(1)
    clean_stale_shared_memory()
    loader = torch.utils.data.DataLoader(Photographs(arguments.folder, transform, training), batch_size=protocol.BATCH,
                                         num_workers=arguments.threads, drop_last=True, persistent_workers=True)
    return protocol.forever(lambda: loader)


def train(arguments):
    return batches(arguments, TRAIN, True)


def validation(arguments):
    return batches(arguments, VALIDATION, False)


if __name__ == "__main__":
    protocol.main(version("mosaicml-streaming"), {"train": train, "validation": validation}, prepare)
