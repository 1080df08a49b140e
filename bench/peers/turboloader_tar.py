"""TurboLoader: one tar file, its fused C++ pass (antialiased), which takes as many threads as the process has cores."""

import tarfile
from importlib.metadata import version

import numpy
import torch
import turboloader

import protocol

TAR = "turboloader.tar"


def prepare(folder):
    paths, _ = protocol.photographs(folder)
    with tarfile.open(folder / TAR, "w") as tar:
        for index, path in enumerate(paths):
            tar.add(path, arcname=f"{index:06d}.jpg")


def train(arguments):
    labels = numpy.asarray(protocol.photographs(arguments.folder)[1])
    loader = turboloader.DataLoader(str(arguments.folder / TAR), batch_size=protocol.BATCH, image_size=protocol.SIZE,
                                    output_format="pytorch", transform=turboloader.ImageNetNormalize(), shuffle=True,
                                    drop_last=True, num_workers=arguments.threads, train_aug=True, antialias=True)
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        for images, meta in loader:
            yield torch.from_numpy(images), labels[meta["indices"]]
        epoch += 1


if __name__ == "__main__":
    protocol.main(version("turboloader"), {"train": train}, prepare)
