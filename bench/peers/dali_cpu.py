"""NVIDIA DALI on the CPU: decodes the crop's region, antialiased resize, one operator for flip, normalisation and NCHW."""

import nvidia.dali
from nvidia.dali import fn, pipeline_def, types

import protocol


class Images:
    """A batch as the protocol looks at it; its pixels stay where DALI has them."""

    def __init__(self, tensors):
        self.pixels = tensors.as_tensor()
        self.shape = tuple(self.pixels.shape())
        self.dtype = "float32" if self.pixels.dtype == types.FLOAT else str(self.pixels.dtype)

    def __len__(self):
        return self.shape[0]


@pipeline_def(batch_size=protocol.BATCH, device_id=None, prefetch_queue_depth=2)
def pipeline(paths, labels, training):
    stored, label = fn.readers.file(files=paths, labels=labels, random_shuffle=training, name="files")
    if training:
        image = fn.decoders.image_random_crop(stored, device="cpu", output_type=types.RGB, random_area=list(protocol.AREA),
                                                random_aspect_ratio=list(protocol.RATIO))
        image = fn.resize(image, size=[protocol.SIZE, protocol.SIZE], interp_type=types.INTERP_LINEAR, antialias=True)
    else:
        image = fn.decoders.image(stored, device="cpu", output_type=types.RGB)
        image = fn.resize(image, resize_shorter=protocol.RESIZE, interp_type=types.INTERP_LINEAR, antialias=True)
    flip = fn.random.coin_flip(probability=0.5) if training else 0
    return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", crop=[protocol.SIZE, protocol.SIZE],
                                    mirror=flip, mean=[255 * value for value in protocol.MEAN],
                                    std=[255 * value for value in protocol.DEVIATION]), label


def batches(arguments, training: bool):
    paths, labels = protocol.photographs(arguments.folder)
    made = pipeline(paths, labels, training, num_threads=arguments.threads)
    made.build()
    while True:
        images, label = made.run()
        yield Images(images), label


def train(arguments):
    return batches(arguments, True)


def validation(arguments):
    return batches(arguments, False)


if __name__ == "__main__":
    protocol.main(nvidia.dali.__version__, {"train": train, "validation": validation})
