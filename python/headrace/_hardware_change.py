"""A change of one setting, of the hardware or of a library: what was requested, what is in force, and how to undo it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import NamedTuple

UNAVAILABLE = "unavailable"
BY_CALL, FOR_CHILDREN, NOT_APPLIED = "by call", "for child processes", "not applied"


@dataclasses.dataclass(frozen=True)
class HardwareSetting:
    """One setting and what became of it. Values are texts such as "true", "0.9" or "0-3"; "unavailable": could not be read.

    requested, before, now: the value asked for, the one before, and the one read back after the change.
    how: "by call": in force in this process. "for child processes": an environment variable was set, for processes that start from here
        on. "not applied": nothing was changed.
    reason: why it is not applied, or a remark; else empty. set_by: the function that was called.
    """

    name: str
    requested: str
    before: str
    now: str
    how: str
    reason: str
    set_by: str = ""

    @property
    def is_applied(self) -> bool:
        return self.how != NOT_APPLIED


class Change(NamedTuple):
    setting: HardwareSetting
    undo: Callable[[], HardwareSetting] | None = None  # None: nothing was changed.


def text(value: bool | int | float) -> str:
    return json.dumps(value)


def refused(name: str, requested: str, now: str, reason: str) -> Change:
    """Nothing was changed."""
    return Change(HardwareSetting(name, requested, now, now, NOT_APPLIED, reason))


def switched(name: str, requested: str, read: Callable[[], str], write: Callable[[], object], restore: Callable[[], object],
             how: str = BY_CALL, reason: str = "") -> Change:
    """Writes and reads back. Where another value is read it is not applied, and what was there before is put back. `reason` is that of a
    value that is applied."""
    before = read()
    write()
    now = read()
    if now != requested:
        restore()
        return refused(name, requested, read(), f"{now} was read back")

    def undo() -> HardwareSetting:
        restore()
        found = read()
        is_back = found == before
        return HardwareSetting(name, before, now, found, how if is_back else NOT_APPLIED, "" if is_back else f"{found} was read back")

    return Change(HardwareSetting(name, requested, before, now, how, reason), undo)
