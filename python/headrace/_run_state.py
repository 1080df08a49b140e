"""What a checkpoint of a Trainer holds that its engine does not know: the state of an optimizer that steps itself, of a scheduler of
torch, and the averages of SWA."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from ._plain_state import Tensors, decode, encode
from ._torch_scheduler import TorchScheduler
from ._weight_averages import WeightAverages
from .errors import InvalidArgumentError

# Of a group, what schedulers of torch set.
_SCHEDULED = ("lr", "initial_lr", "min_lr", "max_lr", "momentum", "betas", "base_momentum", "max_momentum")


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
    loads: list[tuple[str, Callable[[], None]]] = []
    put_back: Callable[[], None] = lambda: None
    if scheduler is not None:  # First, as it is put back at little cost.
        loads.append(("lr_scheduler", scheduler.check(state["lr_scheduler"], tensors)))
        put_back = scheduler.keep()
    if optimizer is not None:  # It looks at its groups before it changes anything.
        loads.append(("optimizer", functools.partial(optimizer.load_state_dict, decode(state["optimizer"], tensors))))
    for part, load_part in loads:
        try:
            load_part()
        except Exception as error:
            put_back()
            raise InvalidArgumentError(f"python: load: {part}: {error}") from error
    return averages


def keep(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """What it returns puts the optimizer's state back to where it is now, as often as it is called. What schedulers set, as the
    rates, stays as it is then: most schedulers go on from the rate that they find."""
    state = copy.deepcopy(optimizer.state_dict())

    def put_back() -> None:
        now = [{key: group[key] for key in _SCHEDULED if key in group} for group in optimizer.param_groups]
        optimizer.load_state_dict(copy.deepcopy(state))
        for group, values in zip(optimizer.param_groups, now):
            group.update(values)

    return put_back
