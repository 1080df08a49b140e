"""Reads the samples of a user's source: called by a Loader's threads, or as a worker process of its own.

A worker is started by headrace.Loader(source, num_workers=N, worker_type="process") with the descriptors of src/data/source/worker_protocol.h. It is run as a
file, so that it imports nothing of headrace, and torch only if the source does; `python -m headrace.worker` is the same,
later. What the source prints goes where the parent's output goes.
"""

import array
import json
import mmap
import multiprocessing.process
import multiprocessing.spawn
import operator
import os
import pickle
import re
import socket
import struct
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

CONTROL, SLOT, PAYLOAD = 3, 4, 5  # Descriptors.
PLACE_VARIABLE = "HEADRACE_WORKER"  # Of the environment: which of the workers this is, from 0.
FORMAT, SCHEMA_FORMAT = 2, 1
READY, SAMPLE, FAILED = 1, 3, 4
ABSENT, VALUE, BYTES = 0, 1, 2  # Of a field of a sample.
UNKNOWN = -1
TEXT_MAX = 64 << 10
PIXELS, ENCODED = 0, 1
RAW, IMAGE, TEXT = 0, 1, 2
FIRST_TRIED = 16  # Samples that are tried, until one can be read.
COMPARED = 16  # Samples, from all over the source, whose shapes are compared.
RANK_MAX = 6
RAGGED = -1
IMAGE_NAMES = ("image", "images", "img")


def _dtypes() -> tuple[str, ...]:
    """Names by their numbers in the protocol, as the library has them."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "dtypes.inc"), encoding="ascii") as types:
        return tuple(re.findall(r'^HEADRACE_DTYPE\(\w+, \d+, "(\w+)"', types.read(), re.MULTILINE))


DTYPES = _dtypes()
UINT8, INT64, FLOAT64, BOOL = (DTYPES.index(name) for name in ("uint8", "int64", "float64", "bool"))
NUMBERS = {INT64: struct.Struct("<q"), FLOAT64: struct.Struct("<d"), BOOL: struct.Struct("<?")}  # That read() gives as such.
HEAD = struct.Struct("<BBBBIqq6i8sq")  # Of a field in the slot.


class EndOfSamples(Exception):
    """An iterable data set of unknown length has ended, and the sample lies behind its end."""

    def __init__(self, samples: int) -> None:
        super().__init__(f"the data set ended after {samples} samples")
        self.samples = samples


class IteratorError(Exception):
    """The iterator of such a data set raised `error`. What comes behind is not known then, not even where it ends."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class InOrder:
    """A source that gives its samples in its own order, from 0 on. `length` None: nobody knows before its end, behind which
    __getitem__ raises EndOfSamples, and from which it raises IteratorError where its iterator fails."""

    length: int | None


