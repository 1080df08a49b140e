"""headrace.autotune as a callback of Lightning's Trainer. Importing it imports lightning, or pytorch_lightning where the process
has that one already or it alone is installed."""

from __future__ import annotations

import dataclasses
import importlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ._autotune import AutoTune as Handle
from ._autotune_request import requested
from ._live_knobs import LiveKnobs
from ._live_loader import LiveLoader
from ._loader_epochs import LoaderEpochs
from ._outermost_calls import OutermostCalls
from ._settings import PRECISION
from .errors import InvalidArgumentError

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
    its loss, other callbacks, the backward and evaluations are under no autocast.

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
        self._early: _EarlyLoader | None = None  # Until the handle is made.
        self._calls: OutermostCalls | None = None  # In the first batch.

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        self._let_go()
        if self.handle is not None:
            self.handle.undo()
            self.handle = None
        if self._request.auto_tune and _refusal(trainer, pl_module) is None:
            self._early = _EarlyLoader(trainer)

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        if self._early is not None:
            self._early.stop_looking()
        refusal = _refusal(trainer, pl_module)
        if refusal is None and self._request.auto_tune:
            self._calls = OutermostCalls(pl_module)
        else:
            self._let_go()
            self.handle = Handle([pl_module], list(trainer.optimizers), None, self._request, self._on_progress, refusal=refusal)

    def on_train_batch_end(self, trainer: Any, pl_module: nn.Module, *batch: Any) -> None:
        del batch
        if self._calls is None:
            return
        called, self._calls = self._calls.end(), None
        request, optimizers, loader = self._request, list(trainer.optimizers), _only_loader(trainer.train_dataloader)
        request = request.with_rest(_updates_left(trainer))
        if trainer.precision == _MIXED:
            request = dataclasses.replace(request, fixed=[*request.fixed, PRECISION])
        live, epochs = (None, None) if self._early is None else self._early.followed(loader)
        knobs = LiveKnobs(list(dict.fromkeys([pl_module, *called])), optimizers, loader, live=live)
        self.handle = Handle([pl_module], optimizers, loader, request, self._on_progress, knobs=knobs, epochs=epochs,
                             forward_of=(lambda _: called) if called else None)
        if live is not None and self.handle.watching:
            self._early = None  # The handle gives the loader back.
        else:
            self._let_go()

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        del trainer, pl_module
        self._let_go()
        if self.handle is not None:
            self.handle.stop()

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        del trainer, pl_module
        self._let_go()  # Of a run that had nothing to train, and no on_train_end.

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        del exception
        self.on_train_end(trainer, pl_module)

    def _let_go(self) -> None:
        """Of what hangs on the run's objects until the handle is made."""
        if self._calls is not None:
            self._calls.end()
            self._calls = None
        if self._early is not None:
            self._early.release()
            self._early = None


class _EarlyLoader:
    """Follows the loader that a Trainer trains from before there is a handle. The Trainer makes its first iterator before
    on_train_start; before that it hands each loader to Strategy.process_dataloader, where this finds the loader."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._strategy = trainer, trainer.strategy
        self._own = vars(self._strategy).get("process_dataloader")  # None: it is the class's.
        self._process = self._strategy.process_dataloader
        self._strategy.process_dataloader = self._see
        self._loader: Any = None
        self._live: LiveLoader | None = None
        self._epochs: LoaderEpochs | None = None

    def stop_looking(self) -> None:
        """The strategy is as it was."""
        if self._own is not None:
            self._strategy.process_dataloader = self._own
        else:
            vars(self._strategy).pop("process_dataloader", None)

    def followed(self, loader: Any) -> tuple[LiveLoader | None, LoaderEpochs | None]:
        """What follows this loader; None where nothing does."""
        return (self._live, self._epochs) if loader is self._loader else (None, None)

    def release(self) -> None:
        """Strategy and loader are as they were."""
        self.stop_looking()
        if self._live is not None and self._epochs is not None:
            self._epochs.release()
            self._live.undo()

    def _see(self, given: Any) -> Any:
        loader = self._process(given)
        if self._trainer.training and self._loader is None:  # Not for a validation.
            self._loader = loader
            self._follow(loader)
        return loader

    def _follow(self, loader: Any) -> None:
        live, epochs = LiveLoader(loader), LoaderEpochs(loader, time.perf_counter)
        live.follow()
        try:
            epochs.watch()
        except InvalidArgumentError:  # Another autotune is at work on it. The handle will say so.
            live.undo()
        else:
            self._live, self._epochs = live, epochs


def _only_loader(given: Any) -> Any:
    """Of what the Trainer trains from, as it was given; None where several are read side by side."""
    while isinstance(given, (list, tuple, Mapping)):
        loaders = list(given.values() if isinstance(given, Mapping) else given)
        if len(loaders) != 1:
            return None
        (given,) = loaders
    return given


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
