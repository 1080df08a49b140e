"""An optimizer from a configuration, with a smaller learning rate for the backbone."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from . import _config
from ._accumulation import effective_batch_size

if TYPE_CHECKING:
    import torch

_BACKBONE = "backbone|stem"
_logger = logging.getLogger(__package__)


def create_optimized_optimizer(model: torch.nn.Module, config: Any) -> torch.optim.Optimizer:
    """AdamW or SGD over the parameters that require gradients, in up to two groups: those whose names contain "backbone" or "stem",
    at a tenth of the learning rate, and the rest. A group without parameters is left out. "system" contains "stem", too:
    parameter_groups() tells who is where.

    config.model_config has these; each of the two is any mapping or object:

    learning_rate: of the rest, at least 0.
    weight_decay: of all, at least 0; 0.0005 where it is missing.
    optimizer: "adamw" (betas 0.9 and 0.999, eps 1e-8), "sgd" (momentum 0.937, Nesterov's) or "auto", which is AdamW and the default;
        in upper or lower case.
    backbone_pattern: the regular expression that a name of the backbone contains; "backbone|stem" where it is missing.
    base_batch_size: samples of an update that learning_rate is meant for: it is multiplied by effective_batch_size(config) over this, and
        the product logged. Missing: it stays as it is.

    ValueError: a setting is missing or not one of these, or no parameter requires gradients.
    """
    import torch

    lr = _scaled(_config.number(config, "model_config.learning_rate", float, 0), config)
    weight_decay = _config.number(config, "model_config.weight_decay", float, 0, default=0.0005)
    optimizer = _config.setting(config, "model_config.optimizer")
    is_of_backbone = _pattern(_config.setting(config, "model_config.backbone_pattern"))
    backbone: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (backbone if is_of_backbone.search(name) else rest).append(parameter)
    groups = [{"params": parameters, "lr": rate} for parameters, rate in ((backbone, lr * 0.1), (rest, lr)) if parameters]
    if not groups:
        raise ValueError("create_optimized_optimizer: wanted a model with parameters that require gradients, found none")
    kind = "auto" if optimizer is None else str(optimizer).lower()
    if kind in ("auto", "adamw"):
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=weight_decay)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=0.937, nesterov=True, weight_decay=weight_decay)
    raise ValueError(f"config.model_config.optimizer: wanted auto, adamw or sgd, found {optimizer!r}")


def parameter_groups(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """For JSON, of each of the optimizer's groups learning_rate, weight_decay (None where its class has none) and parameters, their names
    in the model. A parameter that is not the model's is left out."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [{"learning_rate": float(group["lr"]), "weight_decay": group.get("weight_decay"),
             "parameters": [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]}
            for group in optimizer.param_groups]


def _scaled(lr: float, config: Any) -> float:
    if _config.setting(config, "model_config.base_batch_size") is None:
        return lr
    base, samples = _config.number(config, "model_config.base_batch_size", int, 1), effective_batch_size(config)
    _logger.info("learning rate: %g x %d / %d samples = %g", lr, samples, base, lr * samples / base)
    return lr * samples / base


def _pattern(given: Any) -> re.Pattern[str]:
    try:
        pattern = re.compile(_BACKBONE if given is None else given)
        pattern.search("")  # Bytes, and patterns of these, are for no names.
        return pattern
    except (re.error, TypeError) as error:
        raise ValueError(f"config.model_config.backbone_pattern: wanted a regular expression, found {given!r}: {error}") from None
