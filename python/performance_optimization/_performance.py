"""One object that carries out of a configuration what this package has, and tells of the rest why not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _config
from ._batch_size import BatchOptimizer
from ._hardware import apply_both, told_of
from ._loader_request import LoaderRequest
from ._model_optimizer import ModelOptimizer
from ._performance_config import COMPONENTS, LOADER_SETTINGS, OptimizationLevel, PerformanceConfig, performance_config
from ._performance_monitor import PerformanceMonitor
from ._profiler import PerformanceProfiler
from ._request_trials import Verdict, fixed_keys, verdict_of, verdicts
from ._training_optimizer import TrainingOptimizer

if TYPE_CHECKING:
    import torch
    from headrace import AutoTune, HardwareSettings

    from ._training_optimizer import TrainingLoop

NOT_BUILT = "unavailable: not built yet"
_TRIAL_S = 5.0  # Little beside a training run. What it does not decide is inconclusive.
_NOT_CALLED = "wanted optimize_training_loop() or optimize_training_pipeline(), which was not called"
_FIXED_SIZE = ("the size of a loader's batches is fixed, and a fixed one wins; batch_optimizer.optimize_batch_size() of a "
               "PerformanceOptimizer finds another")
_logger = logging.getLogger(__package__)


class NotBuilt:
    """Stands for a part that this package does not have yet: any attribute of it is an AttributeError that says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(f"{self._name}.{name}: {NOT_BUILT}")

    def __str__(self) -> str:
        return NOT_BUILT

    def __repr__(self) -> str:
        return f"<{self._name}: {NOT_BUILT}>"


class NotBuiltText(str):
    """What a summary has, for JSON, of a part that this package does not have yet: a look-up of a figure in it is a KeyError that says so."""

    _name: str

    def __new__(cls, name: str) -> NotBuiltText:
        made = super().__new__(cls, NOT_BUILT)
        made._name = name
        return made

    def __getitem__(self, key: Any) -> str:
        if isinstance(key, str):
            raise KeyError(f"{self._name}[{key!r}]: {NOT_BUILT}")
        return super().__getitem__(key)


