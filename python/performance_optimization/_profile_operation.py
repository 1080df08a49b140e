"""A function whose calls are spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def profile_operation(name: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """headrace.profile_operation()."""
    import headrace

    return headrace.profile_operation(name)
