"""hr.set_memory_format: the order of memory of a model's convolutions and of the inputs that it is called with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ._state import map_tensors
from .errors import InvalidArgumentError

# The convolutions that have such weights, by the weights' number of axes.
_FORMATS = {"channels_last": (4, torch.channels_last, (nn.Conv2d, nn.ConvTranspose2d)),
            "channels_last_3d": (5, torch.channels_last_3d, (nn.Conv3d, nn.ConvTranspose3d))}
_CONVOLUTIONS = tuple(kind for _, _, kinds in _FORMATS.values() for kind in kinds)
_CHOICES = (*_FORMATS, "contiguous", "preserve")


class _Inputs:
    """Runs before the forward of a model: floating-point inputs with that many axes get the format. A class, so that the model can be
    pickled."""

    def __init__(self, memory_format: str) -> None:
        self.axes, self.format, _ = _FORMATS[memory_format]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return map_tensors(self._changed, args), map_tensors(self._changed, kwargs)

    def _changed(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == self.axes and tensor.is_floating_point():
            return tensor.contiguous(memory_format=self.format)
        return tensor


def set_memory_format(model: nn.Module, memory_format: str) -> dict[str, str]:
    """Gives the weights of a model's convolutions this order of memory, in place, and has the model put its floating-point inputs with as
    many axes into it. The values are the same; what the model computes is so but for rounding. Call it before the optimizer has state,
    whose tensors keep the order that they have, and before hr.compiled().

    memory_format: "channels_last" for 2-d convolutions and inputs (samples, channels, height, width), "channels_last_3d" for 3-d ones
        and (samples, channels, depth, height, width), "contiguous" for torch's own order, in which inputs stay as they come, or
        "preserve": nothing is changed.

    Returns requested, applied and reason: where the model has no such convolution nothing is changed, and reason says so.
    InvalidArgumentError: the model is no nn.Module, or the format none of these.
    """
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"set_memory_format: model: wanted a torch.nn.Module, found {type(model).__name__}")
    if memory_format not in _CHOICES:
        raise InvalidArgumentError(f"set_memory_format: memory_format: wanted {' | '.join(_CHOICES)}, found {memory_format!r}")
    told = {"requested": memory_format, "applied": memory_format, "reason": ""}
    if memory_format == "preserve":
        return told
    _, order, kinds = _FORMATS.get(memory_format, (0, torch.contiguous_format, _CONVOLUTIONS))
    convolutions = [part for part in model.modules() if isinstance(part, kinds)]
    if not convolutions and memory_format in _FORMATS:
        which = "3-d" if memory_format == "channels_last_3d" else "2-d"
        reason = f"the model has no {which} convolution whose weights could be channels-last"
        return {**told, "applied": "preserve", "reason": reason}
    for hook_id in [number for number, hook in model._forward_pre_hooks.items() if isinstance(hook, _Inputs)]:
        del model._forward_pre_hooks[hook_id]
        model._forward_pre_hooks_with_kwargs.pop(hook_id, None)
    for convolution in convolutions:
        with torch.no_grad():
            for parameter in (convolution.weight, convolution.weight.grad):
                if parameter is not None:
                    parameter.data = parameter.data.contiguous(memory_format=order)
    if memory_format in _FORMATS:
        model.register_forward_pre_hook(_Inputs(memory_format), with_kwargs=True)
    return told
