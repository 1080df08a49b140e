"""Training loops as a configuration says, by headrace.Trainer."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from . import _config
from ._accumulation import setup_gradient_accumulation
from ._engine_trainer import engine_trainer, mixed_precision
from ._performance_config import PerformanceConfig

if TYPE_CHECKING:
    import torch
    from headrace import Trace

_NOT_RUN = "wanted a training loop, as optimize_training_loop(), which was not run"
_PROFILES = ("enable_profiling", "enable_memory_profiling")
_logger = logging.getLogger(__package__)


class TrainingOptimizer:
    """Mixed precision, accumulation of gradients, clean-ups between epochs and profiles of epochs, each as the configuration says. Every
    loop sets gradients to None at an update and lets a batch go before it asks for the next one.

    config: a PerformanceConfig; None: its defaults. Of it these are looked at:

    enable_amp: float16 with a loss scale that begins at 65536, where the model is on CUDA.
    gradient_accumulation, gradient_accumulation_steps: batches in an update; "auto" is what setup_gradient_accumulation() gives for the
        batch size of the loader. The last window of an epoch is the mean of the batches that it has.
    enable_memory_optimization, memory_threshold: after each epoch Python's garbage is collected; and where tensors hold more than this
        share of a CUDA device's memory, what its allocator keeps unused is given back.
    enable_profiling: an epoch's result has profile, the seconds of its steps by part; its steps says of how many, as the recording keeps
        the newest of a long epoch.
    enable_memory_profiling: an epoch's result has memory_profile, memory over time as headrace.Trace.memory() has it.

    With both profiles each epoch is logged at the level debug, by the logger "performance_optimization".
    """

    SETTINGS = ("enable_amp", "gradient_accumulation", "gradient_accumulation_steps", "enable_memory_optimization", "memory_threshold",
                *_PROFILES)

    def __init__(self, config: PerformanceConfig | None = None) -> None:
        self.config = PerformanceConfig() if config is None else config
        # Of the last loop, why a setting is not applied; empty: it is.
        self._reasons = dict.fromkeys(self.SETTINGS, _NOT_RUN)
        self._loop: TrainingLoop | None = None  # The last one.

    def begin(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor],
              dataloader: Any) -> TrainingLoop:
        """A loop over these, of which nothing was trained yet. dataloader: whatever gives batches; its batch_size is what "auto" goes by.

        TypeError: the optimizer is no torch.optim.Optimizer, or the criterion no function. ValueError: the model has no parameters, a
        setting is out of range, or "auto" finds no batch size. headrace.errors.UnsupportedError: headrace's engine cannot be had.
        """
        config = self.config
        _config.check_optimizer(optimizer)
        precision, why_full_precision = mixed_precision(model, config.enable_amp)
        steps = _accumulated_batches(config, dataloader)
        trainer = engine_trainer(model, optimizer, criterion, gradient_accumulation_steps=steps, **precision)
        self._reasons = dict.fromkeys(self.SETTINGS, "")
        self._reasons["enable_amp"] = why_full_precision
        if not config.gradient_accumulation:
            self._reasons["gradient_accumulation_steps"] = "gradient_accumulation is False"
        if not config.enable_memory_optimization:
            self._reasons["memory_threshold"] = "enable_memory_optimization is False"
        elif (device := _config.device_type(model)) != "cuda":
            self._reasons["memory_threshold"] = f"wanted a model on CUDA, whose allocator keeps memory, found it on {device}"
        self._reasons.update(dict.fromkeys(_PROFILES, "wanted an epoch, which was not trained yet"))
        self._loop = TrainingLoop(self, model, trainer)
        return self._loop

    def train(self, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
              criterion: Callable[..., torch.Tensor], num_epochs: int = 10) -> dict[str, Any]:
        """The loop, in training mode. Returns, for JSON:

        epochs: a dict an epoch: epoch (from 1), loss (the mean over its samples), samples, seconds, samples_per_second, optimizer_steps
            (in all), skipped_updates, resident_memory (bytes, None: unavailable), and profile where one was made.
        seconds, samples_per_second, skipped_updates: of all epochs. memory_cleanups: how many there were.
        features: report() after it.

        Errors as begin() has them; ValueError: num_epochs is no whole number above 0, or the loader gave no batch.
        """
        _config.check_range("num_epochs", num_epochs, int)
        loop = self.begin(model, optimizer, criterion, dataloader)
        for _ in range(num_epochs):
            loop.train_epoch(dataloader)
        return {**loop.results(), "features": self.report()}

    def live(self) -> dict[str, Any]:
        """headrace.Trainer.live() of the last loop, for a second thread while it runs, too; {} before the first."""
        return {} if self._loop is None else self._loop.trainer.live()

    @property
    def is_mixed_precision(self) -> bool:
        """Of the last loop."""
        return bool(self.config.enable_amp) and not self._reasons["enable_amp"]

    def report(self) -> dict[str, dict[str, Any]]:
        """For JSON: by setting {"requested", "status", "reason"} of the last loop, status "applied", "not applied", or "" of what is not
        requested."""
        told = {}
        for name, reason in self._reasons.items():
            requested = getattr(self.config, name)
            status = "" if not requested else "not applied" if reason else "applied"
            told[name] = {"requested": requested, "status": status, "reason": reason if requested else ""}
        return told

    def note_profile(self, name: str, reason: str) -> None:
        """Why the last epoch has none by the setting `name`; empty: it has one."""
        self._reasons[name] = reason


class TrainingLoop:
    """Epochs of one headrace.Trainer, `trainer`, whose live() a second thread may read meanwhile. Made by TrainingOptimizer.begin()."""

    def __init__(self, optimizer: TrainingOptimizer, model: torch.nn.Module, trainer: Any) -> None:
        self.trainer = trainer
        self.epochs: list[dict[str, Any]] = []
        self.memory_cleanups = 0
        self._training = optimizer
        self._model = model

    def train_epoch(self, dataloader: Any) -> dict[str, Any]:
        """One more epoch; its result is as TrainingOptimizer.train() has it. headrace.errors.InvalidArgumentError, a ValueError: the loader
        gave no batch."""
        config = self._training.config
        self._model.train()
        is_profiled = config.enable_profiling or config.enable_memory_profiling
        with self._profiled() if is_profiled else nullcontext({}) as profile:
            (result,) = self.trainer.fit(dataloader, epochs=self.trainer.progress["epoch"] + 1)
        result = {**result, "epoch": len(self.epochs) + 1, **profile}
        self.epochs.append(result)
        if config.enable_profiling and config.enable_memory_profiling:
            _logger.debug("epoch %d: %s", result["epoch"], {name: value for name, value in result.items() if name != "memory_profile"})
        if config.enable_memory_optimization:
            self._clean_up(config.memory_threshold)
        return result

    def results(self) -> dict[str, Any]:
        """Of all epochs so far, as TrainingOptimizer.train() has them, without features."""
        seconds = sum(epoch["seconds"] for epoch in self.epochs)
        samples = sum(epoch["samples"] for epoch in self.epochs)
        return {"epochs": list(self.epochs), "seconds": seconds, "samples_per_second": samples / seconds if seconds > 0 else None,
                "skipped_updates": sum(epoch["skipped_updates"] for epoch in self.epochs), "memory_cleanups": self.memory_cleanups}

    @contextmanager
    def _profiled(self) -> Iterator[dict[str, Any]]:
        """What it yields has the profile afterwards. A process has one recording at a time."""
        import headrace

        told: dict[str, Any] = {}
        trace = headrace.Trace()
        refusal = ""
        try:
            trace.__enter__()
        except headrace.errors.InvalidArgumentError as error:
            refusal = str(error)
        if refusal:
            for name in _PROFILES:
                self._training.note_profile(name, refusal)
            yield told
            return
        try:
            yield told
        finally:
            trace.__exit__(None, None, None)
        if self._training.config.enable_profiling:
            self._take(told, "enable_profiling", "profile", lambda: _seconds_by_part(trace))
        if self._training.config.enable_memory_profiling:
            self._take(told, "enable_memory_profiling", "memory_profile", trace.memory)

    def _take(self, told: dict[str, Any], setting: str, name: str, profile: Callable[[], dict[str, Any] | None]) -> None:
        import headrace

        found: dict[str, Any] | None = None
        reason = "nothing of it was recorded"
        try:
            found = profile()
        except headrace.Error as error:  # Of an epoch whose spans were too many to be kept.
            reason = str(error)
        if found is not None:
            told[name], reason = found, ""
        self._training.note_profile(setting, reason)

    def _clean_up(self, threshold: float) -> None:
        import torch

        gc.collect()
        self.memory_cleanups += 1
        if threshold and _config.device_type(self._model) == "cuda":
            device = next(self._model.parameters()).device
            if torch.cuda.memory_allocated(device) > threshold * torch.cuda.get_device_properties(device).total_memory:
                torch.cuda.empty_cache()


def _seconds_by_part(trace: Trace) -> dict[str, Any]:
    split = trace.time_split()
    return {name: value for name, value in split.items() if name != "step_s"}  # One number a step.


def _accumulated_batches(config: Any, dataloader: Any) -> int:
    if not config.gradient_accumulation:
        return 1
    if config.gradient_accumulation_steps != "auto":
        return _config.number(config, "gradient_accumulation_steps", int, 1)
    batch_size = getattr(dataloader, "batch_size", None)
    if batch_size is None:
        raise ValueError('config.gradient_accumulation_steps: "auto" wanted a dataloader with a batch_size, found none in '
                         f"{type(dataloader).__name__}")
    return setup_gradient_accumulation({"batch_size": batch_size})
