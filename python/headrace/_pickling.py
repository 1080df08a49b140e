"""Objects that belong to one process say so where they are pickled or copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn


def refused_pickling(reason: str) -> Callable[[Any], NoReturn]:
    """A __reduce__ that raises TypeError, as Python does of what cannot be pickled: the reason says what to keep instead."""
    def reduce(self: Any) -> NoReturn:
        raise TypeError(reason)

    return reduce
