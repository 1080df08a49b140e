"""The objects of a training loop as hr.autotune is given them."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

from .errors import InvalidArgumentError

Kind = TypeVar("Kind")


def raw_objects(model: Any, optimizer: Any, loader: Any) -> tuple[list[nn.Module], list[torch.optim.Optimizer], Any]:
    """Modules and optimizers as lists, each once, and the loader, without what frameworks wrap around them: optimizers have
    no hooks in Accelerate's and Lightning's wrappers. InvalidArgumentError for objects of another kind."""
    models = _listed("model", model, nn.Module, "torch.nn.Module")
    given = list(optimizer) if isinstance(optimizer, (list, tuple)) else optimizer
    raw = [_raw_optimizer(one) for one in given] if isinstance(given, list) else _raw_optimizer(given)
    optimizers = _listed("optimizer", raw, torch.optim.Optimizer, "torch.optim.Optimizer")
    known = {id(parameter) for module in models for parameter in module.parameters()}
    for one in optimizers:
        updated = [parameter for group in one.param_groups for parameter in group["params"]]
        if not any(id(parameter) in known for parameter in updated):
            raise InvalidArgumentError(
                f"autotune: optimizer: wanted one that updates the model, found a {type(one).__name__} none of whose "
                f"{len(updated)} parameters is the model's")
    if loader is not None and not hasattr(loader, "__iter__") and not callable(loader):
        raise InvalidArgumentError("autotune: loader: wanted a DataLoader, a headrace.Loader, another iterable of batches or "
                                   f"None, found {type(loader).__name__}")
    return models, optimizers, loader


def _raw_optimizer(optimizer: Any) -> Any:
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer) and inner is not optimizer:
        optimizer = inner
    return optimizer


def _listed(name: str, given: Any, kind: type[Kind], wanted: str) -> list[Kind]:
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    for i, item in enumerate(items):
        if not isinstance(item, kind):
            place = f" at {i} of the list" if isinstance(given, (list, tuple)) else ""
            raise InvalidArgumentError(
                f"autotune: {name}: wanted a {wanted} or a list of them, found {type(item).__name__}{place}")
    if not items:
        raise InvalidArgumentError(f"autotune: {name}: wanted a {wanted} or a list of them, found an empty list")
    return list({id(item): item for item in items}.values())
