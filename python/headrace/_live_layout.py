"""The memory layout of a model's parameters while their run goes on."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ._forward import CHANNELS_LAST
from ._state import in_layout_of


class Layout:
    """Puts parameters of four and five dimensions into channels-last memory and back into the strides they were written in, with
    their gradients and with the optimizers' state of their shape: fused optimizers walk through all of them in the order of
    memory.

    Parameter, gradient and state objects stay, and their values; their memory is another one. For a moment that takes as much
    memory again as the tensors that change. Call it between updates. `on_failure` is told why the layout could not be put back
    after a save.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer],
                 on_failure: Callable[[Exception], None]) -> None:
        self._models, self._optimizers, self._on_failure = models, optimizers, on_failure
        self._written: dict[nn.Parameter, tuple[int, ...]] = {}  # Strides of what was changed.
        self._is_channels_last = False  # What stands now.
        self._waiting: Any = None  # The hook that puts the layout back after a save.

    def set(self, channels_last: bool) -> None:
        """All of them or, where memory runs out, none."""
        self._stop_waiting()
        if channels_last != self._is_channels_last:
            self._lay_out(channels_last)

    def match(self) -> None:
        """After tensors were replaced, as load_state_dict() of an optimizer does: gives them the layout that stands."""
        self._lay_out(self._is_channels_last)

    def write_back(self) -> None:
        """For a save: the strides as written, until a module is called for training again."""
        if self._is_channels_last:
            self._lay_out(False)
            self._waiting = register_module_forward_pre_hook(self._go_on)

    def forget(self) -> None:
        """Lets go of the parameters. The layout is the written one."""
        self.set(False)
        self._written.clear()

    def _go_on(self, module: nn.Module, inputs: Any) -> None:
        del inputs
        if not (module.training or torch.is_grad_enabled()):
            return
        try:
            self.set(True)
        except (RuntimeError, MemoryError) as error:  # Within the user's own forward: it goes on as written, and this is told.
            self._on_failure(error)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.remove()
            self._waiting = None

    def _lay_out(self, channels_last: bool) -> None:
        changes = []
        for parameter in self._parameters(channels_last):
            memory = self._memory(parameter, channels_last)
            if memory is not None:
                changes.append((parameter, memory))
            like = parameter.detach() if memory is None else memory
            for tensor in self._of(parameter):
                other = in_layout_of(like, tensor)
                if other is not tensor:
                    changes.append((tensor, other))
        for tensor, memory in changes:
            tensor.data = memory
        self._is_channels_last = channels_last

    def _parameters(self, channels_last: bool) -> list[nn.Parameter]:
        if not channels_last:
            return list(self._written)
        for model in self._models:
            for parameter in model.parameters():
                if parameter.dim() in CHANNELS_LAST and parameter.is_contiguous():
                    self._written.setdefault(parameter, parameter.stride())
        return list(self._written)

    def _memory(self, parameter: nn.Parameter, channels_last: bool) -> torch.Tensor | None:
        """None: it has that layout."""
        values = parameter.detach()
        if channels_last:
            wanted = CHANNELS_LAST[values.dim()]
            return None if values.is_contiguous(memory_format=wanted) else values.clone(memory_format=wanted)
        strides = self._written[parameter]
        if values.stride() == strides:
            return None
        return torch.empty_strided(values.shape, strides, dtype=values.dtype, device=values.device).copy_(values)

    def _of(self, parameter: nn.Parameter) -> Iterator[torch.Tensor]:
        """Its gradient and the optimizers' state that walks along with it."""
        states = [optimizer.state.get(parameter, {}) for optimizer in self._optimizers]
        for value in (parameter.grad, *(value for state in states for value in state.values())):
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.layout is torch.strided:
                yield value
