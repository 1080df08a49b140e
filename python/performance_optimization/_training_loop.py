"""Training steps and loops by the names that published examples use."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

from . import _config
from ._engine_trainer import engine_trainer, mixed_precision
from ._hardware import fastest_cudnn
from ._performance import PerformanceOptimizer
from ._performance_config import PerformanceConfig

if TYPE_CHECKING:
    import torch

_SHOWN_EVERY_S = 0.2  # As headrace train; losses are read only then.


def training_step_standard(model: Callable[..., Any], batch: Iterable[Any], optimizer: torch.optim.Optimizer,
                           criterion: Callable[..., torch.Tensor]) -> float:
    """One step in the model's own precision: gradients to None, forward, backward and the update. Returns the loss, which waits for the
    device.

    batch: inputs, targets and whatever else follows; the loss is `criterion(model(inputs), targets)`.

    TypeError: the optimizer is no torch.optim.Optimizer.
    """
    _config.check_optimizer(optimizer)
    inputs, targets, *_ = batch
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def optimized_training_loop(model: torch.nn.Module, train_loader: Any, optimizer: torch.optim.Optimizer,
                            criterion: Callable[..., torch.Tensor], device: torch.device | str, config: Any = None) -> dict[str, float]:
    """One epoch in training mode by headrace.Trainer, an update a batch. Returns {"train_loss": the mean over the epoch's samples}, which
    is kept on the device and read at the end.

    train_loader: whatever gives batches of inputs, targets and whatever else follows; tensors that are not on the model's device are
        copied there without waiting.
    device: the model's.
    config: any mapping or object; where it has mixed_precision, enable_amp or enable_mixed_precision and that is False, a step is in full
        precision on CUDA, too; else it is in float16 there, with a loss scale that begins at 65536 in each call. On a CPU steps are in
        full precision.

    With CUDA, cuDNN looks for its fastest algorithms and need not be deterministic meanwhile. Where stderr is a terminal a line with the
    last loss and the mean stands there until the end.

    TypeError: the optimizer is no torch.optim.Optimizer. ValueError: the model is elsewhere or has no parameters, two names of mixed
    precision differ, or the loader gave no batch. headrace.errors.NumericsError: a loss or gradient is not finite.
    headrace.errors.UnsupportedError: headrace's engine cannot be had.
    """
    _config.check_optimizer(optimizer)
    _check_device(model, device)
    told = {name: _config.setting(config, name) for name in _config.MIXED_PRECISION}
    precision, _ = mixed_precision(model, _config.agreed("mixed precision", told, True))
    on_cuda = _config.device_type(model) == "cuda"
    with fastest_cudnn("optimized_training_loop") if on_cuda else nullcontext(), _shown_losses() as shown:
        trainer = engine_trainer(model, optimizer, criterion, **precision)
        model.train()  # headrace.Trainer leaves each module's mode as it is.
        (result,) = trainer.fit(train_loader, epochs=1, on_step=shown)
    return {"train_loss": result["loss"]}


def optimize_training_loop(model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
                           criterion: Callable[..., torch.Tensor], num_epochs: int = 10,
                           config: PerformanceConfig | None = None) -> dict[str, Any]:
    """PerformanceOptimizer(config).optimize_training_loop() of the rest. None: nothing is asked for but the loop, an update a batch."""
    return PerformanceOptimizer("custom" if config is None else config).optimize_training_loop(
        model, dataloader, optimizer, criterion, num_epochs)


def optimize_training_pipeline(model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
                               criterion: Callable[..., torch.Tensor], config: PerformanceConfig | None = None) -> dict[str, Any]:
    """PerformanceOptimizer(config).optimize_training_pipeline() of the rest, for a loop over this dataloader."""
    return PerformanceOptimizer(config).optimize_training_pipeline(model, dataloader, optimizer, criterion, keep_dataloader=True)


def _check_device(model: torch.nn.Module, device: torch.device | str) -> None:
    import torch

    _config.device_type(model)
    wanted, found = torch.device(device), next(model.parameters()).device
    if wanted.type != found.type or wanted.index not in (None, found.index or 0):
        raise ValueError(f"device: wanted the model's, which is {found}, found {wanted}; model.to({str(wanted)!r}) moves the model there")


@contextmanager
def _shown_losses() -> Iterator[Callable[[torch.Tensor], None] | None]:
    """What is to be called with the loss of each step; None: nobody looks."""
    stream = sys.stderr
    try:
        is_looked_at = stream is not None and stream.isatty()
    except ValueError:  # It is closed.
        is_looked_at = False
    if not is_looked_at:
        yield None
        return
    steps, shown_s = 0, float("-inf")
    total: Any = 0.0  # On the device.

    def show(loss: torch.Tensor) -> None:
        nonlocal steps, shown_s, total
        steps, total = steps + 1, total + loss.double()
        if (now_s := time.monotonic()) - shown_s < _SHOWN_EVERY_S:
            return
        shown_s = now_s
        write(f"\rTraining  batch {steps}  Loss: {float(loss):.4f}  Avg Loss: {float(total) / steps:.4f}\x1b[K")

    def write(text: str) -> None:
        with suppress(OSError, ValueError):  # It is closed meanwhile, or takes nothing.
            stream.write(text)
            stream.flush()

    try:
        yield show
    finally:
        write("\r\x1b[K")
