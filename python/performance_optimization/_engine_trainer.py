"""A headrace.Trainer over the objects that published examples have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _config

if TYPE_CHECKING:
    import torch
    from headrace import Trainer

_LOSS_SCALE = 65536.0  # What torch.amp.GradScaler begins with.


def engine_trainer(model: torch.nn.Module, optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor],
                   **settings: Any) -> Trainer:
    """Batches are inputs, targets and whatever else follows; the loss is criterion(model(inputs), targets). Whether torch's algorithms
    are deterministic stays as it is. settings: of headrace.Trainer.

    TypeError: the optimizer is no torch.optim.Optimizer, or the criterion no function. headrace.errors.UnsupportedError: headrace's
    engine cannot be had, as beside another torch.
    """
    import headrace
    import torch

    _config.check_optimizer(optimizer)
    _config.check_criterion(criterion)
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        return headrace.Trainer(model, optimizer, forward_by(criterion), deterministic=is_deterministic, **settings)
    finally:
        torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)


def forward_by(criterion: Callable[..., torch.Tensor]) -> Callable[[torch.nn.Module, Any], torch.Tensor]:
    """The loss of a batch, as headrace.Trainer and headrace.tune() call for it."""
    def forward(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        inputs, targets, *_ = batch
        return criterion(model(inputs), targets)

    return forward


def mixed_precision(model: torch.nn.Module, requested: bool) -> tuple[dict[str, Any], str]:
    """Settings of headrace.Trainer, none without it, and why not: as setup_mixed_precision_training() and training_step_with_amp(), float16
    with a loss scale for a model on CUDA, and full precision elsewhere. ValueError: the model has no parameters."""
    device = _config.device_type(model)
    if not requested:
        return {}, ""
    if device != "cuda":
        return {}, f"wanted a model on CUDA, found it on {device}"
    return {"precision": "fp16", "loss_scale": _LOSS_SCALE}, ""
