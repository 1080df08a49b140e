"""headrace.Loader, from Python; with --variant three_batches one batch is prepared ahead in place of two. The decoded cache is
a pack of pixels, with --variant lz4 compressed, with in_memory the JPEG files, which data.cache keeps decoded.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "build" / "release" / "python"))

import headrace  # noqa: E402

import protocol  # noqa: E402


def loader(arguments, source: str, transform: dict, **options):
    ahead = 1 if arguments.variant == "three_batches" else 2
    made = headrace.Loader(source, num_workers=arguments.threads, prefetch_batches=ahead, last_batch="drop", transform=transform,
                           **options)
    return protocol.forever(lambda: made)


def photographs(arguments, source: str, crop: dict, dtype: str = "float32", **options):
    normalise = {"mean": protocol.MEAN, "std": protocol.DEVIATION} if dtype == "float32" else {}
    transform = {"size": protocol.SIZE, "dtype": dtype, **normalise, **crop}
    return loader(arguments, source, transform, batch_size=protocol.BATCH, **options)


TRAINING = {"crop": "random_resized", "flip_probability": 0.5}


def train(arguments):
    return photographs(arguments, f"folder:{arguments.folder}/photographs", TRAINING)


def validation(arguments):
    batches = photographs(arguments, f"folder:{arguments.folder}/photographs",
                          {"crop": "center", "resize": protocol.RESIZE}, split="val")
    return (batch for batch in batches if len(batch[0]) == protocol.BATCH)


def decoded_cache(arguments, dtype: str = "float32"):
    if arguments.variant == "in_memory":
        return photographs(arguments, f"folder:{arguments.folder}/small", TRAINING, dtype, cache="decoded")
    return photographs(arguments, f"pack:{arguments.folder}/small-{arguments.variant or 'raw'}.pack", TRAINING, dtype)


def decoded_cache_uint8(arguments):
    return decoded_cache(arguments, "uint8")


def fashion(arguments):
    transform = {"pad": protocol.FASHION_PAD, "flip_probability": 0.5, "mean": [protocol.FASHION_MEAN],
                 "std": [protocol.FASHION_DEVIATION]}
    return loader(arguments, f"idx:{arguments.folder / 'fashion'}", transform, batch_size=protocol.FASHION_BATCH)


if __name__ == "__main__":
    protocol.main("of this tree", {"train": train, "validation": validation, "decoded_cache": decoded_cache,
                                   "decoded_cache_uint8": decoded_cache_uint8, "fashion": fashion})
