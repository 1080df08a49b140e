"""What a user says of the fields of a source's samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import worker
from .errors import InvalidArgumentError

_ENCODINGS = ("raw", "image", "text")  # By their numbers in the protocol.


@dataclass(frozen=True)
class Field:
    """A field of every sample: its type as torch calls it, and its shape, -1 along axes that differ from sample to sample.
    encoding "text" is UTF-8, given as str; "image" an image, uint8 (height, width, channels). optional: a sample may lack it,
    or give None."""

    dtype: str = "uint8"
    shape: Sequence[int] = ()
    encoding: str = "raw"
    optional: bool = False

    def __post_init__(self) -> None:
        dtype = str(self.dtype).removeprefix("torch.")
        if dtype not in worker.DTYPES:
            raise InvalidArgumentError(f"a field of type {self.dtype}; wanted {', '.join(worker.DTYPES)}")
        if self.encoding not in _ENCODINGS:
            raise InvalidArgumentError(f"a field of encoding {self.encoding!r}; wanted {', '.join(_ENCODINGS)}")
        shape = (worker.RAGGED,) if self.encoding == "text" else tuple(self.shape)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)


def sample_of(fields: Mapping[str, Any], present: Mapping[str, Any], index: int, form: Any) -> Any:
    """One sample of a batch in the form in which its data set gave it, tuples and dicts within dicts: (image, a dict of the rest)
    is that again. Named tuples come as tuples, arrays as tensors, numbers as numbers; a field that the sample lacks is None, in a
    dict alone. `form`: SourceReader.form; None, as of a pack: a tuple where fields have no names but their numbers, or are image
    and labels, else a dict."""
    sample = {}
    for name, field in fields.items():
        if name == "valid":
            continue
        value = field[index] if name not in present or present[name][index] else None
        sample[name] = value.item() if getattr(value, "ndim", None) == 0 else value
    if form is None:
        names = list(sample)
        is_tuple = names == ["image", "labels"] or names == [str(place) for place in range(len(names))]
        return tuple(sample.values()) if is_tuple else sample
    formed = _formed(form, sample)
    holder = formed[-1] if isinstance(formed, tuple) else formed
    if isinstance(holder, dict):
        holder.update(sample)  # What was declared and the first sample lacked.
    return formed


def _formed(form: Any, values: dict[str, Any]) -> Any:
    """Takes out of `values` what it has a place for."""
    if isinstance(form, str):
        return values.pop(form)
    if isinstance(form, Mapping):
        return {key: _formed(inner, values) for key, inner in form.items()}
    return tuple(_formed(inner, values) for inner in form)


def declared(fields: Any) -> Any:
    """`fields` of a Loader as SourceReader takes them: names, or {name: (type, shape, encoding, optional)}."""
    if fields is None:
        return None
    if isinstance(fields, str) or not isinstance(fields, (Mapping, Sequence)):
        raise InvalidArgumentError(f"fields is a {type(fields).__name__}; wanted names, or a dict of headrace.Field")
    if not isinstance(fields, Mapping):
        if wrong := [name for name in fields if not isinstance(name, str)]:
            raise InvalidArgumentError(f"fields has {wrong[0]!r}; wanted names")
        return tuple(fields)
    for name, field in fields.items():
        if not isinstance(name, str) or not isinstance(field, Field):
            raise InvalidArgumentError(f"fields has {name!r}: {field!r}; wanted a name and a headrace.Field")
    return {name: (worker.DTYPES.index(field.dtype), field.shape, _ENCODINGS.index(field.encoding), bool(field.optional))
            for name, field in fields.items()}
