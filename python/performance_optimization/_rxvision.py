"""A trainer whose steps are written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class RxVisionTrainer:
    """Steps in mixed precision with clipping, optimized by hand. A subclass gives compute_loss(batch), and may replace
    configure_training and training_step.

    model: its parameters are clipped. optimizer: what optimizers() returns.
    hparams: any mapping or object; max_grad_norm is 1.0 where it has none.
    scaler: a torch.amp.GradScaler or the like; without one it is made by configure_training, and is in force on CUDA alone.
    """

    automatic_optimization = False

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, hparams: Any = None, scaler: Any = None) -> None:
        given = dict(hparams) if isinstance(hparams, Mapping) else dict(vars(hparams)) if hparams is not None else {}
        self.hparams = SimpleNamespace(**{"max_grad_norm": 1.0, **given})
        self.model = model
        self.scaler = scaler
        self._optimizer = optimizer
        self.configure_training()

    def configure_training(self) -> None:
        """Called once, when the trainer is made."""
        import torch

        device = self.device_type
        self.scaler = self.scaler or torch.amp.GradScaler(device, enabled=device == "cuda")

    def compute_loss(self, batch: Any) -> torch.Tensor:
        raise NotImplementedError(f"{type(self).__name__}.compute_loss: wanted a method that returns the loss of a batch, found none")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Forward under autocast, backward of the scaled loss, gradients unscaled, then clipped to hparams.max_grad_norm, and the
        scaler's step and update. Returns the loss, detached."""
        import torch

        del batch_idx
        optimizer = self.optimizers()
        optimizer.zero_grad()
        with torch.autocast(self.device_type, enabled=self.device_type == "cuda"):
            loss = self.compute_loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters(), self.hparams.max_grad_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return loss.detach()

    def optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        return self.model.parameters()

    @property
    def device_type(self) -> str:
        return next(iter(self.parameters())).device.type

    def fit(self, loader: Iterable[Any], epochs: int = 1) -> list[float]:
        """training_step over the loader; returns each epoch's mean of the losses. Gradients are zeroed before each step, also where a
        training_step of one's own does not. ValueError: the loader gave no batch."""
        means = []
        self.model.train()
        for epoch in range(epochs):
            losses = []
            for batch_idx, batch in enumerate(loader):
                self.optimizers().zero_grad()
                losses.append(float(self.training_step(batch, batch_idx)))
            if not losses:
                raise ValueError(f"{type(self).__name__}.fit: wanted a batch in epoch {epoch}, found none")
            means.append(sum(losses) / len(losses))
        return means
