"""The whole step of a loop that hands its batches over: in micro-batches where that is asked for, by the native engine where
that is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch import nn

from . import _core, _engine_door
from ._batch_parts import parts_of

if TYPE_CHECKING:
    from ._engine import Trainer


class WholeStep:
    """zero_grad, forward, backward and update on the user's own objects. `loss(batch)` gives the loss as a tensor."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[Any], torch.Tensor]) -> None:
        self._model, self._optimizer, self._loss = model, optimizer, loss
        self.micro_batches = 1
        self._trainer: Trainer | None = None
        self.tell(None)

    def set(self, *, micro_batches: int, native: bool) -> None:
        self.micro_batches = micro_batches
        self._trainer = self.new_trainer() if native else None

    def tell(self, told: Callable[[str], None] | None) -> None:
        """Has `told` called with "forward", "backward" or "optimizer" where that begins, and "other" at its end, but for steps of the
        engine; None: nobody. A trace shows these parts anyway, of the engine's steps, too."""
        parts = map(_core.StepPart, names := ("forward", "backward", "optimizer"))
        if told is not None:
            parts = (_ToldPart(part, told, name) for part, name in zip(parts, names))
        self._forward, self._backward, self._update = parts

    def renew(self) -> None:
        """After parameters or optimizer state were put back: the engine holds those that it was made with."""
        if self._trainer is not None:
            self._trainer = self.new_trainer()

    def new_trainer(self) -> Trainer:
        """headrace.Error or TypeError where the engine cannot be had, or cannot do this optimizer's work. Its batches are functions
        that return a loss."""
        engine = _engine_door.engine("tune")
        is_deterministic = torch.are_deterministic_algorithms_enabled()
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            return engine.Trainer(self._model, self._optimizer, lambda _model, loss: loss(),
                                  gradient_accumulation_steps=self.micro_batches, deterministic=is_deterministic)
        finally:
            torch.use_deterministic_algorithms(is_deterministic, warn_only=warns_only)

    def parts(self, batch: Any) -> list[tuple[Any, float]] | None:
        """Micro-batches, each with its share of the batch's mean loss; None: the batch stays whole."""
        return None if self.micro_batches == 1 else parts_of(batch, self.micro_batches)

    def __call__(self, batch: Any) -> torch.Tensor:
        """The loss of the batch, detached."""
        if self._trainer is not None:
            return self._native_step(self._trainer, batch)
        loss = self._forward_backward(batch)
        self.update()
        return loss

    def gradients(self, batch: Any) -> torch.Tensor:
        """Leaves in the parameters what an update takes. Returns the loss. The engine makes the whole step for that."""
        if self._trainer is None:
            return self._forward_backward(batch)
        found: dict[nn.Parameter, torch.Tensor] = {}

        def keep(parameter: nn.Parameter) -> None:
            found[parameter] = parameter.grad.clone()  # Summed over the micro-batches so far.

        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        hooks = [parameter.register_post_accumulate_grad_hook(keep) for parameter in trained]
        try:
            loss = self._native_step(self._trainer, batch)
        finally:
            for hook in hooks:
                hook.remove()
        count = len(self.parts(batch) or [batch])
        for parameter, gradient in found.items():
            parameter.grad = gradient.div_(count)
        return loss

    def update(self) -> None:
        """An update by the gradients that are in the parameters."""
        if self._trainer is None:
            with self._update:
                self._optimizer.step()
            return
        given = [(parameter, parameter.grad) for parameter in self._model.parameters() if parameter.grad is not None]

        def product() -> torch.Tensor:  # Its gradients are those given, bit for bit.
            return torch.stack([(parameter * gradient).sum() for parameter, gradient in given]).sum()

        self._trainer.step(product, last_of_window=True)

    def _forward_backward(self, batch: Any) -> torch.Tensor:
        with self._update:
            self._optimizer.zero_grad()
        total = None
        for part, share in self.parts(batch) or [(batch, 1.0)]:
            with self._forward:
                loss = self._loss_of_share(part, share)
            with self._backward:
                loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        return total

    def _native_step(self, trainer: Trainer, batch: Any) -> torch.Tensor:
        parts = self.parts(batch)
        if parts is None:
            return trainer.step(partial(self._loss, batch))
        total = torch.zeros(())
        try:
            for place, (part, share) in enumerate(parts):  # The engine takes the mean over a window.
                loss = partial(self._loss_of_share, part, share * len(parts))
                total += trainer.step(loss, last_of_window=place + 1 == len(parts))
        except BaseException:
            self.renew()  # Without the window that was open.
            raise
        return total / len(parts)

    def _loss_of_share(self, batch: Any, share: float) -> torch.Tensor:
        loss = self._loss(batch)
        return loss if share == 1 else loss * share


class _ToldPart:
    """A part of a step whose beginning and end somebody is told."""

    def __init__(self, part: _core.StepPart, told: Callable[[str], None], name: str) -> None:
        self._part, self._told, self._name = part, told, name

    def __enter__(self) -> None:
        self._told(self._name)
        self._part.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._part.__exit__(*raised)
        self._told("other")
