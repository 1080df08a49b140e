"""An optimizer from a configuration, with a smaller learning rate for the backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _config

if TYPE_CHECKING:
    import torch


def create_optimized_optimizer(model: torch.nn.Module, config: Any) -> torch.optim.Optimizer:
    """AdamW or SGD over the parameters that require gradients, in up to two groups: those whose names contain "backbone" or "stem",
    at a tenth of the learning rate, and the rest. A group without parameters is left out.

    config.model_config has these; each of the two is any mapping or object:

    learning_rate: of the rest, at least 0.
    weight_decay: of all, at least 0; 0.0005 where it is missing.
    optimizer: "adamw" (betas 0.9 and 0.999, eps 1e-8), "sgd" (momentum 0.937, Nesterov's) or "auto", which is AdamW and the default;
        in upper or lower case.

    ValueError: a setting is missing or not one of these, or no parameter requires gradients.
    """
    import torch

    lr = _config.number(config, "model_config.learning_rate", float, 0)
    weight_decay = _config.number(config, "model_config.weight_decay", float, 0, default=0.0005)
    optimizer = _config.setting(config, "model_config.optimizer")
    backbone: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (backbone if "backbone" in name or "stem" in name else rest).append(parameter)
    groups = [{"params": parameters, "lr": rate} for parameters, rate in ((backbone, lr * 0.1), (rest, lr)) if parameters]
    if not groups:
        raise ValueError("create_optimized_optimizer: wanted a model with parameters that require gradients, found none")
    kind = "auto" if optimizer is None else str(optimizer).lower()
    if kind in ("auto", "adamw"):
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.937, nesterov=True, weight_decay=weight_decay)
    raise ValueError(f"config.model_config.optimizer: wanted auto, adamw or sgd, found {optimizer!r}")
