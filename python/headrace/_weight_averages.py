"""Stochastic weight averaging (Izmailov and others, UAI 2018): the mean of a model's weights after each of a run's last epochs, with
the BatchNorm statistics that belong to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ._plain_state import Tensors

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_PARTS = ("parameters", "buffers")


class WeightAverages:
    """The arithmetic of torch.optim.swa_utils.AveragedModel and update_bn."""

    def __init__(self, first: int) -> None:
        self.first = first  # The epoch, from 1, with which the mean begins.
        self.epochs = 0  # In the mean.
        self.parameters: Tensors = {}
        self.buffers: Tensors = {}  # From renew() on: those that belong to the mean.

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        """One more epoch's weights. Buffers that were renewed no longer belong to the mean."""
        now = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self._follow(now)
        self.buffers = {}
        if self.epochs == 0:
            self.parameters = {name: tensor.clone() for name, tensor in now.items()}
        else:
            floating = [name for name, tensor in now.items() if tensor.is_floating_point()]
            torch._foreach_lerp_([self.parameters[name] for name in floating], [now[name] for name in floating], 1 / (self.epochs + 1))
            for name in now.keys() - set(floating):
                self.parameters[name].copy_(now[name])
        self.epochs += 1

    def renew(self, model: nn.Module, forward: Callable[[Any, Any], Any], batches: Iterable[Any], count: int | None,
              precision: str) -> None:
        """Running statistics of the mean, over `count` batches or all there are, of those BatchNorms that training renews: one that is
        in evaluation mode keeps its own. The model stays as it is."""
        self._follow(dict(model.named_parameters()))
        norms = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.training and part.track_running_stats]
        momenta = [norm.momentum for norm in norms]
        put_back = self.show(model)
        try:
            device, dtype = next(iter(self.parameters.values())).device.type, _DTYPES.get(precision)
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # The plain mean over the batches.
            if norms:
                with torch.no_grad(), torch.autocast(device, dtype, enabled=dtype is not None):
                    for batch in itertools.islice(batches, count):
                        forward(model, batch)
            self.buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
        finally:
            for norm, momentum in zip(norms, momenta):
                norm.momentum = momentum
            put_back()

    @torch.no_grad()
    def show(self, model: nn.Module) -> Callable[[], None]:
        """The model's tensors hold the mean; what this returns puts their own values back, bit for bit."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for name, value in self.named().items():
            tensors[name].copy_(value)

        @torch.no_grad()
        def put_back() -> None:
            for name, value in kept.items():
                tensors[name].copy_(value)

        return put_back

    def _follow(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Onto the devices of these: a checkpoint's file gives tensors of the CPU."""
        self.parameters = {name: tensor.to(parameters[name].device) for name, tensor in self.parameters.items()}

    def named(self) -> Tensors:
        return {**self.parameters, **self.buffers}

    def to_json(self, tensors: Tensors) -> dict[str, Any]:
        for part in _PARTS:
            tensors.update({f"swa/{part}/{name}": tensor for name, tensor in getattr(self, part).items()})
        return {"first": self.first, "epochs": self.epochs}

    @classmethod
    def from_json(cls, kept: dict[str, Any], tensors: Tensors) -> WeightAverages:
        averages = cls(kept["first"])
        averages.epochs = kept["epochs"]
        for part in _PARTS:
            begin = f"swa/{part}/"
            setattr(averages, part, {name.removeprefix(begin): tensor for name, tensor in tensors.items() if name.startswith(begin)})
        return averages
