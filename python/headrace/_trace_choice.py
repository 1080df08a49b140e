"""The choice of what a trace records: the same words for hr.Trace, hr.watch, hr.profile and `headrace profile SCRIPT`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from . import _core
from .errors import InvalidArgumentError


class TraceChoice(TypedDict):
    """Keywords of headrace.Trace, which says what they mean."""

    names: list[str]
    every_steps: int
    from_s: float
    length_s: float


ALL: TraceChoice = {"names": [], "every_steps": 1, "from_s": 0.0, "length_s": 0.0}


def checked_choice(asker: str, names: Sequence[str], every_steps: int, from_s: float, length_s: float) -> TraceChoice:
    """InvalidArgumentError names what is wrong."""
    if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"{asker}: names: wanted a list of patterns, found {names!r}")
    if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 1:
        raise InvalidArgumentError(f"{asker}: every_steps: wanted a whole number of at least 1, found {every_steps!r}")
    for name, seconds in (("from_s", from_s), ("length_s", length_s)):
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise InvalidArgumentError(f"{asker}: {name}: wanted seconds from 0 on, found {seconds!r}")
    choice: TraceChoice = {"names": list(names), "every_steps": every_steps, "from_s": float(from_s), "length_s": float(length_s)}
    _core.Trace(**choice)  # Which checks the rest, and records nothing yet.
    return choice
