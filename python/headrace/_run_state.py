"""What a checkpoint of a Trainer holds that its engine does not know: the state of an optimizer that steps itself, of a scheduler of
torch, and the averages of SWA."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from ._plain_state import Tensors, decode, encode
from ._torch_scheduler import TorchScheduler
from ._weight_averages import WeightAverages
from .errors import InvalidArgumentError


def save(optimizer: torch.optim.Optimizer | None, scheduler: TorchScheduler | None,
         averages: WeightAverages | None) -> tuple[dict[str, Any], Tensors]:
    """JSON values, and the tensors, whose memory is shared. `optimizer`: None where the engine has its state."""
    tensors: Tensors = {}
    state: dict[str, Any] = {}
    if optimizer is not None:
        state["optimizer"] = encode(optimizer.state_dict(), "optimizer", tensors)
    if scheduler is not None:
        state["lr_scheduler"] = scheduler.to_json(tensors)
    if averages is not None:
        state["swa"] = averages.to_json(tensors)
    return state, tensors


def load(state: dict[str, Any] | None, tensors: Tensors, optimizer: torch.optim.Optimizer | None,
         scheduler: TorchScheduler | None) -> WeightAverages | None:
    """Puts back what save() gave; returns the averages of SWA, if it has some. Nothing changes where it is refused."""
    state = state or {}
    for what, here in (("optimizer", optimizer), ("lr_scheduler", scheduler)):
        if (what in state) != (here is not None):
            raise InvalidArgumentError(f"python: load: a checkpoint {'with' if what in state else 'without'} the state of a torch {what}, "
                                       f"wanted one {'without' if here is None else 'with'} it")
    averages = WeightAverages.from_json(state["swa"], tensors) if "swa" in state else None
    load_scheduler: Callable[[], None] | None = None
    if scheduler is not None:
        load_scheduler = scheduler.check(state["lr_scheduler"], tensors)
    if optimizer is not None:
        kept = decode(state["optimizer"], tensors)
        try:
            optimizer.load_state_dict(kept)  # Looks at its groups before it changes anything.
        except ValueError as error:
            raise InvalidArgumentError(f"python: load: optimizer: {error}") from error
    if load_scheduler is not None:
        load_scheduler()
    return averages


def keep(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """What it returns puts the optimizer's state back to where it is now, as often as it is called."""
    state = copy.deepcopy(optimizer.state_dict())
    return lambda: optimizer.load_state_dict(copy.deepcopy(state))
