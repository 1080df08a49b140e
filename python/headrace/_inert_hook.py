"""Hooks on the user's objects that no copy of these has."""

from __future__ import annotations

import contextlib
from typing import Any, Callable


class InertHook:
    """Calls `told` with what torch gives a hook. torch copies and pickles a module's hooks with it: a function of Python's own
    library goes there in this one's place, which takes up to any number of arguments and does nothing. So copies tell nobody, and
    a pickle can be loaded without headrace. Where a function in between would cost too much, a subclass has its own __call__."""

    def __init__(self, told: Callable[..., Any]) -> None:
        self._told = told

    def __call__(self, *given: Any) -> Any:
        return self._told(*given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")
