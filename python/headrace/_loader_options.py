"""Keywords of headrace.Loader that are keys of a recipe's [data]. `make docs` writes this file; they are declared in
include/headrace/options/data.h and transform.h."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

if TYPE_CHECKING:
    import torch

    from ._operation import Operation


class Option(NamedTuple):
    """What is said of a key."""

    default: Any
    range: str  # Empty: any value of its type.
    sentence: str


class TransformOptions(TypedDict, total=False):
    """The dict that `transform` is."""

    size: int
    crop: str
    resize: int
    scale: Sequence[float]
    ratio: Sequence[float]
    pad: int
    flip_probability: float
    mean: Sequence[float]
    std: Sequence[float]
    dtype: str | torch.dtype
    layout: str


class DataOptions(TypedDict, total=False):
    """Keys of [data] that are keywords as they are."""

    val_fraction: float
    batch_size: int
    num_workers: int | str
    num_workers_max: int
    prefetch_batches: int | str
    prefetch_mib: int
    auto_tune: bool
    last_batch: str
    shuffle: bool
    shuffle_window: int
    buckets: int
    bucket_by: str
    weights: Sequence[float]
    world_size: int
    rank: int
    in_order: bool
    on_corrupt: str
    cache: str
    cache_mib: int
    index: str
    scale_decode: bool
    max_pixels: int
    max_sample_bytes: int
    transform: TransformOptions
    transforms: Sequence[Operation | Mapping[str, Any]]
    eval_transforms: Sequence[Operation | Mapping[str, Any]]


SOURCE = (
    "Where samples come from: idx:DIR, a folder with the IDX files of MNIST or Fashion-MNIST, gzip or plain; folder:DIR, JPEG "
    "and PNG files in DIR/train/CLASS, DIR/val/CLASS and DIR/test/CLASS; classes:DIR, such files in DIR/CLASS, all to train on; "
    "list:FILE, such files by a text file of paths and labels; pack:PATH, what `headrace pack` wrote; csv:FILE, a table of "
    "numbers with a sample in each line.")
DATA = {
    "val_fraction": Option(0.0, "0 to 0.5",
        "Share of the training samples that is held out as the split val, drawn from the seed alone; for data without a val of "
        "their own. The best checkpoint is chosen by val; 0 holds out nothing."),
    "batch_size": Option(128, "1 to 65536",
        "Samples in a batch."),
    "num_workers": Option(1, "0 to 256, or auto",
        "Threads that load samples beside the training thread; 0 loads in the training thread; auto finds while it runs how "
        "many are enough. Changes no byte of any batch."),
    "num_workers_max": Option(0, "0 to 256",
        "The most that num_workers = auto may take; 0 is the larger of 16 and twice the cores that the process may use. More "
        "than the cores are taken only where reading waits."),
    "prefetch_batches": Option(2, "1 to 64, or auto",
        "Batches prepared ahead of the training loop, each of which costs one batch of memory; auto raises it until the loop no "
        "longer waits."),
    "prefetch_mib": Option(0, "0 to 16777216",
        "Bound in MiB of the batches prepared ahead, whatever prefetch_batches says; one batch is always prepared. 0 is a "
        "quarter of the memory limit for auto, and no bound for a number."),
    "auto_tune": Option(True, "",
        "Whether num_workers, prefetch_batches and cache, where they are auto, adapt to what is measured. With false nothing is "
        "decided: they stay as they begin, with 1, 2 and none."),
    "last_batch": Option("keep", "keep | drop | pad",
        "The batch left over at an epoch's end: keep it small, drop it (training only), or pad it to full size with the epoch's "
        "first samples, which count neither in the loss nor in a metric."),
    "shuffle": Option(True, "",
        "Draw a new order each epoch, from the seed and the epoch alone (training only)."),
    "shuffle_window": Option(0, "0 to 1099511627776",
        "For data in shards that are read from beginning to end: shuffle the shards, and the samples in windows of so many "
        "only; 0 shuffles all samples."),
    "buckets": Option(0, "0 to 4096",
        "Sort the samples into so many buckets of samples that are alike (bucket_by) and fill each batch from one of them; 0 "
        "does not sort (training only)."),
    "bucket_by": Option("bytes", "bytes | shape",
        "What the samples of a bucket are alike in: bytes, the size of the file, by which they cost alike to read and decode; "
        "or shape, the height and width of the image as it is stored, by which whoever pads a batch to its largest image wastes "
        "little. For shape the headers of all images are read when the loader is built."),
    "sampler": Option("each", "each | weighted | class_balanced",
        "each takes every sample once an epoch; weighted draws as many with replacement, each with its weight in weights; "
        "class_balanced the same with equal chances for the classes (training only)."),
    "weights": Option([], "each 0 to 1000000000000",
        "Weights of sampler = weighted, relative to one another: one a class, which all its samples have, or one a sample."),
    "world_size": Option(1, "1 to 65536",
        "Processes that train together. Their batches, taken in turns, are those of one process; each loads its own only."),
    "rank": Option(0, "0 to 65535",
        "Rank of this process, 0 to world_size - 1."),
    "in_order": Option(True, "",
        "Give the batches of an epoch in its order. false gives each as soon as it is whole, so that one slow file holds up its "
        "own batch alone: the same batches, in an order that differs from run to run, and no state within an epoch. A recipe's "
        "batches come in order."),
    "on_corrupt": Option("fail", "fail | replace | zero",
        "A sample that cannot be read or decoded: fail ends the run and names it; replace takes another one, drawn from the "
        "seed, in training and zero in evaluation; zero gives an image of zeros that counts neither in the loss nor in a "
        "metric."),
    "cache": Option("none", "none | decoded | encoded | auto",
        "What stays in memory until the bound, from one epoch to the next: decoded keeps decoded images, encoded the JPEG and "
        "PNG files as they were read; auto chooses while it runs, from what reading and decoding take and how much would fit, "
        "and takes back what does not pay. Changes no byte of any batch; without effect where the source holds pixels in "
        "memory, and encoded where it gives pixels, no files."),
    "cache_mib": Option(0, "0 to 16777216",
        "Bound of the cache in MiB; 0 is half of the memory that is free when the cache is switched on. A cache that it "
        "replaces counts as free."),
    "index": Option("use", "none | use | build",
        "The entropy index of a folder's JPEG files, with which a crop is decoded without what lies before it. use reads what "
        "lies beside the data (`headrace pack --index` makes it); build also makes what is missing while the first epoch "
        "decodes, and writes it at that epoch's end. Changes no byte of any batch."),
    "scale_decode": Option(False, "",
        "Decode a JPEG at a half, a quarter or an eighth of its size where the crop is then still at least twice the batch's "
        "images: faster on large images, and not the same pixels (about 40 dB PSNR and more). Without it every image is decoded "
        "as it is."),
    "max_pixels": Option(178956970, "1 to 4294836225",
        "An image of more pixels is rejected by its header, before memory is allocated, and handled by on_corrupt; 178956970 is "
        "Pillow's limit. A sample is refused, too, where an operation of data.transforms would make more pixels of an image of "
        "its size. A decoded pixel takes 3 bytes in each worker; progressive JPEG and interlaced PNG, which are held whole, may "
        "have a quarter of it."),
    "max_sample_bytes": Option(268435456, "1 to 1073741824",
        "A sample of more bytes, as it is stored, is refused before it is read, and handled by on_corrupt."),
    "transforms": Option([], "",
        "What is done to each sample, in this order: operations by the names and parameters that they have in "
        "torchvision.transforms.v2. They take the place of data.transform, whose layout alone goes with them."),
    "eval_transforms": Option([], "",
        "What is done in evaluation instead of data.transforms. Left out, it follows from these: random crops take the center, "
        "of a resized image where it may be larger, and what else is drawn at random is not done."),
}
TRANSFORM = {
    "size": Option(0, "0 to 4096",
        "Height and width in pixels that every image is cropped and resized to; 0 leaves images as stored, which must then all "
        "have one size."),
    "crop": Option("center", "center | random | random_resized",
        "Which part of a training image becomes the size x size pixels: its center or a random place after a resize, or a "
        "random rectangle of random size. Evaluation always resizes and takes the center."),
    "resize": Option(0, "0 to 8192",
        "Shorter side in pixels before a center or random crop, at least size; 0 is size x 8/7, 256 for 224."),
    "scale": Option([0.08, 1.0], "each 1e-06 to 1",
        "Lower and upper bound of the share of the image's area that crop = random_resized takes."),
    "ratio": Option([0.75, 1.3333333333333333], "each 0.01 to 100",
        "Lower and upper bound of the aspect ratio, width / height, of what crop = random_resized takes."),
    "pad": Option(0, "0 to 64",
        "Zero pixels added on each side before a random crop back to size (training only)."),
    "flip_probability": Option(0.0, "0 to 1",
        "Probability of a horizontal flip (training only)."),
    "mean": Option([0.0], "each -1000 to 1000",
        "Mean of each channel on the 0 to 1 scale; one value serves all channels."),
    "std": Option([1.0], "each 1e-06 to 1000",
        "Standard deviation of each channel; one value serves all channels."),
    "dtype": Option("float32", "float32 | bfloat16 | uint8",
        "Type of a batch's images: float32, or bfloat16, which is float32 rounded to the nearest, both normalised; uint8 is the "
        "pixels as they are, 0 to 255. A network of a recipe reads float32."),
    "layout": Option("nchw", "nchw | nhwc",
        "Order of a batch in memory: nchw channel by channel, nhwc pixel by pixel, which PyTorch calls channels-last."),
}
