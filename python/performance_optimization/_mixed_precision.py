"""Steps in mixed precision with a gradient scaler."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _config

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger(__package__)


def setup_mixed_precision_training(config: Any = None) -> tuple[bool, torch.amp.GradScaler | None]:
    """(True, a new scaler) where there is CUDA, else (False, None); either outcome is logged, by the logger "performance_optimization".

    config: any mapping or object; where it has mixed_precision, enable_amp or enable_mixed_precision and that is False, the outcome is
        (False, None) with CUDA, too. Two of these names that differ are refused.
    """
    import torch

    told = {name: _config.setting(config, name) for name in _config.MIXED_PRECISION}
    if not _config.agreed("mixed precision", told, True):
        _logger.info("mixed precision: off, as the configuration says")
        return False, None
    if not torch.cuda.is_available():
        _logger.info("mixed precision: off: wanted CUDA, found none")
        return False, None
    scaler = torch.amp.GradScaler("cuda")
    _logger.info("mixed precision: on, with a loss scale that begins at %g", scaler.get_scale())
    return True, scaler


def training_step_with_amp(model: torch.nn.Module, batch: Iterable[Any], optimizer: torch.optim.Optimizer, scaler: Any,
                           criterion: Callable[..., torch.Tensor]) -> float:
    """One step: gradients to zero, forward and loss under autocast, backward of the scaled loss, and the scaler's step and update.
    Returns the loss, not scaled.

    batch: inputs, targets and whatever else follows; the loss is `criterion(model(inputs), targets)`.
    scaler: a torch.amp.GradScaler, or whatever has its scale, step and update. On a CPU autocast is to bfloat16. None, as
        setup_mixed_precision_training gives it without CUDA, or one that is not enabled: a step in full precision.

    TypeError: the optimizer is no torch.optim.Optimizer. ValueError: the model has no parameters.
    """
    import torch

    _config.check_optimizer(optimizer)
    inputs, targets, *_ = batch
    device = _config.device_type(model)
    optimizer.zero_grad()
    with torch.autocast(device, enabled=_config.is_on(scaler)):
        loss = criterion(model(inputs), targets)
    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()
