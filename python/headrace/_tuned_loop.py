"""The user's loop as the native tuner sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._autotune_request import Request
from ._boundary import Boundary
from ._device_times import DeviceTimes
from ._kept_call import KeptCalls
from ._live_knobs import LiveKnobs
from .errors import InvalidArgumentError

LOADING = "data."  # What keys of the loader's settings begin with.


class TunedLoop:
    """What LiveTuner and LiveReplay ask of a loop (src/python/core/live_loop_object.h)."""

    def __init__(self, knobs: LiveKnobs, kept: KeptCalls, boundary: Boundary, request: Request,
                 times: DeviceTimes | None = None) -> None:
        """times: of a loop on a device."""
        self._knobs, self._kept, self._boundary, self._request, self._times = knobs, kept, boundary, request, times
        self._applied: list[tuple[str, str, str, str]] = []
        self._requested: dict[str, str] = {}  # The last value of each key that ever was in force.
        self._ended: dict[str, str] = {}  # By key: why a setting ended by itself, as far as the tuner has heard of it.

    def apply(self, settings: Mapping[str, str]) -> None:
        self._boundary.call_back()  # Whatever comes of it: a setting may have ended.
        self._applied = self._knobs.apply(settings)
        self._requested.update(settings)
        if self._times is not None:
            self._times.note_switch()

    def replay(self, reference: Mapping[str, str], candidate: Mapping[str, str], full_precision: bool) -> dict[str, Any]:
        before = self._knobs.ended
        found = self._kept.replay(self._apply_to_call, reference, candidate, self._knobs.in_force(), full_precision)
        ended = [reason for key, reason in self._knobs.ended.items() if key not in before]
        if ended and "failure" not in found:  # What was replayed went on without it.
            return {"failure": (InvalidArgumentError.code, ended[0])}
        return found

    def distance_between_calls(self) -> float | None:
        return self._kept.distance_between_calls(self._apply_to_call, {}, self._knobs.in_force())

    def updates_left(self) -> int | None:
        return self._boundary.updates_left(self._request.steps, self._request.epochs)

    def queued_units(self) -> int:
        batches = max(self._boundary.queue, self._knobs.queue())
        return -(-batches // (self._boundary.micro_batches or 1))

    def units_ahead(self) -> int:
        return 0 if self._times is None else self._times.most_ahead

    def has_ended(self) -> bool:
        """Whether take_ended() has something to tell."""
        return not self._knobs.ended.keys() <= self._ended.keys()

    def take_ended(self) -> dict[str, str]:
        """By key, why settings ended by themselves that the tuner has not heard of."""
        new = {key: reason for key, reason in self._knobs.ended.items() if key not in self._ended}
        self._ended.update(new)
        return new

    def in_force(self) -> list[tuple[str, str, str, str]]:
        """Key, requested, applied and reason of what was applied last, and of what ended by itself."""
        written, ended = self._knobs.baseline(), {**self._ended, **self._knobs.ended}
        return [row for row in self._applied if row[0] not in ended] + [
            (key, self._requested[key], written[key], reason) for key, reason in ended.items() if key in self._requested]

    def _apply_to_call(self, settings: Mapping[str, str]) -> None:
        """A replay takes no batch: the loader stays as it is."""
        loading = {key: value for key, value in self._knobs.in_force().items() if key.startswith(LOADING)}
        self._knobs.apply({**{key: value for key, value in settings.items() if not key.startswith(LOADING)}, **loading})
