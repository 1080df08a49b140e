"""Grain: its reading threads run OpenCV, which releases the interpreter lock. Bilinear without antialiasing (INTER_LINEAR)."""

from importlib.metadata import version

import cv2
import grain.python as grain
import numpy

import drawing
import protocol

cv2.setNumThreads(0)
MEAN = 255 * numpy.array(protocol.MEAN, numpy.float32)
SCALE = 1 / (255 * numpy.array(protocol.DEVIATION, numpy.float32))


def decoded(path: str) -> numpy.ndarray:
    return cv2.cvtColor(cv2.imdecode(numpy.fromfile(path, dtype=numpy.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def finished(image: numpy.ndarray, window: tuple[int, int, int, int], flip: bool) -> numpy.ndarray:
    top, left, height, width = window
    image = cv2.resize(image[top:top + height, left:left + width], (protocol.SIZE, protocol.SIZE))
    if flip:
        image = cv2.flip(image, 1)
    return ((image - MEAN) * SCALE).transpose(2, 0, 1)


def drawn(sample, random: numpy.random.Generator):
    image = decoded(sample[0])
    return finished(image, drawing.crop(random, *image.shape[:2]), random.random() < 0.5), sample[1]


def centered(sample):
    image = decoded(sample[0])
    return finished(image, drawing.center(*image.shape[:2]), False), sample[1]


def batches(arguments, training: bool):
    dataset = grain.MapDataset.source(list(zip(*protocol.photographs(arguments.folder)))).seed(1)
    dataset = dataset.shuffle().repeat().random_map(drawn) if training else dataset.repeat().map(centered)
    options = grain.ReadOptions(num_threads=arguments.threads, prefetch_buffer_size=2 * protocol.BATCH)
    return iter(dataset.to_iter_dataset(options).batch(protocol.BATCH, drop_remainder=True))


def train(arguments):
    return batches(arguments, True)


def validation(arguments):
    return batches(arguments, False)


if __name__ == "__main__":
    protocol.main(version("grain"), {"train": train, "validation": validation})
