"""Whether optimizers update alike under two settings: one update on copies of parameters, gradients and state."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch

from ._gradient_distance import squares


def takes_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it has more than one implementation of its update. None of those needs a closure."""
    return any("fused" in group or "foreach" in group for group in optimizer.param_groups)


def update_bytes(optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """What updated() allocates: a copy of the parameters, their gradients and the state."""
    return sum(tensor.numel() * tensor.element_size() for optimizer in filter(takes_fused, optimizers)
               for tensor in _tensors_of(optimizer, gradients=True))


def updated(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.Tensor]:
    """The parameters and the tensors of the state after one update of each optimizer that takes_fused(), by the gradients that
    are there, made on copies: the optimizers, the parameters and their gradients stay as they are.

    A copy has the strides and the groups' values, fused and foreach among them, that its original has at the moment, so that
    state left in another layout than its parameters shows under a fused optimizer, which walks through both in the order of
    their memory. Hooks of optimizers are not called. One copy of everything and one update."""
    result: list[torch.Tensor] = []
    for optimizer in filter(takes_fused, optimizers):
        # Parameters, groups and state, tied as they are in the original. Not copy.deepcopy(optimizer): what a copy of a tuned one
        # gets is as its user wrote it (PlainSaves).
        copied = object.__new__(type(optimizer))
        copied.__setstate__(copy.deepcopy(type(optimizer).__getstate__(optimizer)))
        for group, copied_group in zip(optimizer.param_groups, copied.param_groups):
            for parameter, its_copy in zip(group["params"], copied_group["params"]):
                if parameter.grad is not None:
                    its_copy.grad = parameter.grad.detach().clone()
        step = type(copied).step
        if getattr(step, "hooked", False):  # Torch's own wrapper, which calls the hooks of all optimizers: those watch the loop.
            step = step.__wrapped__
        step(copied)
        result += _tensors_of(copied, gradients=False)
    return result


def update_difference(reference: Sequence[torch.Tensor], candidate: Sequence[torch.Tensor]) -> float:
    """Largest relative L2 of a tensor between two results of updated(); infinite where they hold other tensors."""
    if [tensor.shape for tensor in reference] != [tensor.shape for tensor in candidate]:
        return math.inf
    return max((squares(a, b).relative_l2 for a, b in zip(reference, candidate)), default=0.0)


def _tensors_of(optimizer: torch.optim.Optimizer, *, gradients: bool) -> list[torch.Tensor]:
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.append(parameter.detach())
            if gradients and parameter.grad is not None:
                found.append(parameter.grad)
            state = optimizer.state.get(parameter, {})
            found += [state[key] for key in sorted(state) if isinstance(state[key], torch.Tensor)]
    return found
