"""SPDL: threads in one process; FFmpeg decodes, crops, resizes (bilinear, antialiased by swscale) and flips."""

from importlib.metadata import version

import numpy
import spdl.io
from PIL import Image
from spdl.pipeline import PipelineBuilder

import drawing
import protocol

SCALE = 1 / (255 * numpy.array(protocol.DEVIATION, numpy.float32)[:, None, None])
SHIFT = -numpy.array(protocol.MEAN, numpy.float32)[:, None, None] * 255 * SCALE


def pixels(path: str, window: tuple[int, int, int, int], flip: bool) -> numpy.ndarray:
    top, left, height, width = window
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1", f"scale={protocol.SIZE}:{protocol.SIZE}:flags=bilinear"]
    steps += ["hflip"] if flip else []
    return spdl.io.to_numpy(spdl.io.load_image(path, filter_desc=",".join([*steps, "format=pix_fmts=rgb24"])))


def batch_of(samples: list) -> tuple[numpy.ndarray, numpy.ndarray]:
    images = numpy.empty((len(samples), 3, protocol.SIZE, protocol.SIZE), numpy.float32)
    for row, (image, _) in zip(images, samples):
        numpy.multiply(image.transpose(2, 0, 1), SCALE, out=row)
        row += SHIFT
    return images, numpy.array([label for _, label in samples])


def batches(arguments, training: bool):
    paths, labels = protocol.photographs(arguments.folder)
    random = numpy.random.default_rng(1)
    sizes = [Image.open(path).size for path in paths]

    def drawn():
        for index in random.permutation(len(paths)) if training else range(len(paths)):
            width, height = sizes[index]
            window = drawing.crop(random, height, width) if training else drawing.center(height, width)
            yield paths[index], window, training and random.random() < 0.5, labels[index]

    def load(sample):
        path, window, flip, label = sample
        return pixels(path, window, flip), label

    def one_pass():
        pipeline = (PipelineBuilder().add_source(drawn()).pipe(load, concurrency=arguments.threads)
                    .aggregate(protocol.BATCH, drop_last=True).pipe(batch_of).add_sink(3).build(num_threads=arguments.threads))
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    return protocol.forever(one_pass)


def train(arguments):
    return batches(arguments, True)


def validation(arguments):
    return batches(arguments, False)


if __name__ == "__main__":
    protocol.main(version("spdl"), {"train": train, "validation": validation})
