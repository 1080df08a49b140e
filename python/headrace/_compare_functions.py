"""hr.compare_functions: which of two functions is slower, by the judge of `headrace compare`."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

from . import _core
from .errors import InvalidArgumentError

_DOES_NOTHING = {"makes a generator": (inspect.isgeneratorfunction, inspect.isasyncgenfunction),
                 "makes a coroutine": (inspect.iscoroutinefunction,)}
_SEED_MAX = 2**64 - 1


class FunctionComparison(dict[str, Any]):
    """What hr.compare_functions found: a dict as `headrace compare --json` writes it, of its one metric call_s, with every sample
    (samples), the machine and the options; json.dump() takes it. As a text it is the report."""

    def __init__(self, found: Mapping[str, Any], text: str) -> None:
        super().__init__(found)
        self._text = text

    @property
    def verdict(self) -> str:
        """What is proven: the new one is slower ("regressed"), faster ("improved"), no different within the tolerance ("equivalent"), or
        none of these ("inconclusive")."""
        return str(self._metric["verdict"])

    @property
    def slowdown(self) -> dict[str, float | None]:
        """By how much the new one takes longer, 0.1 is 10 %: median, low and high (95 % of one look; high is None after one pair)."""
        return dict(self._metric["change"])

    @property
    def old_s(self) -> float:
        """Seconds a call of the old one, the median of its samples."""
        return float(self._metric["old"])

    @property
    def new_s(self) -> float:
        """Seconds a call of the new one, the median of its samples."""
        return float(self._metric["new"])

    @property
    def pairs_needed(self) -> int | None:
        """Pairs more that would decide an inconclusive one; None: it is decided, or they are more than 10,000."""
        needed: int | None = self._metric["pairs_needed"]
        return needed

    @property
    def _metric(self) -> dict[str, Any]:
        metric: dict[str, Any] = self["metrics"][0]
        return metric

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<headrace.FunctionComparison: {self['conclusion']}>"


def compare_functions(
        old: Callable[[], object], new: Callable[[], object], *, pairs: int = 200, budget_s: float = 60.0, sample_s: float = 0.01,
        warmup_calls: int = 3, tolerance: float = 0.02, seed: int = 0) -> FunctionComparison:
    """Whether `new` is slower than `old`: two versions of a step, a transform, an epoch of a loader. Both are called without arguments,
    in turns, in this process, until it is decided; by default within seconds.

        print(hr.compare_functions(lambda: old_step(batch), lambda: new_step(batch)))

    Samples come in pairs, one of each function, in an order that is drawn for each pair. A sample has many calls, as many of one function as
    of the other. A function that is compared with itself is called slower in at most 1 % of comparisons, and faster in at most 1 %.

    pairs: at most; a difference takes 9 to be proven. budget_s: no other pair begins once these seconds are used up; the first always runs.
    sample_s: what a sample takes at least; longer ones scatter less. warmup_calls: of each function, not measured. tolerance: a smaller
    change is none, 0.02 is 2 %. seed: draws the order; 0: by the clock.

    Each call must do the same work, and all of it before it returns: one that starts work on a GPU waits for that
    (torch.cuda.synchronize()). An exception of a function passes as it is, with a note that nothing was judged.

    InvalidArgumentError: an argument is not callable, makes a generator or a coroutine, or an option is out of its range.
    """
    for name, function in (("old", old), ("new", new)):
        _check(name, function)
    _check_numbers(numbers.Integral, "a whole number", pairs=pairs, warmup_calls=warmup_calls, seed=seed)
    _check_numbers(numbers.Real, "a number", budget_s=budget_s, sample_s=sample_s, tolerance=tolerance)
    if not 0 <= seed <= _SEED_MAX:
        raise InvalidArgumentError(f"compare_functions: seed: wanted 0 to {_SEED_MAX}, found {seed}")
    try:
        found, text = _core.compare_functions(
            old, new, pairs=pairs, budget_s=budget_s, sample_s=sample_s, warmup_calls=warmup_calls, tolerance=tolerance, seed=seed,
            old_name=_name_of(old), new_name=_name_of(new))
    except BaseException as error:  # noqa: BLE001 - Ctrl-C ends a comparison, too.
        error.add_note("headrace.compare_functions: the comparison has not come to its end, and nothing was judged")
        raise
    return FunctionComparison(found, text)


def _check(name: str, function: object) -> None:
    if not callable(function):
        raise InvalidArgumentError(f"compare_functions: {name}: wanted a function, found {type(function).__name__}")
    for what, kinds in _DOES_NOTHING.items():
        if any(kind(function) for kind in kinds):
            raise InvalidArgumentError(f"compare_functions: {name}: {_name_of(function)} {what}; wanted a function that does its work when it "
                                       "is called")


def _check_numbers(kind: type, wanted: str, **options: object) -> None:
    """What kind they are; their ranges the engine checks."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, kind):
            raise InvalidArgumentError(f"compare_functions: {name}: wanted {wanted}, found {value!r}")


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
