"""FFCV: the photographs in its own file, as the JPEG bytes they are (train, validation) or as pixels of a short side of 256
(decoded_cache). OpenCV's INTER_AREA resizes, which antialiases where it shrinks."""

import os
from dataclasses import replace
from importlib.metadata import version

import numpy
from ffcv.fields import IntField, NDArrayField, RGBImageField
from ffcv.fields.decoders import (CenterCropRGBImageDecoder, IntDecoder, NDArrayDecoder,
                                  RandomResizedCropRGBImageDecoder)
from ffcv.fields.rgb_image import IMAGE_MODES
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler
from ffcv.pipeline.operation import Operation
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, RandomTranslate, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

import protocol


class StoredJpeg(RGBImageField):
    """Keeps a file's bytes: FFCV's own field would compress them anew."""

    def encode(self, destination, path, malloc):
        stored = numpy.fromfile(path, dtype=numpy.uint8)
        destination["mode"] = IMAGE_MODES["jpg"]
        destination["width"], destination["height"] = Image.open(path).size
        destination["data_ptr"], storage = malloc(stored.nbytes)
        storage[:] = stored


class Files:
    def __init__(self, folder):
        self.paths, self.labels = protocol.photographs(folder)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.paths[index], self.labels[index]


class Fashion:
    def __init__(self, folder):
        images, self.labels = protocol.fashion(folder)
        self.images = images.reshape(-1, protocol.FASHION_SIDE, protocol.FASHION_SIDE, 1)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], int(self.labels[index])


class NormalizeGrey(Operation):
    """FFCV's own operator is for three channels."""

    def generate_code(self):
        table = ((numpy.arange(256) / 255 - protocol.FASHION_MEAN) / protocol.FASHION_DEVIATION).astype(numpy.float32)
        iterator = Compiler.get_iterator()

        def normalize(images, result):
            source, target = images.reshape(images.shape[0], -1), result.reshape(result.shape[0], -1)
            for i in iterator(source.shape[0]):
                for at in range(source.shape[1]):
                    target[i, at] = table[source[i, at]]
            return result[:images.shape[0]]

        normalize.is_parallel = True
        return normalize

    def declare_state_and_memory(self, previous_state):
        dtype = numpy.dtype(numpy.float32)
        return replace(previous_state, jit_mode=True, dtype=dtype), AllocationQuery(previous_state.shape, dtype)


def write(path, images, dataset):
    if not path.exists():
        partial = path.with_suffix(".partial")
        DatasetWriter(str(partial), {"image": images, "label": IntField()}, num_workers=2).from_indexed_dataset(dataset)
        partial.rename(path)


def prepare(folder):
    side = protocol.FASHION_SIDE
    write(folder / "photographs.beton", StoredJpeg(), Files(folder))
    write(folder / "small.beton", RGBImageField("raw"), protocol.SmallImages(folder))
    write(folder / "fashion.beton", NDArrayField(numpy.dtype(numpy.uint8), (side, side, 1)), Fashion(folder))


def batches(arguments, name: str, image: list, order=OrderOption.RANDOM, batch: int = protocol.BATCH):
    fields = {"image": RGBImageField} if name == "photographs.beton" else {}  # StoredJpeg is one to the reader.
    loader = Loader(str(arguments.folder / name), batch_size=batch, num_workers=arguments.threads, order=order,
                    drop_last=True, custom_fields=fields, pipelines={"image": image, "label": [IntDecoder(), ToTensor()]})
    return protocol.forever(lambda: loader)


def photographs(arguments, name: str, decoder: list, order=OrderOption.RANDOM, dtype=numpy.float32):
    normalize = [NormalizeImage(255 * numpy.array(protocol.MEAN), 255 * numpy.array(protocol.DEVIATION), dtype)]
    as_tensor = [ToTensor(), ToTorchImage(channels_last=False)]
    return batches(arguments, name, [*decoder, *(normalize if dtype == numpy.float32 else []), *as_tensor], order)


def drawn():
    return [RandomResizedCropRGBImageDecoder((protocol.SIZE, protocol.SIZE), protocol.AREA, protocol.RATIO),
            RandomHorizontalFlip()]


def train(arguments):
    return photographs(arguments, "photographs.beton", drawn())


def validation(arguments):
    center = CenterCropRGBImageDecoder((protocol.SIZE, protocol.SIZE), protocol.SIZE / protocol.RESIZE)
    return photographs(arguments, "photographs.beton", [center], OrderOption.SEQUENTIAL)


def decoded_cache(arguments):
    return photographs(arguments, "small.beton", drawn())


def decoded_cache_uint8(arguments):
    return photographs(arguments, "small.beton", drawn(), dtype=numpy.uint8)


def fashion(arguments):
    image = [NDArrayDecoder(), RandomTranslate(protocol.FASHION_PAD, fill=(0,)), RandomHorizontalFlip(), NormalizeGrey(),
             ToTensor(), ToTorchImage(channels_last=False)]
    return batches(arguments, "fashion.beton", image, batch=protocol.FASHION_BATCH)


if __name__ == "__main__":
    protocol.main(version("ffcv"), {"train": train, "validation": validation, "decoded_cache": decoded_cache,
                                    "decoded_cache_uint8": decoded_cache_uint8, "fashion": fashion}, prepare)
    os._exit(0)  # FFCV's threads run on and end an interpreter that ends by std::terminate.
