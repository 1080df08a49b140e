"""A module's forward under settings that leave the module's code alone."""

from __future__ import annotations

import functools
from typing import Any, Callable, Collection

import torch
from torch import nn

from ._state import map_tensors

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # By the number of a tensor's dimensions.


def _full_precision(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class TunedForward:
    """Stands as `model.forward` on the instance. Copies and pickles go with their module: a copied model has a
    TunedForward of its own."""

    dimensions: Collection[int] = (4,)  # Numbers of dimensions of the inputs whose layout channels_last changes.

    def __init__(self, module: nn.Module, plain: Any = None) -> None:
        """`plain`: a forward that the instance had of its own already."""
        self.module = module
        self.plain = plain
        self.channels_last = False
        self.bf16 = False
        self.compile = False
        self._compiled: Any = None
        functools.update_wrapper(self, plain or type(module).forward.__get__(module), updated=())
        del self.__wrapped__  # It would tie a copy to the module that it was copied from.

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.channels_last:
            args, kwargs = map_tensors(self._channels_last, args), map_tensors(self._channels_last, kwargs)
        if not self.bf16:
            return self._call(*args, **kwargs)
        with torch.autocast(self._device_type(), torch.bfloat16):
            result = self._call(*args, **kwargs)
        return map_tensors(_full_precision, result)

    def forget_compiled(self) -> None:
        """Frees what torch.compile made; it is made anew where it is asked for again."""
        self._compiled = None

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self.compile:
            return self._plain(*args, **kwargs)
        if self._compiled is None:
            self._compiled = torch.compile(self._plain)
        return self._compiled(*args, **kwargs)

    def _plain(self, *args: Any, **kwargs: Any) -> Any:
        if self.plain is not None:
            return self.plain(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def _channels_last(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() in self.dimensions and tensor.is_floating_point():
            return tensor.contiguous(memory_format=CHANNELS_LAST[tensor.dim()])
        return tensor

    def _device_type(self) -> str:
        return next(self.module.parameters()).device.type


class ForwardSwitch:
    """Puts a TunedForward on a module while any of its settings is on, and takes it away again. Where somebody has put another
    forward over it meanwhile, it stays within that one, with all settings off."""

    def __init__(self, module: nn.Module, make: Callable[[nn.Module, Any], TunedForward] = TunedForward) -> None:
        self._module = module
        self._make = make
        self._tuned: TunedForward | None = None
        self._is_in = False

    def set(self, *, channels_last: bool, bf16: bool, compile: bool) -> None:
        if not (channels_last or bf16 or compile):
            self.remove()
            return
        if not self._is_in:
            plain = self._module.__dict__.get("forward")
            if self._tuned is None or self._tuned.plain is not plain:
                self._tuned = self._make(self._module, plain)
            self._module.forward = self._tuned
            self._is_in = True
        self._set_all(channels_last, bf16, compile)

    def remove(self) -> None:
        if not self._is_in:
            return
        assert self._tuned is not None
        self._set_all(False, False, False)
        if self._module.__dict__.get("forward") is not self._tuned:
            return
        if self._tuned.plain is None:
            del self._module.forward
        else:
            self._module.forward = self._tuned.plain
        self._is_in = False

    def forget_compiled(self) -> None:
        if self._tuned is not None:
            self._tuned.forget_compiled()

    def _set_all(self, channels_last: bool, bf16: bool, compile: bool) -> None:
        assert self._tuned is not None
        self._tuned.channels_last, self._tuned.bf16, self._tuned.compile = channels_last, bf16, compile
