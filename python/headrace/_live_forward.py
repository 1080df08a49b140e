"""How a model computes in a run that is tuned while it is under way."""

from __future__ import annotations

import collections
import inspect
from typing import Any

import torch
from torch import nn

from ._forward import CHANNELS_LAST, TunedForward
from ._settings import COMPILE, PRECISION
from ._state import tensors_in

RECOMPILATIONS_MOST = 4  # As many as a run may meet; torch itself goes on in Python after 8 of one frame.


class LiveCalls:
    """What the forwards of one loop's models share."""

    def __init__(self) -> None:
        self.is_inside = False  # One of them is being called.
        self.ended: dict[str, str] = {}  # By key: why a setting ended by itself while it was in force.


class LiveForward(TunedForward):
    """Stands as `model.forward` between two switches. The outermost call is tuned: calls within it, and those of an evaluation
    (eval mode without gradients), are as written. A copy or pickle of the module has its own forward (PlainSaves)."""

    def __init__(self, module: nn.Module, plain: Any, calls: LiveCalls) -> None:
        super().__init__(module, plain)
        self.dimensions = CHANNELS_LAST.keys() & {parameter.dim() for parameter in module.parameters()}
        self._calls = calls
        self._compilations: collections.Counter[tuple[bool, bool]] = collections.Counter()
        try:
            self.__signature__ = inspect.signature(plain or type(module).forward.__get__(module))
        except (TypeError, ValueError):
            pass  # A forward that is not written in Python tells none, and neither does this one.

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        is_evaluation = not (self.module.training or torch.is_grad_enabled())
        if is_evaluation or self._calls.is_inside:
            return self._plain(*args, **kwargs)
        if self.bf16 and torch.is_autocast_enabled(device := self._device_type()):
            self._calls.ended[PRECISION] = ("the loop calls the model under autocast of its own, to "
                                            f"{torch.get_autocast_dtype(device)}")
            self.bf16 = False
        self._calls.is_inside = True
        try:
            return super().__call__(*args, **kwargs)
        finally:
            self._calls.is_inside = False

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.compile:
            return self._plain(*args, **kwargs)
        from torch._dynamo.exc import TorchDynamoException  # Takes a second where nothing was compiled yet.
        from torch._dynamo.utils import counters

        compiled_before = counters["frames"]["ok"]
        try:
            result = super()._call(*args, **kwargs)
        except TorchDynamoException as error:
            self._give_up(f"torch.compile failed: {type(error).__name__}: {first_line(error)}")
            return self._plain(*args, **kwargs)
        if counters["frames"]["ok"] > compiled_before:
            self._count_compilation(args, kwargs)
        return result

    def _count_compilation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The first one under each combination of the other settings is no recompilation: torch keeps all of them."""
        self._compilations[self.channels_last, self.bf16] += 1
        recompilations = sum(self._compilations.values()) - len(self._compilations)
        if recompilations >= RECOMPILATIONS_MOST:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in((args, list(kwargs.values()))))
            self._give_up(f"given up after {recompilations} recompilations, the last for inputs of shape {shapes}")

    def _give_up(self, reason: str) -> None:
        self._calls.ended[COMPILE] = reason
        self.compile = False
        self.forget_compiled()


def first_line(error: BaseException) -> str:
    """Of its message, or its class where it has none."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
