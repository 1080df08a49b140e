"""What the objects of a loop must be for trials from one state: hr.tune's and those of hr.diagnose_loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ._device import device_of, module_not_on_cpu, not_on_cpu
from ._device_times import why_not_timed
from ._state import tensors_in
from .errors import InvalidArgumentError, UnsupportedError

_HOST_CLOCK = "wanted the CPU: a step is timed by the host's clock, which tells of a device only what launching its work takes"


def device_of_all(model: nn.Module, optimizer: torch.optim.Optimizer, on_cuda: bool) -> torch.device:
    """That which the model is on. UnsupportedError where a step could not be timed there."""
    if on_cuda and (reason := why_not_timed([model])) is not None:
        raise UnsupportedError(f"tune: {reason}")
    if not on_cuda and (found := module_not_on_cpu(model)) is not None:
        raise UnsupportedError(f"tune: {found}; {_HOST_CLOCK}")
    device = device_of(next(model.parameters()))
    refuse_elsewhere((("the optimizer's state", tensor) for tensor in tensors_in(list(optimizer.state.values()))), device)
    return device


def refuse_elsewhere(tensors: Iterable[tuple[str, torch.Tensor]], device: torch.device) -> None:
    """UnsupportedError for what is neither on the CPU nor on this device."""
    if (found := not_on_cpu((name, tensor) for name, tensor in tensors if device_of(tensor) != device)) is not None:
        wanted = _HOST_CLOCK if device.type == "cpu" else f"wanted the CPU or {device}, as the model"
        raise UnsupportedError(f"tune: {found}; {wanted}")


def check_objects(model: Any, loader: Any, optimizer: Any, forward: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(f"tune: model: wanted a torch.nn.Module, found {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(f"tune: optimizer: wanted a torch.optim.Optimizer, found {type(optimizer).__name__}")
    if not callable(forward):
        raise InvalidArgumentError(
            f"tune: forward: wanted a function of model and batch that returns the loss, found {type(forward).__name__}")
    if not hasattr(loader, "__iter__") and not callable(loader):
        raise InvalidArgumentError("tune: loader: wanted a DataLoader, a headrace.Loader, a list of batches or a function "
                                   f"that returns an iterable, found {type(loader).__name__}")
    if hasattr(loader, "__next__"):
        raise InvalidArgumentError(
            f"tune: loader: a {type(loader).__name__} gives its batches only once; pass the function that makes it")
    parameters = dict(model.named_parameters())
    if not parameters:
        raise InvalidArgumentError("tune: the model has no parameters")
    devices = sorted({str(parameter.device) for parameter in parameters.values()})
    if len(devices) > 1:
        raise InvalidArgumentError(f"tune: wanted all parameters on one device, found them on {' and '.join(devices)}")
    known = {id(parameter) for parameter in parameters.values()}
    updated = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = [parameter for parameter in updated if id(parameter) not in known]
    if foreign:
        raise InvalidArgumentError(f"tune: {len(foreign)} of the optimizer's {len(updated)} parameters are not the "
                                   f"model's, the first of shape {tuple(foreign[0].shape)}")
    if not any(parameter.requires_grad for parameter in updated):
        raise InvalidArgumentError("tune: none of the optimizer's parameters requires a gradient")
