"""How long the steps of a block take on a CUDA device, for hr.tune: by the events of hr.autotune, waited for at its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ._boundary import Unit
from ._device import device_of
from ._device_times import DeviceTimes, times_of
from .errors import NumericsError, UnsupportedError

_BEGIN = Unit(0.0, 1.0, 0.0, False, "a block begins")


class BlockTimes:
    """begin(), stepped() behind each step, then seconds(). Within a block nothing waits for the device, so that it is as far
    behind its host as it is in the user's loop, and losses stay where they are; at its end one wait has all events passed.

    A step's seconds are those between the events at its two ends. Where the device is what the loop waits for, that is what the
    step's work takes; where the host is, events are recorded as late as the host comes to them. One thread."""

    def __init__(self, times: Callable[[], DeviceTimes], wait: Callable[[], Any]) -> None:
        """`times`: for each block. `wait` returns once the device has done all that was launched."""
        self._new_times, self._wait = times, wait
        self._times = times()
        self._losses: list[torch.Tensor] = []

    def begin(self) -> None:
        """A block begins. The device has nothing left to do, as the block before has waited for it."""
        self._losses, self._times = [], self._new_times()
        self._times.add(_BEGIN, kept_call=False)

    def stepped(self, loss: torch.Tensor | None, seconds: float) -> None:
        """A step was launched, which took the host so long. loss: of one number; None: nothing was computed."""
        if loss is not None:
            self._losses.append(loss.detach().reshape(()))
        self._times.add(Unit(seconds, 1.0, 0.0, True, ""), kept_call=False)

    def wait(self) -> None:
        """Until the device has done the block's work. NumericsError where a loss is not finite."""
        self._wait()
        losses, self._losses = self._losses, []
        if losses and not bool(torch.isfinite(torch.stack(losses)).all()):
            found = next(loss.item() for loss in losses if not torch.isfinite(loss))
            raise NumericsError(f"tune: the loss is {abs(found)}")

    def seconds(self) -> list[float]:
        """Of each step of the block, which has come to its end. UnsupportedError where a step could not be timed."""
        self.wait()
        _, *steps = self._times.known()
        for step in steps:
            if not step.countable:
                raise UnsupportedError(f"tune: a step was not timed: {step.why_not}; wanted an event at each of its ends, and "
                                       "none can be recorded while a CUDA graph is captured")
        return [step.seconds for step in steps]


def block_times_of(model: nn.Module) -> BlockTimes | None:
    """For a model of which why_not_timed() says nothing. None: it is on the CPU, where the host's clock tells."""
    if times_of([model]) is None:
        return None
    device = device_of(next(model.parameters()))
    return BlockTimes(partial(_times, model), partial(torch.cuda.synchronize, device))


def _times(model: nn.Module) -> DeviceTimes:
    times = times_of([model])
    assert times is not None
    return times
