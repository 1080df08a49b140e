"""Gradients of several small batches in one update."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import _config

if TYPE_CHECKING:
    import torch

_TARGET = 64  # Samples in one update.
_logger = logging.getLogger(__package__)


def _batch_and_steps(config: Any) -> tuple[int, int]:
    batch_size = _config.number(config, "batch_size", int, 1)
    return batch_size, max(_TARGET // batch_size, 1)


def setup_gradient_accumulation(config: Any) -> int:
    """How many batches of `config.batch_size` one update takes: as many as fit into 64 samples, and at least one.

    The samples that this makes are logged by the logger "performance_optimization": as a warning where they are fewer than 64, as
    2 x 24 = 48 are, else as information. `effective_batch_size` returns them. The config is any mapping or object with that name;
    ValueError: its batch_size is missing, or not a whole number of at least 1.
    """
    batch_size, steps = _batch_and_steps(config)
    samples = batch_size * steps
    level, wanted = (logging.WARNING, f"; wanted {_TARGET}") if samples < _TARGET else (logging.INFO, "")
    _logger.log(level, "gradient accumulation: %d x %d samples, an effective batch of %d%s", steps, batch_size, samples, wanted)
    return steps


def effective_batch_size(config: Any) -> int:
    """Samples in one update with the steps that `setup_gradient_accumulation` gives for this config: 48 for batches of 24.
    ValueError as there."""
    batch_size, steps = _batch_and_steps(config)
    return batch_size * steps


def training_step_with_accumulation(model: Callable[..., Any], batch: Iterable[Any], optimizer: torch.optim.Optimizer,
                                    accumulation_steps: int, step: int, criterion: Callable[..., torch.Tensor], *,
                                    last_of_window: bool = False) -> float:
    """Forward and backward of one batch, and at the end of a window of `accumulation_steps` batches the update. The loss is divided
    by `accumulation_steps` before backward, and returned so divided, which waits for the device.

    batch: inputs, targets and whatever else follows; the loss is `criterion(model(inputs), targets)`.
    step: the batch's number in its epoch, from 0. Where step + 1 is a multiple of `accumulation_steps`, `optimizer.step()` and
        `optimizer.zero_grad()` are called.
    last_of_window: this batch ends its window whatever its number is, as the last one of an epoch must. The gradients of a window
        that it cuts short are scaled to the mean of the batches that it has.

    ValueError: `accumulation_steps` is below 1, or `step` below 0.
    """
    if accumulation_steps < 1 or step < 0:
        raise ValueError("training_step_with_accumulation: wanted accumulation_steps of at least 1 and a step of at least 0, found "
                         f"{accumulation_steps} and {step}")
    inputs, targets, *_ = batch
    loss = criterion(model(inputs), targets) / accumulation_steps
    loss.backward()
    batches = step % accumulation_steps + 1
    if last_of_window or batches == accumulation_steps:
        if batches < accumulation_steps:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(accumulation_steps / batches)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()