class Spec(NamedTuple):
    """A field of every sample. -1 in its shape: an axis that differs from sample to sample."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    encoding: int = RAW
    optional: bool = False

    def __str__(self) -> str:
        return f"{DTYPES[self.dtype]} {_shape(self.shape)}"


class SourceReader:
    """Gives the samples of an object with __len__ and __getitem__(index), as any torch data set has them: a tuple, a named
    tuple or a dict.

    (image, label): an image is a uint8 NumPy array or torch tensor, H x W x C (C 1 or 3) or H x W, a PIL image, or the bytes
    of a JPEG or PNG file; a label is an integer. These fields are called image and labels. So they are where the label is
    something else, or the image an array of other elements, which is taken as it is. Of (image, a dict) the dict's are beside
    the image. Other tuples have fields "0", "1" and so on, unless `fields` is their names; in dicts of dicts a name is
    "outer.inner". Fields are arrays or tensors of any type that DTYPES names, lists of numbers, str, bool, int or float.

    What a sample is made of is taken from the first that can be read. An axis is ragged where it differs among a few samples
    from all over the source; `fields` {name: (type, shape, encoding, optional)} says otherwise. An image is what is uint8, H x W
    or H x W x 1 or 3, and first of a pair or called image, images or img; a file or PIL image whatever it is called. Arrays of
    uint8 with other shapes are fields as they are.

    Attributes that the source may have: `classes`, their number or one name each; `labels` or `targets`, one integer a sample;
    `channels` of encoded images, 1 or 3 (3)."""

    def __init__(self, source: Any, fields: Any = None) -> None:
        for method in ("__len__", "__getitem__"):
            if not hasattr(type(source), method):
                raise TypeError(f"{type(source).__name__} has no {method}; a source has __len__ and __getitem__")
        self.source = source
        self.size = UNKNOWN if isinstance(source, InOrder) and source.length is None else len(source)
        channels = getattr(source, "channels", None)
        self.channels = None if channels is None else operator.index(channels)
        self._names = None if fields is None or isinstance(fields, Mapping) else tuple(fields)
        self._declared = {name: Spec(name, *rest) for name, rest in fields.items()} if isinstance(fields, Mapping) else {}
        self.schema: list[Spec] = []
        self.form: Any = None  # A sample with names in place of its values, and lists in place of its tuples.
        self._is_pair = False
        self._are_of_pairs = False  # Samples are (image, labels), whatever these are.
        self._untold: set[str] = set()  # Fields that are empty lists in the first sample.
        if self.size != 0:
            self._learn()
        has_classes = any(_is_class(spec) for spec in self.schema) or not self.schema
        self.labels = _labels(source) if has_classes else None
        self.classes = _classes(source, self.labels) if has_classes else UNKNOWN

    def read(self, index: int) -> tuple[Any, ...]:
        """Of each field None, a number, the bytes of a file, or the bytes of an array and its shape."""
        sample = self.source[index]
        if self._is_pair:
            return self._read_pair(sample)
        values = self._values(sample)
        return tuple(self._content(spec, values.get(spec.name)) for spec in self.schema)

    def _read_pair(self, sample: Any) -> tuple[Any, ...]:
        if not isinstance(sample, (tuple, list)) or len(sample) != 2:
            size = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
            raise TypeError(f"a sample is a {type(sample).__name__}{size}; wanted (image, label)")
        image, label = sample
        try:
            number = operator.index(label)
        except TypeError:
            raise TypeError(f"a label is a {type(label).__name__}; wanted an integer, as the first sample had") from None
        if not -(2**63) <= number < 2**63:
            raise ValueError(f"a label is {number}; wanted 64 bits")
        return _image(image, self.schema[0].shape[2]), number

    # ---- What samples are made of ----

    def _learn(self) -> None:
        first = self._first_sample()
        if first is None:
            self.size = 0
            return
        self._first, sample, specs = first
        values = self._named(sample)
        lacking = [spec for name, spec in self._declared.items() if name not in dict(values)]
        if unknown := [spec.name for spec in lacking if not spec.optional]:
            raise ValueError(f"fields names {_names(unknown)}; sample {self._first} has {_names(name for name, _ in values)}")
        self.schema = [*specs, *lacking]
        self.form = _form(sample, iter([name for name, _ in values]))
        self._is_pair = (type(sample) in (tuple, list) and self._are_of_pairs and not self._declared
                         and specs[0].encoding == IMAGE and _is_class(specs[1]))
        if any(spec.encoding == RAW and spec.shape and spec.name not in self._declared for spec in specs):
            self._compare_shapes()
        if self._untold:
            name = min(self._untold)
            raise TypeError(f"field {name} is an empty list in the first samples, which does not tell its type; say what it is: "
                            f"fields={{{name!r}: headrace.Field(\"float32\", (-1, 4))}}")
        for spec, value in zip(self.schema, (value for _, value in values)):
            self._content(spec, value)

    def _at_most(self, count: int) -> int:
        return count if self.size == UNKNOWN else min(self.size, count)

    def _first_sample(self) -> tuple[int, Any, list[Spec]] | None:
        """The first that can be read, and what it is made of; None: an iterable data set has none."""
        refusal: Exception | None = None
        for index in range(self._at_most(FIRST_TRIED)):
            try:
                sample = self.source[index]
                return index, sample, self._specs(sample)
            except EndOfSamples:
                break
            except IteratorError as broken:
                raise broken.error from None
            except Exception as error:
                error.add_note(f"headrace: raised by sample {index}")
                refusal = refusal or error
        if refusal is None:
            return None
        raise refusal

    def _specs(self, sample: Any) -> list[Spec]:
        self._untold.clear()
        values = self._named(sample)
        is_pair = isinstance(sample, (tuple, list)) and len(sample) == 2
        self._are_of_pairs = (is_pair and [name for name, _ in values] == ["image", "labels"]
                              and not isinstance(sample[1], Mapping))
        has_image, specs = False, []
        for name, value in values:
            at_image = name in IMAGE_NAMES or (is_pair and not specs)
            spec = self._declared.get(name) or self._spec(name, value, at_image and not has_image, not has_image)
            has_image = has_image or spec.encoding == IMAGE
            specs.append(spec)
        return specs

    def _is_label(self, value: Any) -> bool:
        """Whether it is a class. An array of one number is one where it is the second of a pair alone: elsewhere it may be that
        of a sample with one box."""
        return _is_index(value) and (self._are_of_pairs or tuple(getattr(value, "shape", ())) == ())

    def _compare_shapes(self) -> None:
        count = self._at_most(COMPARED)
        in_order = isinstance(self.source, InOrder)  # The first ones are as good, and spare reading it through.
        for number in range(count):
            index = number if in_order else number * self.size // count
            if index == self._first:
                continue
            try:
                values = dict(self._named(self.source[index]))
            except (EndOfSamples, IteratorError):
                break
            except Exception:
                continue  # Whoever loads it is told.
            self.schema = [self._widened(spec, values.get(spec.name)) for spec in self.schema]

    def _widened(self, spec: Spec, value: Any) -> Spec:
        if spec.encoding != RAW or not spec.shape or spec.name in self._declared or value is None or _is_empty_list(value):
            return spec
        try:
            dtype, shape, _ = _array(spec.name, value, spec)
        except (TypeError, ValueError):
            return spec  # Likewise.
        if spec.name in self._untold and shape:
            self._untold.remove(spec.name)
            return Spec(spec.name, dtype, (RAGGED, *shape[1:]))
        if len(shape) != len(spec.shape):
            return spec
        return spec._replace(shape=tuple(side if side == other else RAGGED for side, other in zip(spec.shape, shape)))

    def _spec(self, name: str, value: Any, at_image: bool, may_be_image: bool) -> Spec:
        if may_be_image and (_is_file(value) or _is_pil(value) or at_image and _is_image_array(value)):
            channels = self.channels or (1 if _is_pil(value) and value.mode == "L" else 3)
            content = _image(value, channels)
            if not isinstance(content, tuple):
                return Spec(name, UINT8, (RAGGED, RAGGED, channels), IMAGE)
            return Spec(name, UINT8, tuple(content[1]), IMAGE)
        if isinstance(value, str):
            return Spec(name, UINT8, (RAGGED,), TEXT)
        if at_image and isinstance(value, (bytes, bytearray, memoryview)):
            _image(value, 3)  # Raises.
        if name == "labels" and self._is_label(value):
            return Spec(name, INT64, ())
        if value is None:
            raise TypeError(f"field {name} is None in the first sample; say what it is: "
                            f"fields={{{name!r}: headrace.Field(\"float32\", (-1, 4), optional=True)}}")
        dtype, shape, _ = _array(name, value, None)
        if _is_empty_list(value):
            self._untold.add(name)
        return Spec(name, dtype, shape)

    # ---- One sample ----

    def _named(self, sample: Any) -> list[tuple[str, Any]]:
        """Its fields, in order."""
        if isinstance(sample, Mapping):
            values = list(_flat(sample))
        elif isinstance(sample, (tuple, list)):
            values = self._of_sequence(sample)
        else:
            raise TypeError(f"a sample is a {type(sample).__name__}; wanted (image, label), another tuple or a dict")
        if not values:
            raise ValueError(f"a sample is an empty {type(sample).__name__}; wanted fields")
        names = [name for name, _ in values]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"a sample has two fields {twice}; wanted each once")
        return values

    def _of_sequence(self, sample: Sequence[Any]) -> list[tuple[str, Any]]:
        if self._names is not None:
            if len(sample) != len(self._names):
                raise TypeError(f"a sample is a {type(sample).__name__} of {len(sample)}; wanted {len(self._names)}: "
                                f"{_names(self._names)}")
            return list(zip(self._names, sample))
        if hasattr(sample, "_fields"):
            return list(zip(sample._fields, sample))
        if len(sample) == 2 and _is_image_like(sample[0]):
            if isinstance(sample[1], Mapping):
                return [("image", sample[0]), *_flat(sample[1])]
            return [("image", sample[0]), ("labels", sample[1])]
        return [(str(position), value) for position, value in enumerate(sample)]

    def _values(self, sample: Any) -> dict[str, Any]:
        """By name, and none but those of the first sample."""
        values = dict(self._named(sample))
        known = [spec.name for spec in self.schema]
        missing = [spec.name for spec in self.schema if spec.name not in values and not spec.optional]
        if missing or not values.keys() <= set(known):
            lacks_some = 0 < len(missing) < len(known)  # All of them: it is another kind of sample.
            advice = (f". One that some lack is declared: fields={{{missing[0]!r}: headrace.Field(..., optional=True)}}"
                      if lacks_some else "")
            raise TypeError(f"a sample is a {type(sample).__name__} of {_names(values)}; wanted {_names(known)}, as sample "
                            f"{self._first} had{advice}")
        return values

    def _content(self, spec: Spec, value: Any) -> Any:
        if value is None:
            if not spec.optional:
                raise TypeError(f"field {spec.name} is None; wanted {spec}, or fields={{{spec.name!r}: "
                                "headrace.Field(..., optional=True)}")
            return None
        if spec.encoding == IMAGE:
            return _image(value, spec.shape[2])
        if spec.encoding == TEXT:
            return _text(spec.name, value)
        if _is_class(spec) and self._is_label(value):
            return _whole(value)
        dtype, shape, content = _array(spec.name, value, spec)
        fits = len(shape) == len(spec.shape) and all(
            wanted in (RAGGED, side) for side, wanted in zip(shape, spec.shape))
        if dtype != spec.dtype or not fits:
            ragged = (RAGGED, *spec.shape[1:]) if spec.shape else ()
            raise TypeError(f"field {spec.name} is {DTYPES[dtype]} {_shape(shape)}; wanted {spec}, as other samples had. Where "
                            f"it differs from sample to sample say so: fields={{{spec.name!r}: "
                            f"headrace.Field({DTYPES[spec.dtype]!r}, {ragged})}}")
        return content


def _names(names: Any) -> str:
    return ", ".join(names)


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _is_class(spec: Spec) -> bool:
    return spec.name == "labels" and spec.dtype == INT64 and spec.shape == () and not spec.optional


def _flat(sample: Mapping[Any, Any], before: str = "") -> Any:
    for key, value in sample.items():
        if not isinstance(key, str):
            raise TypeError(f"a sample is a dict with the key {key!r}; wanted names of fields")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def _form(part: Any, names: Iterator[str]) -> Any:
    if isinstance(part, Mapping):
        return {key: _form(inner, names) if isinstance(inner, Mapping) else next(names) for key, inner in part.items()}
    return [_form(inner, names) if isinstance(inner, Mapping) else next(names) for inner in part]


def _is_index(value: Any) -> bool:
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def _whole(value: Any) -> int:
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"a label is {number}; wanted 64 bits")
    return number


def _is_empty_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 0


def _is_file(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview)) and _begins_as_file(memoryview(value).cast("B"))


def _begins_as_file(view: memoryview) -> bool:
    return bytes(view[:3]) == b"\xff\xd8\xff" or bytes(view[:8]) == b"\x89PNG\r\n\x1a\n"


def _is_pil(value: Any) -> bool:
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def _is_image_array(value: Any) -> bool:
    """Whether it is an array of uint8 that is an image where it stands in the place of one."""
    if not str(getattr(value, "dtype", "")).endswith("uint8") or not hasattr(value, "shape"):
        return False
    shape = tuple(value.shape)
    return 0 not in shape and (len(shape) == 2 or len(shape) == 3 and shape[2] in (1, 3))


def _is_image_like(value: Any) -> bool:
    if isinstance(value, (bytes, bytearray, memoryview)) or _is_pil(value):
        return True
    return hasattr(value, "dtype") and len(getattr(value, "shape", ())) >= 2


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


def _image(image: Any, channels: int) -> Any:
    """The bytes of a file, or those of pixels and their height, width and channels."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        view = memoryview(image).cast("B")
        if not _begins_as_file(view):
            raise ValueError(f"an image of {len(view)} bytes is neither a JPEG nor a PNG file; it begins {bytes(view[:8])!r}")
        return view
    if _is_pil(image):
        return _pil_pixels(image, channels)
    return _pixels(image)


