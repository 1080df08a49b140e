"""Reads the samples of a user's source: called by a Loader's threads, or as a worker process of its own.

A worker is started by headrace.Loader(source, num_workers=N, worker_type="process") with the descriptors of src/data/source/worker_protocol.h. It is run as a
file, so that it imports nothing of headrace, and torch only if the source does; `python -m headrace.worker` is the same,
later. What the source prints goes where the parent's output goes.
"""

import array
import mmap
import multiprocessing.process
import multiprocessing.spawn
import operator
import os
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from typing import Any

CONTROL, SLOT, PAYLOAD = 3, 4, 5  # Descriptors.
PLACE_VARIABLE = "HEADRACE_WORKER"  # Of the environment: which of the workers this is, from 0.
FORMAT = 1
READY, SAMPLE, FAILED = 1, 3, 4
UNKNOWN = -1
TEXT_MAX = 64 << 10
PIXELS, ENCODED = 0, 1
FIRST_TRIED = 16  # Samples that are tried for the size of the images, until one can be read.


class SourceReader:
    """Gives the samples of an object with __len__ and __getitem__(index) -> (image, label).

    An image is a uint8 NumPy array or torch tensor, H x W x C (C 1 or 3) or H x W, or the bytes of a JPEG or PNG file; a
    label is an integer. Attributes that the source may have: `classes`, their number or one name each; `labels` or
    `targets`, one integer a sample; `channels` of encoded images, 1 or 3 (3).
    """

    def __init__(self, source: Any) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(type(source), method):
                raise TypeError(f"{type(source).__name__} has no {method}; a source has __len__ and __getitem__")
        self.source = source
        self.size = len(source)
        self.labels = _labels(source)
        self.classes = _classes(source, self.labels)
        self.height = self.width = 0
        self.channels = operator.index(getattr(source, "channels", 3))
        if self.size > 0:
            _, form, height, width, channels, _ = self._first()
            if form == PIXELS:
                self.height, self.width, self.channels = height, width, channels

    def read(self, index: int) -> tuple[Any, int, int, int, int, int]:
        """The image as a flat buffer of bytes, its form, height, width and channels, and the label."""
        sample = self.source[index]
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            size = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
            raise TypeError(f"a sample is a {type(sample).__name__}{size}; wanted (image, label)")
        image, label = sample
        try:
            number = operator.index(label)
        except TypeError:
            raise TypeError(f"a label is a {type(label).__name__}; wanted an integer: a batch holds one for a sample, by which "
                            "a collate_fn can look up boxes and other targets") from None
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"a label is {number}; wanted 64 bits")
        if isinstance(image, (bytes, bytearray, memoryview)):
            return (*_encoded(image, self.channels), number)
        return (*_pixels(image), number)

    def _first(self) -> tuple[Any, int, int, int, int, int]:
        """A sample without its bytes: the first that can be read."""
        refusal: Exception | None = None
        for index in range(min(self.size, FIRST_TRIED)):
            try:
                return self.read(index)
            except Exception as error:
                error.add_note(f"headrace: raised by sample {index}")
                refusal = refusal or error
        assert refusal is not None
        raise refusal


def _classes(source: Any, labels: array.array | None) -> int:
    classes = getattr(source, "classes", None)
    if classes is None:
        return UNKNOWN if labels is None else max(labels, default=0) + 1
    if isinstance(classes, Sequence):
        return len(classes)
    return operator.index(classes)


def _labels(source: Any) -> array.array | None:
    for name in ("labels", "targets"):
        labels = getattr(source, name, None)
        if labels is None:
            continue
        if hasattr(labels, "tolist"):
            labels = labels.tolist()
        try:
            return array.array("q", map(operator.index, labels))
        except TypeError:
            raise TypeError(f"{name} of {type(source).__name__}: wanted one integer a sample") from None
    return None


