"""A trainer whose steps are written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import _config

if TYPE_CHECKING:
    import torch


class RxVisionTrainer:
    """Steps in mixed precision with clipping, optimized by hand. A subclass gives compute_loss(batch), and may replace
    configure_training and training_step.

    model: its gradients are zeroed before each step. optimizer: what optimizers() returns; the parameters that it steps are clipped.
    hparams: any mapping or object; max_grad_norm, of which gradient_clip_val is another name, is 1.0 where it has none.
    scaler: a torch.amp.GradScaler or the like; without one it is made by configure_training, and is in force on CUDA alone.

    TypeError: the optimizer is no torch.optim.Optimizer. ValueError: the model has no parameters, or the two names differ.
    """

    automatic_optimization = False

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, hparams: Any = None, scaler: Any = None) -> None:
        _config.check_optimizer(optimizer)
        given = _named(hparams)
        limits = {name: given.get(name) for name in ("max_grad_norm", "gradient_clip_val")}
        self.hparams = SimpleNamespace(**{**given, "max_grad_norm": _config.agreed("hparams: clipping", limits, 1.0)})
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
        self._zero_grad()
        with torch.autocast(self.device_type, enabled=self.device_type == "cuda"):
            loss = self.compute_loss(batch)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(optimizer)
        stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(stepped, self.hparams.max_grad_norm)
        self.scaler.step(optimizer)
        self.scaler.update()
        return loss.detach()

    def optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        return self.model.parameters()

    @property
    def device_type(self) -> str:
        return _config.device_type(self.model)

    def fit(self, loader: Iterable[Any], epochs: int = 1) -> list[float]:
        """training_step over the loader; returns each epoch's mean of the losses. Gradients are zeroed before each step, also where a
        training_step of one's own does not. ValueError: the loader gave no batch."""
        means = []
        self.model.train()
        for epoch in range(epochs):
            losses = []
            for batch_idx, batch in enumerate(loader):
                self._zero_grad()
                losses.append(float(self.training_step(batch, batch_idx)))
            if not losses:
                raise ValueError(f"{type(self).__name__}.fit: wanted a batch in epoch {epoch}, found none")
            means.append(sum(losses) / len(losses))
        return means

    def _zero_grad(self) -> None:
        """Of the model's parameters that the optimizer does not step, too: theirs would add up over all steps."""
        self.model.zero_grad()
        self.optimizers().zero_grad()


def _named(hparams: Any) -> dict[str, Any]:
    """Its settings by name; of an object its public attributes that are no methods, those of its class too."""
    if hparams is None or isinstance(hparams, Mapping):
        return dict(hparams or {})
    own = getattr(hparams, "__dict__", {})
    names = [name for name in dir(hparams) if name in own or not callable(getattr(type(hparams), name, None))]
    return {name: getattr(hparams, name) for name in names if not name.startswith("_")}
