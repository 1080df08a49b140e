"""What is done to each sample on its way into a batch: headrace.Loader(..., transforms=[Resize(256), CenterCrop(224)]).

Operations have the names and parameters of torchvision.transforms.v2. Those that one pass can do are done in one; Loader.explain()
says which, and what kept the others from it. Objects of torchvision.transforms.v2 may stand in the list, too: those of these names
become these, ToImage and ToPureTensor do nothing to an image that is none of PIL's any more, and any other is refused by name.
headrace.Transform([...]) is such a list without a Loader: one image in, a tensor out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _operation_classes
from ._operation import Operation
from ._operation_classes import *  # noqa: F403
from .errors import Error, InvalidArgumentError

__all__ = ["Compose", "Operation"]
__all__ += _operation_classes.__all__

_THEIRS = "torchvision.transforms."
_OF_TYPES = ("ToImage", "ToPureTensor")  # From PIL's images to tensors, and between classes of these.


class Compose(tuple[Operation | Mapping[str, Any], ...]):
    """Operations in their order. A plain list does as well wherever this does; in either, another may stand in the place of its
    operations."""

    def __new__(cls, transforms: Iterable[Any]) -> Compose:
        return super().__new__(cls, _flat(transforms, "Compose"))

    def __repr__(self) -> str:
        return f"Compose([{', '.join(map(repr, self))}])"


def operations_of(given: Any, key: str) -> Any:
    """The list that the option `key` is given as, flat, with our operations in the place of torchvision's. What is no list stays
    as it is, to be refused with the other options."""
    listed = _listed(given)
    return given if listed is None else list(_flat(listed, key))


def _listed(given: Any) -> Sequence[Any] | None:
    if isinstance(given, (list, tuple)):
        return given
    is_theirs = type(given).__module__.startswith(_THEIRS) and type(given).__name__ == "Compose"
    return list(given.transforms) if is_theirs else None


def _flat(steps: Iterable[Any], key: str) -> Iterator[Any]:
    for place, step in enumerate(steps):
        name = f"{key}[{place}]"
        inner = _listed(step)
        if inner is not None:
            yield from _flat(inner, name)
        elif not type(step).__module__.startswith(_THEIRS):
            yield step
        elif type(step).__name__ not in _OF_TYPES or not _is_v2(step):
            yield _ours(step, name)


def _is_v2(step: Any) -> bool:
    return type(step).__module__.startswith(f"{_THEIRS}v2.")


def _ours(step: Any, key: str) -> Operation:
    """The operation of torchvision's name, with the parameters that `step` was made with."""
    name = type(step).__name__
    if not _is_v2(step) or name not in _operation_classes.__all__:
        version = "v2." if _is_v2(step) else ""
        raise InvalidArgumentError(
            f"{key}: there is no operation for {_THEIRS}{version}{name}; wanted those of {_THEIRS}v2 or headrace.transforms that are "
            f"called {' | '.join(_operation_classes.__all__)}")
    ours = getattr(_operation_classes, name)
    try:
        return ours(**{parameter: _value(step, parameter) for parameter in ours.__dataclass_fields__})
    except Error as error:
        raise type(error)(f"{key}: {error}") from error


def _value(step: Any, parameter: str) -> Any:
    name, value = type(step).__name__, getattr(step, parameter)
    if isinstance(value, Mapping):
        raise InvalidArgumentError(f"{parameter} of torchvision's {name} is a dict; wanted one value for the image")
    if parameter == "antialias" and value is None:
        raise InvalidArgumentError(f"{parameter} of torchvision's {name} is None; wanted True")
    if parameter == "padding" and value is not None and name == "RandomCrop":
        left, right, top, bottom = value  # As it keeps them, whatever it was given.
        value = (left, top, right, bottom)
    # One number comes as two or four, and a Loader's state tells lists apart by how they are written. Of a Resize two say more.
    is_one = parameter in ("size", "padding") and name != "Resize" and isinstance(value, Sequence) and len(set(value)) == 1
    return value[0] if is_one else value
