"""headrace.autotune as a callback of Lightning's Trainer. Importing it imports lightning, or pytorch_lightning where the process
has that one already or it alone is installed."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ._autotune import AutoTune as Handle
from ._autotune_request import requested
from ._live_knobs import LiveKnobs
from ._outermost_calls import OutermostCalls
from ._settings import PRECISION

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_MIXED = "bf16-mixed"  # Lightning's own autocast around training_step.


def _callback_class() -> Any:
    for name in sorted(_PACKAGES, key=lambda name: sys.modules.get(name) is None):
        try:
            return importlib.import_module(name).Callback
        except ModuleNotFoundError as error:
            if error.name not in (name, name.split(".")[0]):
                raise  # It is installed and lacks something itself.
    raise ImportError("headrace.lightning: wanted the package lightning or pytorch_lightning, found neither", name="lightning")


class AutoTune(_callback_class()):
    """Tunes a run of Lightning's Trainer while it is under way, as headrace.autotune does a loop:

        trainer = lightning.Trainer(callbacks=[headrace.lightning.AutoTune()])

    Takes headrace.autotune's keyword arguments. The run's length is what the Trainer says, unless `steps` or `epochs` does.
    `handle` is what headrace.autotune returns, from the end of the first batch on: that batch shows which modules training_step
    calls. These are what is replayed, and what runs under autocast; training_step itself logs and counts and is not replayed, and
    its loss, other callbacks, the backward pass and evaluations are under no autocast.

    When fit() ends or raises, kept changes stay in force; handle.undo() gives the module and the process back. Another fit() with
    the same callback undoes them and begins anew. Checkpoints hold nothing of headrace's.

    It tunes automatic optimization, gradient accumulation included, of a plain module on one device, in precision 32-true or
    bf16-mixed. Otherwise one line says why not, handle.problem holds it, and the run goes on as it was.
    """

    def __init__(self, *, on_progress: Callable[[str, str], Any] | None = None, **options: Any) -> None:
        """InvalidArgumentError for what makes no sense; `allow`, `gain_min`, the names in `only` and the ledger of `replay` are
        looked at in fit()."""
        super().__init__()
        self._request, self._on_progress = requested(**options), on_progress
        self.handle: Handle | None = None
        self._calls: OutermostCalls | None = None  # In the first batch.

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        if self.handle is not None:
            self.handle.undo()
            self.handle = None
        refusal = _refusal(trainer, pl_module)
        if refusal is None and self._request.auto_tune:
            self._calls = OutermostCalls(pl_module)
        else:
            self.handle = Handle([pl_module], list(trainer.optimizers), None, self._request, self._on_progress, refusal=refusal)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *batch: Any) -> None:
        del batch
        if self._calls is None:
            return
        called, self._calls = self._calls.end(), None
        request, optimizers, loader = self._request, list(trainer.optimizers), trainer.train_dataloader
        if isinstance(loader, (list, tuple, Mapping)):
            loader = None  # Several that are read side by side.
        if request.steps is None and request.epochs is None:
            request = dataclasses.replace(request, steps=_updates_left(trainer))
        if trainer.precision == _MIXED:
            request = dataclasses.replace(request, fixed=[*request.fixed, PRECISION])
        knobs = LiveKnobs(list(dict.fromkeys([pl_module, *called])), optimizers, loader)
        self.handle = Handle([pl_module], optimizers, loader, request, self._on_progress, knobs=knobs,
                             forward_of=(lambda _: called) if called else None)

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        del trainer, pl_module
        if self._calls is not None:
            self._calls.end()
            self._calls = None
        if self.handle is not None:
            self.handle.stop()

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        del exception
        self.on_train_end(trainer, pl_module)


def _refusal(trainer: Any, module: Any) -> str | None:
    """Why such a run is not tuned; None: it may be."""
    strategy = trainer.strategy
    if not module.automatic_optimization:
        return ("the module steps its optimizers itself (automatic_optimization is False); wanted Lightning to, or a call of "
                "headrace.autotune in on_train_start with the models and optimizers that take turns")
    if not any(kind.__name__ == "SingleDeviceStrategy" for kind in type(strategy).__mro__):
        return f"the strategy is {type(strategy).__name__}; wanted SingleDeviceStrategy"
    if strategy.model is not module:
        return f"the strategy trains a {type(strategy.model).__name__} around the module; wanted the module as it is"
    if trainer.precision not in ("32-true", _MIXED):
        return f"the precision is {trainer.precision}; wanted 32-true or {_MIXED}"
    return None


def _updates_left(trainer: Any) -> int | None:
    left = trainer.estimated_stepping_batches - trainer.global_step  # Infinite or negative where nobody knows it.
    return int(left) if math.isfinite(left) and left > 0 else None