def _pil_pixels(image: Any, channels: int) -> tuple[bytes, tuple[int, int, int]]:
    mode = "L" if channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    return image.tobytes(), (image.height, image.width, len(mode))


def _pixels(image: Any) -> tuple[Any, tuple[int, int, int]]:
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
    return numpy.ascontiguousarray(image).reshape(-1), shape


def _text(name: str, value: Any) -> tuple[bytes, tuple[int]]:
    if not isinstance(value, str):
        raise TypeError(f"field {name} is a {type(value).__name__}; wanted a str, as other samples had")
    try:
        text = value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"field {name} is no text that UTF-8 can hold: {error}") from None
    return text, (len(text),)


def _array(name: str, value: Any, wanted: Spec | None) -> tuple[int, tuple[int, ...], Any]:
    """The number of its type, its shape, and what SourceReader.read() gives for it. `wanted`: of an empty list, which does not
    tell its type."""
    if isinstance(value, bool):
        return BOOL, (), value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError(f"field {name} is {value}; wanted 64 bits")
        return INT64, (), value
    if isinstance(value, float):
        return FLOAT64, (), value
    given, torch = value, sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        tensor = value.detach().cpu().contiguous()
        value = (tensor.view(torch.int16) if dtype == "bfloat16" else tensor).numpy() if dtype in DTYPES else tensor
    else:
        value = _numpy_of(name, value)
        dtype = value.dtype.name
    if dtype not in DTYPES:
        raise TypeError(f"field {name} is an array of {dtype}; wanted {', '.join(DTYPES)}")
    shape = tuple(value.shape)
    if isinstance(given, (list, tuple)) and shape == (0,) and wanted is not None and wanted.shape[:1] == (RAGGED,):
        shape = (0, *(max(side, 0) for side in wanted.shape[1:]))
        return wanted.dtype, shape, (b"", shape)
    if len(shape) > RANK_MAX:
        raise TypeError(f"field {name} has {len(shape)} axes; wanted at most {RANK_MAX}")
    numpy = sys.modules["numpy"]
    plain = numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    return DTYPES.index(dtype), shape, (plain, shape)


