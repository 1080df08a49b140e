"""A loader's class, swapped for a subclass that does some things in another way."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

_SHOWN = "_headrace_shown"  # Of a subclass made here: the class that its objects show.


def subclass_of(plain: type, methods: Mapping[str, Any]) -> type:
    """A subclass of `plain` under its name, with these methods and class attributes. Its objects show the class that they had as
    their `__class__`; a copy or a pickle of one is an object of `plain`. `plain` may come from here, too."""
    shown = vars(plain).get(_SHOWN, plain)

    def reduce(self: Any, protocol: Any) -> Any:
        set_class(self, plain)
        try:
            return self.__reduce_ex__(protocol)
        finally:
            set_class(self, made)

    made = types.new_class(plain.__name__, (plain,), {}, lambda body: body.update({
        "__module__": plain.__module__, "__qualname__": plain.__qualname__, "__doc__": plain.__doc__, "__slots__": (),
        "__class__": property(lambda self: shown), "__reduce_ex__": reduce, _SHOWN: shown, **methods}))
    return made


def set_class(loader: Any, kind: type) -> None:
    """Past a __setattr__ of the loader's own, and past the `__class__` that an object of subclass_of() shows."""
    vars(object)["__class__"].__set__(loader, kind)
