"""tf.data: the decoder reads the crop's region (decode_and_crop_jpeg), tf.image.resize, batches made NCHW at the end.

Resizes with antialiasing; with --variant plain without, which is what most pipelines of this kind do and much cheaper.
Fashion-MNIST is transformed a whole batch at a time, one crop and one vector of flips a batch: faster than a sample at a time.
"""

import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy  # noqa: E402
import tensorflow as tf  # noqa: E402

import protocol  # noqa: E402

SIZE, RESIZE = protocol.SIZE, protocol.RESIZE
MEAN = 255 * numpy.array(protocol.MEAN, numpy.float32)
DEVIATION = 255 * numpy.array(protocol.DEVIATION, numpy.float32)


def record(small: bytes, entry: dict) -> bytes:
    integers = {name: tf.train.Feature(int64_list=tf.train.Int64List(value=[entry[name]]))
                for name in ("height", "width", "label")}
    pixels = tf.train.Feature(bytes_list=tf.train.BytesList(value=[small]))
    return tf.train.Example(features=tf.train.Features(feature={"pixels": pixels, **integers})).SerializeToString()


def prepare(folder):
    with open(folder / "small.bin", "rb") as pixels, tf.io.TFRecordWriter(str(folder / "small.tfrecord")) as writer:
        for entry in json.loads((folder / "small.json").read_text()):
            writer.write(record(pixels.read(entry["height"] * entry["width"] * 3), entry))


def drawn_box(shape):
    begin, size, _ = tf.image.sample_distorted_bounding_box(
        shape, tf.zeros([1, 0, 4]), min_object_covered=0, area_range=protocol.AREA, aspect_ratio_range=protocol.RATIO,
        use_image_if_no_bounding_boxes=True)
    return begin, size


def resized(image, antialias: bool):
    return (tf.image.resize(image, [SIZE, SIZE], antialias=antialias) - MEAN) / DEVIATION


def drawn_from_file(path, label, antialias: bool):
    stored = tf.io.read_file(path)
    begin, size = drawn_box(tf.image.extract_jpeg_shape(stored))
    image = tf.image.decode_and_crop_jpeg(stored, tf.stack([begin[0], begin[1], size[0], size[1]]), channels=3)
    return tf.image.random_flip_left_right(resized(image, antialias)), label


def center_of_file(path, label, antialias: bool):
    stored = tf.io.read_file(path)
    shape = tf.image.extract_jpeg_shape(stored)
    side = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32) * (SIZE / RESIZE)
    side = tf.cast(tf.round(side), tf.int32)
    window = tf.stack([(shape[0] - side) // 2, (shape[1] - side) // 2, side, side])
    return resized(tf.image.decode_and_crop_jpeg(stored, window, channels=3), antialias), label


def drawn_from_record(example, antialias: bool, dtype=tf.float32):
    integer = tf.io.FixedLenFeature([], tf.int64)
    fields = tf.io.parse_single_example(example, {"pixels": tf.io.FixedLenFeature([], tf.string), "height": integer,
                                                  "width": integer, "label": integer})
    image = tf.reshape(tf.io.decode_raw(fields["pixels"], tf.uint8), tf.stack([fields["height"], fields["width"], 3]))
    begin, size = drawn_box(tf.shape(image))
    image = tf.slice(image, begin, size)
    if dtype == tf.uint8:
        image = tf.cast(tf.round(tf.image.resize(image, [SIZE, SIZE], antialias=antialias)), tf.uint8)
    else:
        image = resized(image, antialias)
    return tf.image.random_flip_left_right(image), fields["label"]


def batches(dataset, arguments, transform, batch: int = protocol.BATCH):
    options = tf.data.Options()
    options.threading.private_threadpool_size = arguments.threads
    options.deterministic = False
    antialias = arguments.variant != "plain"
    dataset = dataset.map(lambda *sample: transform(*sample, antialias), num_parallel_calls=arguments.threads)
    dataset = dataset.batch(batch, drop_remainder=True)
    dataset = dataset.map(lambda images, labels: (tf.transpose(images, [0, 3, 1, 2]), labels))
    return iter(dataset.prefetch(2).with_options(options))


def set_threads(arguments):
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)


def files(arguments, shuffle: bool):
    set_threads(arguments)
    paths, labels = protocol.photographs(arguments.folder)
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
    return (dataset.shuffle(len(paths)) if shuffle else dataset).repeat()


def train(arguments):
    return batches(files(arguments, True), arguments, drawn_from_file)


def validation(arguments):
    return batches(files(arguments, False), arguments, center_of_file)


def decoded_cache(arguments, transform=drawn_from_record):
    set_threads(arguments)
    return batches(tf.data.TFRecordDataset(str(arguments.folder / "small.tfrecord")).shuffle(500).repeat(), arguments, transform)


def decoded_cache_uint8(arguments):
    return decoded_cache(arguments, lambda example, antialias: drawn_from_record(example, antialias, tf.uint8))


def fashion(arguments):
    set_threads(arguments)
    images, labels = protocol.fashion(arguments.folder)
    side, pad, batch = protocol.FASHION_SIDE, protocol.FASHION_PAD, protocol.FASHION_BATCH

    def transform(images, labels):
        images = tf.pad(images, [[0, 0], [pad, pad], [pad, pad]])
        images = tf.image.random_crop(images, [batch, side, side])
        flips = tf.random.uniform([batch, 1, 1]) < 0.5
        images = tf.where(flips, tf.reverse(images, [2]), images)
        images = (tf.cast(images, tf.float32) / 255 - protocol.FASHION_MEAN) / protocol.FASHION_DEVIATION
        return images[:, None], labels

    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(labels)).repeat()
    dataset = dataset.batch(batch, drop_remainder=True).map(transform, num_parallel_calls=arguments.threads)
    return iter(dataset.prefetch(2))


if __name__ == "__main__":
    protocol.main(tf.__version__, {"train": train, "validation": validation, "decoded_cache": decoded_cache,
                                   "decoded_cache_uint8": decoded_cache_uint8, "fashion": fashion}, prepare)
