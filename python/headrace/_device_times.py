"""How long the updates of a loop take on a CUDA device, which works behind its host. Nothing here waits for the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ._boundary import Unit
from ._device import device_of

_LAUNCHED_BEFORE = "it was launched before the switch"
_WITH_CALL = "a call was kept"
_WINDOW = 256  # Units.
_NO_EVENT = "its time on the device is not known"


class Event(Protocol):
    """As torch.cuda.Event."""

    def query(self) -> bool:
        """Whether the device has done all that was launched before the event was recorded."""

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds on the device, of two events that it has passed."""


class _Ended(NamedTuple):
    """A unit that the host has ended, by the host's clock, and the events at its start and end."""

    number: int
    unit: Unit
    begin: Event | None  # None: none could be recorded.
    end: Event | None

    def as_told(self) -> Unit:
        if self.begin is None or self.end is None:
            return self.unit if not self.unit.countable else self.unit._replace(countable=False, why_not=_NO_EVENT)
        seconds = self.begin.elapsed_time(self.end) / 1000
        return self.unit._replace(seconds=seconds, wait_s=min(self.unit.wait_s, seconds))


class DeviceTimes:
    """Gives the units of a loop the time between two events, one recorded at each of their boundaries. Where the device is what
    the loop waits for, that is what its work takes; where the host is, events are recorded as late as the host comes to them.

    A unit is told once the device has passed its end, in the order of the units. By then the host has launched others: a switch
    that a unit leads to holds from the host's next update on, and the units in between do not count ("it was launched before
    the switch"). So a decision comes as many units late as the host is ahead: one or two where a unit fills the queue of
    launches, which takes about a thousand kernels, more where units are small. Nothing waits to bound that: blocks are made as
    long as it takes (LiveLoop::units_ahead of include/headrace/live_loop.h), up to a lead of 64. What those units in between
    lose to a slower trial is not among what the tuner counts as lost.

    A unit in which a call was kept is told at once, as one with those that are still out, by the host's clock and not counted:
    what is told next is then what the call belongs to, and its replays have waited for the device anyway.
    """

    def __init__(self, record: Callable[[], Event | None]) -> None:
        """`record` gives an event recorded behind all that was launched so far; None: none can be, as while a CUDA graph is
        captured."""
        self._record = record
        self._newest: Event | None = None
        self._reached: Event | None = None  # The newest that the device is known to have passed.
        self._made = self._switched = 0  # Units that the host has ended: in all, and when settings were switched last.
        self._out: deque[_Ended] = deque()  # Those that are not told yet.
        self._ahead = [0, 0]  # Units that the host has ended and the device has not: the most in this window, and in the last.

    def add(self, unit: Unit, *, kept_call: bool) -> None:
        """A unit has ended. Belongs behind its update, before anything else is launched."""
        begin, self._newest = self._newest, self._record()
        self._made += 1
        if self._made % _WINDOW == 0:
            self._ahead = [0, self._ahead[0]]
        self._out.append(_Ended(self._made, unit, begin, self._newest))
        if kept_call:
            joined = _joined([one.unit for one in self._out])
            self._out.clear()
            self._out.append(_Ended(self._made, joined, None, None))

    def known(self) -> Iterator[Unit]:
        """Those whose time is known by now, each once. It may be left in the middle; the rest comes next time."""
        while self._out and self._is_known(self._out[0]):
            ended = self._out.popleft()
            unit = ended.as_told()
            if unit.countable and ended.number <= self._switched:
                unit = unit._replace(countable=False, why_not=_LAUNCHED_BEFORE)
            yield unit
        self._ahead[0] = max(self._ahead[0], len(self._out))

    def _is_known(self, ended: _Ended) -> bool:
        if ended.begin is None or ended.end is None:
            return True
        if (ended.begin is not self._reached and not ended.begin.query()) or not ended.end.query():
            return False
        self._reached = ended.end
        return True

    @property
    def most_ahead(self) -> int:
        """Units that the host has ended and the device has not, the most of them in the newest 256 to 512."""
        return max(self._ahead)

    def note_switch(self) -> None:
        """Other settings hold from the host's next update on."""
        self._switched = self._made


def _joined(units: Sequence[Unit]) -> Unit:
    return Unit(sum(unit.seconds for unit in units), sum(unit.work for unit in units), sum(unit.wait_s for unit in units), False,
                _WITH_CALL)


def why_not_timed(models: Sequence[nn.Module]) -> str | None:
    """Why the updates of these models cannot be timed; None: they can, by the host's clock or on their device."""
    places = _places(models)
    for device, name in places.items():
        if device.type not in ("cpu", "cuda"):
            return (f"{name} is on {device}; wanted the CPU or a CUDA device: of others the host's clock tells only what "
                    "launching their work takes")
    if len(places) > 1:
        (device, name), (other, its), *_ = places.items()
        return f"{name} is on {device}, {its} on {other}; wanted all of them on one device, whose events time a step"
    return None


def times_of(models: Sequence[nn.Module]) -> DeviceTimes | None:
    """For models of which why_not_timed() says nothing. None: they are on the CPU, where the host's clock tells."""
    device = next(iter(_places(models)), torch.device("cpu"))
    return DeviceTimes(partial(_recorded, device)) if device.type == "cuda" else None


def _places(models: Sequence[nn.Module]) -> dict[torch.device, str]:
    """Each device that a parameter or a buffer is on, and the name of the first there."""
    places: dict[torch.device, str] = {}
    for model in models:
        for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
            for name, tensor in tensors:
                places.setdefault(device_of(tensor), f"{kind} {name}")
    return places


def _recorded(device: torch.device) -> Event | None:
    if torch.cuda.is_current_stream_capturing():  # The event would become part of the graph, and could not be asked.
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
