"""What Python knows of a watched loop for the verdict over resources: stages of its loaders, FLOPs of its models, bytes of its updates,
garbage collection."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import _core
from ._garbage import watch_garbage
from ._loading_stages import LoadingStages
from ._step_work import ModelFlops, update_work


class WatchFigures:
    """Of the loop that `seen` watches, in the thread that makes this."""

    def __init__(self, seen: _core.LoopWatch) -> None:
        self._seen = seen
        self._stages, self._flops = LoadingStages(), ModelFlops()
        self._optimizers: list[torch.optim.Optimizer] = []

    def hook(self) -> list[Callable[[], Any]]:
        """Returns what takes the hooks off again, the last one first."""
        return [self._stages.hook(), watch_garbage(self._seen.add_garbage)]

    def begins(self, loader: Any) -> contextlib.AbstractContextManager[None]:
        """An epoch of it begins within the block."""
        return self._stages.begins(loader)

    def call_begins(self, model: nn.Module) -> None:
        self._flops.call_begins(model)

    def call_ends(self) -> None:
        self._flops.call_ends()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(optimizer)

    def tell(self) -> None:
        """Once the loop has ended. Lets go of its objects."""
        loading = self._stages.found()
        self._stages.forget()
        if loading is not None:
            self._seen.set_loading(**loading._asdict())
        steps = self._seen.steps
        flops = self._flops.per_step(steps) if steps > 0 else None
        update_bytes, tensors = update_work(self._optimizers)
        self._optimizers.clear()
        self._seen.set_step_work(flops=flops, why_no_flops=self._flops.why_not, update_bytes=update_bytes, update_tensors=tensors)