def _numpy_of(name: str, value: Any) -> Any:
    try:
        import numpy
    except ImportError:
        raise TypeError(f"field {name} is a {type(value).__name__}, which needs NumPy") from None
    if isinstance(value, (numpy.ndarray, numpy.generic)) or _is_pil(value):
        found = numpy.asarray(value)
    elif isinstance(value, (list, tuple)):
        try:
            found = numpy.asarray(value)
        except ValueError as error:
            raise TypeError(f"field {name} is a {type(value).__name__} that is no array: {error}") from None
    else:
        raise TypeError(f"field {name} is a {type(value).__name__}; wanted an array or tensor, numbers, a str or an image")
    return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def schema_bytes(schema: Sequence[Spec]) -> bytes:
    """As the protocol describes fields."""
    entries = b""
    for spec in schema:
        name = spec.name.encode()
        entries += struct.pack(f"<BBBBI{len(spec.shape)}q", spec.dtype, spec.encoding, spec.optional, len(spec.shape), len(name),
                               *spec.shape) + name + bytes(-len(name) % 8)
    return struct.pack("<4sIII", b"HRFS", SCHEMA_FORMAT, len(schema), 16 + len(entries)) + entries


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
            raise ValueError(f"{size} bytes for one message; a worker may give {len(self._slot)}")
        self._slot[:size] = content
        return size

    def put_sample(self, schema: Sequence[Spec], contents: Sequence[Any]) -> int:
        """The fields as FieldBytes writes them: heads, then bytes, each filled up to a multiple of 8."""
        end = HEAD.size * len(schema)
        placed = []
        for content in contents:
            content = content[0] if isinstance(content, tuple) else content
            is_bytes = content is not None and not isinstance(content, (int, float))
            placed.append((end, len(content)) if is_bytes else (0, 0))
            end += -(-placed[-1][1] // 8) * 8
        if end > len(self._slot):
            spec, (_, size) = max(zip(schema, placed), key=lambda field: field[1][1])
            raise ValueError(f"field {spec.name}: {size} bytes, of {end} for the sample; a worker may give {len(self._slot)}")
        for number, (spec, content, (at, size)) in enumerate(zip(schema, contents, placed)):
            kind, form, shape, value = ABSENT, PIXELS, (), b""
            if isinstance(content, (int, float)):
                kind, value = VALUE, NUMBERS[spec.dtype].pack(content)
            elif content is not None:
                kind = BYTES
                content, shape = content if isinstance(content, tuple) else (content, ())
                form = ENCODED if spec.encoding == IMAGE and not shape else PIXELS
                self._slot[at : at + size] = content
                self._slot[at + size : at + size + -size % 8] = bytes(-size % 8)
            HEAD.pack_into(self._slot, number * HEAD.size, kind, form, len(shape), spec.dtype, 0, at, size,
                           *shape, *(0,) * (RANK_MAX - len(shape)), value, 0)
        return end

    def fail(self, index: int, error: BaseException) -> None:
        self.send(FAILED, index, self.put(_text_of(error)[: min(TEXT_MAX, len(self._slot))]))


def _text_of(error: BaseException) -> bytes:
    what = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{what}\n\nTraceback in worker process {os.getpid()}:\n{frames}".encode(errors="backslashreplace")


def _open() -> SourceReader:
    preparation, pickled, init, fields = pickle.loads(mmap.mmap(PAYLOAD, 0, access=mmap.ACCESS_READ))
    process: Any = multiprocessing.process.current_process()
    process._inheriting = True  # A script that starts workers while it is imported here is stopped by it.
    try:
        multiprocessing.spawn.prepare(preparation)
        source, worker_init = pickle.loads(pickled), pickle.loads(init)
        if worker_init is not None:
            worker_init(int(os.environ[PLACE_VARIABLE]))
        return SourceReader(source, fields)
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
        schema, labels = schema_bytes(reader.schema), memoryview(reader.labels or b"").cast("B")
        form = json.dumps(reader.form).encode()
        parent.put(schema + labels + form)
    except BaseException as error:
        parent.fail(-1, error)
        return 1
    parent.send(READY, FORMAT, reader.size, reader.classes, len(schema), len(labels) // 8, len(form))
    while (index := parent.next_index()) is not None:
        try:
            parent.send(SAMPLE, index, parent.put_sample(reader.schema, reader.read(index)))
        except Exception as error:
            parent.fail(index, error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
