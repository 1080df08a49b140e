"""A module's forward under settings that leave the module's code alone."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from ._state import map_tensors


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() == 4 and tensor.is_floating_point():
        return tensor.contiguous(memory_format=torch.channels_last)
    return tensor


def _full_precision(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


class TunedForward:
    """Stands as `model.forward` on the instance. Copies and pickles go with their module: a copied model has a
    TunedForward of its own."""

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
            args, kwargs = map_tensors(_channels_last, args), map_tensors(_channels_last, kwargs)
        if not self.bf16:
            return self._call(*args, **kwargs)
        device_type = next(self.module.parameters()).device.type
        with torch.autocast(device_type, torch.bfloat16):
            result = self._call(*args, **kwargs)
        return map_tensors(_full_precision, result)

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


class ForwardSwitch:
    """Puts a TunedForward on a module while any of its settings is on, and takes it away again."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._plain = module.__dict__.get("forward")
        self._tuned: TunedForward | None = None

    def set(self, *, channels_last: bool, bf16: bool, compile: bool) -> None:
        if not (channels_last or bf16 or compile):
            self.remove()
            return
        if self._tuned is None:
            self._tuned = TunedForward(self._module, self._plain)
        self._tuned.channels_last, self._tuned.bf16, self._tuned.compile = channels_last, bf16, compile
        self._module.forward = self._tuned

    def remove(self) -> None:
        if self._module.__dict__.get("forward") is self._plain:
            return
        if self._plain is None:
            del self._module.forward
        else:
            self._module.forward = self._plain