class PerformanceOptimizer:
    """What this package has of a configuration, over headrace. It steps no parameters: it is no torch.optim.Optimizer. As a context manager
    it calls cleanup() at the end of the block. Use it from the thread that trains.

    config: a PerformanceConfig, a level or its name, or any mapping or object with settings by name; None: a PerformanceConfig's defaults.
        What it asks for is applied where it can be, whatever it gains here; what was measured of it stands beside it, as `verdict`.
    compile_modes: as ModelOptimizer's.
    trial_s: seconds in which optimize_training_loop() and optimize_training_pipeline() measure what a configuration asks for, once a model,
        by headrace.tune(); 0: nothing is measured.

    model_optimizer, training_optimizer, batch_optimizer: a ModelOptimizer, a TrainingOptimizer and a BatchOptimizer.
    cache, memory_optimizer, memory_manager: not built yet. Their attributes are AttributeErrors that say so.
    tuning: the headrace.AutoTune that optimize_training_pipeline() has begun; None: there is none.
    dataloader: what to train over behind optimize_training_pipeline(); None before.

    TypeError and ValueError as PerformanceConfig has them; ValueError: trial_s is no number of at least 0.
    """

    def __init__(self, config: Any = None, *, compile_modes: list[str | Callable[..., Any]] | None = None,
                 trial_s: float = _TRIAL_S) -> None:
        if isinstance(trial_s, bool) or not isinstance(trial_s, Real) or not 0 <= trial_s < float("inf"):
            raise ValueError(f"trial_s: wanted a number of at least 0, found {trial_s!r}")
        self.config = performance_config(config)
        self.config.validate()
        self.model_optimizer = ModelOptimizer(self.config, compile_modes=compile_modes)
        self.training_optimizer = TrainingOptimizer(self.config)
        self.batch_optimizer = BatchOptimizer(batch_size_optimization=self.config.batch_size_optimization)
        self.cache = NotBuilt("cache")
        self.memory_optimizer = NotBuilt("memory_optimizer")
        self.memory_manager = NotBuilt("memory_manager")
        self.tuning: AutoTune | None = None
        self._trial_s = float(trial_s)
        self._monitor: PerformanceMonitor | None = None
        self._profiler: PerformanceProfiler | None = None
        self._hardware: list[HardwareSettings] = []  # What apply_hardware_settings() has set, in its order.
        self._hardware_told: dict[str, dict[str, str]] = {}
        self._loader: LoaderRequest | None = None
        self._untuned = _untuned("wanted optimize_training_pipeline(), which was not called")  # While there is no `tuning`.
        self._model: torch.nn.Module | None = None  # That optimize_model() set up last.
        self._verdicts: dict[str, Verdict] = {}
        self._training_loops: list[dict[str, Any]] = []

    @property
    def performance_monitor(self) -> PerformanceMonitor:
        """A PerformanceMonitor, made when it is first asked for."""
        if self._monitor is None:
            self._monitor = PerformanceMonitor()
        return self._monitor

    @property
    def profiler(self) -> PerformanceProfiler:
        """A PerformanceProfiler, made when it is first asked for, whose scopes are the summary's profiling_summary: it records as enable_profiling
        and enable_memory_profiling of the configuration say then."""
        if self._profiler is None:
            self._profiler = PerformanceProfiler(self.config.enable_profiling, self.config.enable_memory_profiling)
        return self._profiler

    @property
    def dataloader(self) -> Any:
        return None if self._loader is None else self._loader.loader

    # What is set up.

    def optimize_model(self, model: torch.nn.Module, example: Any = None) -> torch.nn.Module:
        """As ModelOptimizer.optimize_model()."""
        self._model = model
        return self.model_optimizer.optimize_model(model, example)

    def apply_hardware_settings(self, **settings: Any) -> dict[str, dict[str, str]]:
        """Threads, cores, priority and a GPU's settings, as headrace.hardware_settings() takes them; without any, those of
        optimize_cpu_settings() and optimize_cuda_settings(). Returns by name requested, applied (what was read back from torch or the
        operating system) and reason. cleanup() undoes them. Errors as headrace.hardware_settings() has them."""
        import headrace

        done = headrace.hardware_settings(**settings) if settings else apply_both("apply_hardware_settings")
        self._hardware.append(done)
        told = told_of(done)
        self._hardware_told.update(told)
        return told

    # Training.

    def begin_loop(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor],
                   dataloader: Any) -> TrainingLoop:
        """As TrainingOptimizer.begin(), over a model that optimize_model() has set up; where it has not, it is now."""
        _config.check_optimizer(optimizer)
        _config.check_criterion(criterion)
        self._set_up(model)
        return self.training_optimizer.begin(model, optimizer, criterion, dataloader)

    def optimize_training_loop(self, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
                               criterion: Callable[..., torch.Tensor], num_epochs: int = 10) -> dict[str, Any]:
        """Measures what is asked for, sets the model up and trains it, over the dataloader with the settings that somebody has said.
        Returns what TrainingOptimizer.train() does, where features are those of get_optimization_status(). Errors as there.

        TypeError: the dataloader gives no batches."""
        _config.check_range("num_epochs", num_epochs, int)
        self._prepare(model, dataloader, optimizer, criterion, num_epochs)
        results = self.training_optimizer.train(model, self.dataloader, optimizer, criterion, num_epochs)
        del results["features"]
        self._training_loops.append(results)
        return {**results, "features": self.get_optimization_status()["features"]}

    def optimize_training_pipeline(self, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
                                   criterion: Callable[..., torch.Tensor], *, epochs: int | None = None, keep_dataloader: bool = False
                                   ) -> dict[str, dict[str, dict[str, Any]]]:
        """Prepares a loop of one's own, which goes over `dataloader` of this object, and trains nothing: measures what is asked for, sets
        the model up, in place, and lets headrace.autotune() tune what nobody has said, while the loop runs; cleanup() ends that. Optimizer
        and dataloader stay as they are, but for what is tuned later.

        Returns, for JSON, by component (data, batch, model, training, memory, profiling) and setting what get_optimization_status() has as
        its features. epochs: how many the loop has, where it is known: what is tried depends on it. keep_dataloader: the loop goes over
        the dataloader that was given; settings that a DataLoader of torch's has not already are not applied then.

        TypeError: the optimizer is no torch.optim.Optimizer, as a PerformanceOptimizer, the criterion no function, or the dataloader gives
        no batches. ValueError: epochs is no whole number above 0.
        """
        if epochs is not None:
            _config.check_range("epochs", epochs, int)
        self._prepare(model, dataloader, optimizer, criterion, epochs, keep_dataloader)
        self._begin_tuning(model, optimizer, epochs)
        features = self.get_optimization_status()["features"]
        return {component: {name: features[name] for name in names} for component, names in COMPONENTS.items()}

    # What is told.

    def get_optimization_status(self) -> dict[str, Any]:
        """For JSON.

        config: optimization_level, mixed_precision and compile_enabled as they are in force, False for what is not.
        features: by setting {"requested", "status", "reason"}, where status is "applied", "not applied", or "" of what is not requested,
            and reason why it is not applied, or what one has to know of it. Of what a level, a preset, a table or the user has asked for,
            and an optimize_training_...() has looked at, `verdict`, too: {"verdict", "gain", "pairs", "reason"}, measured by
            headrace.tune() on the loop as it was given: "kept", "refused", "inconclusive", "failed" or "not measured"; gain: median and
            95 % interval, 0.21 is 21 % faster, or None.
        compilation: the attempts, as ModelOptimizer.report() has them.
        hardware: usable_cores, cuda_devices, and settings as apply_hardware_settings() returned them.
        live_tuning: {"status", "reason", "kept", "trials"}; trials: by name of a change its verdict, gain, pairs and reason.
        """
        import torch
        from headrace import _core

        of_models = self.model_optimizer.report()
        features = {name: entry for name, entry in of_models.items() if name != "compilation"}
        features.update(self.training_optimizer.report())
        for field in fields(self.config)[1:]:
            if field.name not in features and field.name != "memory_format":
                features[field.name] = self._feature(field.name)
        for name, verdict in self._verdicts.items():
            features[name] = {**features[name], "verdict": dict(verdict)}
        return {"config": {"optimization_level": self.config.optimization_level.value,
                           "mixed_precision": self.training_optimizer.is_mixed_precision,
                           "compile_enabled": self.model_optimizer.compile_enabled},
                "features": features, "compilation": of_models["compilation"],
                "hardware": {"usable_cores": _core.usable_cores(), "cuda_devices": torch.cuda.device_count(),
                             "settings": dict(self._hardware_told)},
                "live_tuning": dict(self._untuned) if self.tuning is None else _told_of_tuning(self.tuning)}

    def get_performance_summary(self) -> dict[str, Any]:
        """For JSON: get_optimization_status(); training_loops, what optimize_training_loop() returned of each without features;
        profiling_summary, what `profiler` has; performance_monitor, its own summary, None before anybody asked for it; batch_optimization,
        what `batch_optimizer` has; cache_stats and memory_trends, which are not built yet: texts that say so, of which a figure is a
        KeyError that does."""
        profiling = {"total_operations": 0, "total_duration": 0.0} if self._profiler is None else self._profiler.get_profile_summary()
        monitored = None if self._monitor is None else self._monitor.get_performance_summary()
        return {**self.get_optimization_status(), "training_loops": list(self._training_loops), "profiling_summary": profiling,
                "performance_monitor": monitored,
                **self.batch_optimizer.get_performance_summary(), "cache_stats": NotBuiltText("cache_stats"),
                "memory_trends": NotBuiltText("memory_trends")}

    def clear_metrics(self) -> None:
        """Forgets what was measured so far of loops, scopes, searches and the monitor's steps. What is set up, its verdicts and the
        configuration stay."""
        self._training_loops.clear()
        if self._profiler is not None:
            self._profiler.clear()
        self.batch_optimizer.clear()
        if self._monitor is not None:
            self._monitor.clear_metrics()

    def cleanup(self) -> None:
        """Undoes what is of the whole process or of a loader: live tuning, a headrace.Loader's workers, hardware settings, the last first;
        and closes the monitor, which writes out its log. The model stays as it was set up. A second call does nothing. An exception comes
        once all else is undone."""
        with ExitStack() as undone:
            if self._monitor is not None:
                undone.callback(self._monitor.close)
                self._monitor = None
            hardware, self._hardware, self._hardware_told = self._hardware, [], {}
            for settings in hardware:
                undone.callback(settings.undo)
            undone.callback(self._release)

    def __enter__(self) -> PerformanceOptimizer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cleanup()

    def _prepare(self, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor],
                 epochs: int | None, keep_dataloader: bool = False) -> None:
        """Refuses what is no part of a loop before anything changes."""
        _config.check_optimizer(optimizer)
        _config.check_criterion(criterion)
        _config.check_loader(dataloader)
        self._release()
        is_set_up = self._model is model
        if not is_set_up or not self._verdicts:
            refusal = "the model was set up before it could be measured as it was given" if is_set_up else ""
            self._verdicts = verdicts(self.config, model, dataloader, optimizer, criterion, budget_s=self._trial_s,
                                      steps=_steps(dataloader, epochs), refusal=refusal)
        self._loader = LoaderRequest(self.config, dataloader, keeps=keep_dataloader)
        self._set_up(model)

    def _set_up(self, model: torch.nn.Module) -> None:
        if self._model is not model:
            self.optimize_model(model)

    def _begin_tuning(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, epochs: int | None) -> None:
        import headrace

        if not self.config.enable_profiling:
            self._untuned = _untuned("enable_profiling is False")
            return
        only: list[str] = []
        if self.config.optimization_level is OptimizationLevel.CUSTOM:  # What is written is set already; then the user's own strategies alone.
            only = list(headrace.strategies())
            if not only:
                self._untuned = _untuned("the level is custom, and no strategy is registered (headrace.register_strategy)")
                return
        loader, fixed = self.dataloader, fixed_keys(self.config)
        if isinstance(loader, headrace.OptimizedLoader):  # What it goes over is set as somebody asked for.
            loader, fixed = loader.loader, [*fixed, "data"]
        try:
            self.tuning = headrace.autotune(model, optimizer, loader, only=only, fixed=fixed, epochs=epochs, title="training pipeline",
                                            on_progress=_log_progress)
        except headrace.Error as error:
            self._untuned = _untuned(str(error))

    def _release(self) -> None:
        """Ends live tuning, and gives a loader back the settings that it had."""
        tuning, self.tuning = self.tuning, None
        loader, self._loader = self._loader, None
        if loader is not None:
            loader.undo()
        if tuning is not None:
            tuning.undo()
            self._untuned = {**_told_of_tuning(tuning), "status": "not applied", "reason": "it was ended, and what it kept undone"}

    def _feature(self, name: str) -> dict[str, Any]:
        """Of a setting that neither the model nor the loop knows."""
        requested = getattr(self.config, name)
        if name in LOADER_SETTINGS and self._loader is not None:
            return self._loader.report(name, requested)
        if name == "batch_size_optimization":
            found = self.batch_optimizer.get_performance_summary()["batch_optimization"]
            if found["status"] == "applied":
                return {"requested": requested, "status": "applied", "reason": found["reason"]}
            reason = _FIXED_SIZE
        else:
            reason = _NOT_CALLED if name in LOADER_SETTINGS else NOT_BUILT
        return {"requested": requested, "status": "not applied" if requested else "", "reason": reason if requested else ""}


def create_performance_optimizer(config: PerformanceConfig | OptimizationLevel | str | None = None) -> PerformanceOptimizer:
    """A PerformanceOptimizer of a configuration, or of a level or its name; None: of the level advanced."""
    return PerformanceOptimizer(OptimizationLevel.ADVANCED if config is None else config)


def _steps(dataloader: Any, epochs: int | None) -> int | None:
    """Batches that a loop of so many epochs goes over; None: unknown."""
    if epochs is None:
        return None
    try:
        return epochs * len(dataloader) or None
    except TypeError:
        return None


def _untuned(reason: str) -> dict[str, Any]:
    return {"status": "not applied", "reason": reason, "kept": [], "trials": {}}


def _told_of_tuning(tuning: AutoTune) -> dict[str, Any]:
    problem = tuning.problem
    trials = {trial.name: verdict_of(trial) for trial in tuning.trials}
    return {"status": "applied" if problem is None else "not applied", "reason": problem or "", "kept": tuning.kept, "trials": trials}


def _log_progress(kind: str, text: str) -> None:
    _logger.info("live tuning: %s: %s", kind, text)