def _encoded(image: bytes | bytearray | memoryview, channels: int) -> tuple[memoryview, int, int, int, int]:
    view = memoryview(image).cast("B")
    if bytes(view[:3]) != b"\xff\xd8\xff" and bytes(view[:8]) != b"\x89PNG\r\n\x1a\n":
        raise ValueError(f"an image of {len(view)} bytes is neither a JPEG nor a PNG file; it begins {bytes(view[:8])!r}")
    return view, ENCODED, 0, 0, channels


def _pixels(image: Any) -> tuple[Any, int, int, int, int]:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(image, torch.Tensor):
        if image.dtype is not torch.uint8:
            raise TypeError(f"an image is a tensor of {image.dtype}; wanted torch.uint8")
        image = image.detach().cpu().numpy()
        numpy = sys.modules["numpy"]
    if numpy is None or not isinstance(image, numpy.ndarray):
        raise TypeError(f"an image is a {type(image).__name__}; wanted a uint8 NumPy array or torch tensor "
                        "(H x W x C), or the bytes of a JPEG or PNG file")
    if image.dtype != numpy.uint8:
        raise TypeError(f"an image is an array of {image.dtype}; wanted uint8")
    shape = image.shape if image.ndim != 2 else (*image.shape, 1)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"an image has shape {tuple(image.shape)}; wanted (height, width) or (height, width, 1 or 3)")
    if shape[2] not in (1, 3):
        raise ValueError(f"an image has {shape[2]} channels, the last of its shape {tuple(image.shape)}; wanted 1 or 3")
    return numpy.ascontiguousarray(image).reshape(-1), PIXELS, *shape


class _Parent:
    """The other side of the protocol."""

    def __init__(self) -> None:
        self._control = socket.socket(fileno=CONTROL)
        self._slot = mmap.mmap(SLOT, 0)

    def send(self, kind: int, *numbers: int) -> None:
        self._control.send(struct.pack("<II7q", kind, 0, *numbers, *(0,) * (7 - len(numbers))))

    def next_index(self) -> int | None:
        """Of the sample that is wanted; None when no more are."""
        message = self._control.recv(64)
        return struct.unpack("<II7q", message)[2] if message else None

    def put(self, content: Any) -> int:
        size = len(content)
        if size > len(self._slot):
            raise ValueError(f"{size} bytes for one sample; a worker may give {len(self._slot)}")
        self._slot[:size] = content
        return size

    def fail(self, index: int, error: BaseException) -> None:
        self.send(FAILED, index, self.put(_text_of(error)[: min(TEXT_MAX, len(self._slot))]))


def _text_of(error: BaseException) -> bytes:
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{what}\n\nTraceback in worker process {os.getpid()}:\n{frames}".encode(errors="backslashreplace")


def _open() -> SourceReader:
    preparation, pickled, init = pickle.loads(mmap.mmap(PAYLOAD, 0, access=mmap.ACCESS_READ))
    process: Any = multiprocessing.process.current_process()
    process._inheriting = True  # A script that starts workers while it is imported here is stopped by it.
    try:
        multiprocessing.spawn.prepare(preparation)
        source, worker_init = pickle.loads(pickled), pickle.loads(init)
        if worker_init is not None:
            worker_init(int(os.environ[PLACE_VARIABLE]))
        return SourceReader(source)
    finally:
        del process._inheriting


def main() -> int:
    try:
        return _serve(_Parent())
    except (BrokenPipeError, ConnectionResetError):  # Nobody listens any more.
        return 0


def _serve(parent: _Parent) -> int:
    try:
        reader = _open()
        labels = parent.put(memoryview(reader.labels or b"").cast("B")) // 8
    except BaseException as error:
        parent.fail(-1, error)
        return 1
    parent.send(READY, FORMAT, reader.size, reader.classes, reader.height, reader.width, reader.channels, labels)
    while (index := parent.next_index()) is not None:
        try:
            image, *form, label = reader.read(index)
            size = parent.put(image)
            parent.send(SAMPLE, index, size, *form, label)
        except Exception as error:
            parent.fail(index, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
