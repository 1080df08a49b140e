"""A loader's class, swapped for a subclass that does some things in another way, and its iterator, with another in its place."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from typing import Any

_TOLD_BY_OBJECT = vars(object)["__class__"]


def subclass_of(plain: type, methods: Mapping[str, Any]) -> type:
    """A subclass of `plain` under its name, with these methods and class attributes. Its objects show the `__class__` that
    they showed before; a copy or a pickle of one is an object of `plain`. `plain` may come from here, too."""
    # Accelerate's loaders, too, show another class than their own.
    is_plain = inspect.getattr_static(plain, "__class__") is _TOLD_BY_OBJECT
    shows = {"__class__": property(lambda self: plain)} if is_plain else {}

    def reduce(self: Any, protocol: Any) -> Any:
        set_class(self, plain)
        try:
            return self.__reduce_ex__(protocol)
        finally:
            set_class(self, made)

    made = types.new_class(plain.__name__, (plain,), {}, lambda body: body.update({
        "__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__, "__slots__": (),
        "__reduce_ex__": reduce, **shows, **methods}))
    return made


def set_class(loader: Any, kind: type) -> None:
    """Past a __setattr__ of the loader's own, and past the `__class__` that an object of subclass_of() shows."""
    _TOLD_BY_OBJECT.__set__(loader, kind)


class InPlaceOf:
    """Stands in the place of a loader's iterator, and has what that has. Subclasses have their own __next__."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._batches)  # TypeError where the loader's iterator has none.

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # Not there yet while a copy is made.
            raise AttributeError(name)
        return getattr(self._batches, name)
