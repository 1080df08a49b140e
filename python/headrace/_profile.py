"""hr.profile_operation: a function whose calls are spans."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, ParamSpec, TypeVar, cast

from ._core import span
from .errors import InvalidArgumentError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def profile_operation(
        name: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """A decorator: each call of the function, method or coroutine function is recorded as a span of this name while a Trace
    records; result, exceptions and metadata are the function's own. Of a coroutine the span covers the time from its first
    step to its end, waiting included.

        @hr.profile_operation("augment")
        def augment(image): ...

    Trace.summary() then tells the number of calls and their durations. A function that makes a generator is refused: its call does none of the work.
    """
    if not isinstance(name, str):  # @profile_operation without a name: here comes the function.
        raise InvalidArgumentError(f"profile_operation: name: wanted a text, found {type(name).__name__}")

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        if not callable(function):
            raise InvalidArgumentError(
                f"profile_operation: wanted a function, found {type(function).__name__}; below @staticmethod, @classmethod "
                "and @property")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidArgumentError(f"profile_operation: {function.__qualname__} makes a generator; wanted a function "
                                       "that does its work when it is called")
        if inspect.iscoroutinefunction(function):
            @functools.wraps(function)
            async def profiled(*args: Any, **kwargs: Any) -> Any:
                with span(name):
                    return await function(*args, **kwargs)
        else:
            @functools.wraps(function)
            def profiled(*args: Any, **kwargs: Any) -> Any:
                with span(name):
                    return function(*args, **kwargs)

        return cast(Callable[_Arguments, _Result], profiled)

    return decorate
