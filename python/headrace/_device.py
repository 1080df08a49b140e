"""Where tensors lie. The host's clock times a step on the CPU; of a device that works on its own it times the launches."""

from __future__ import annotations

from typing import Any, Iterable

import torch
from torch import nn

from ._state import tensors_in


def device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.device


def not_on_cpu(tensors: Iterable[tuple[str, torch.Tensor]]) -> str | None:
    """"NAME is on DEVICE" of the first of these that is not on the CPU; None: all are."""
    for name, tensor in tensors:
        device = device_of(tensor)
        if device.type != "cpu":
            return f"{name} is on {device}"
    return None


def module_not_on_cpu(module: nn.Module) -> str | None:
    return not_on_cpu([*((f"parameter {name}", tensor) for name, tensor in module.named_parameters()),
                       *((f"buffer {name}", tensor) for name, tensor in module.named_buffers())])


def batch_not_on_cpu(batch: Any) -> str | None:
    return not_on_cpu(("a tensor of the batch", tensor) for tensor in tensors_in(batch))
