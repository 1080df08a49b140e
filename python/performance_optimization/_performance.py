"""A configuration of performance optimization, and what carries out of it what this package has."""

from __future__ import annotations

import difflib
import enum
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from . import _config
from ._model_optimizer import ModelOptimizer
from ._training_optimizer import TrainingOptimizer

if TYPE_CHECKING:
    import torch

    from ._training_optimizer import TrainingLoop


class OptimizationLevel(enum.Enum):
    """Defaults of several settings; "basic" and OptimizationLevel.BASIC mean the same."""

    BASIC = "basic"
    ADVANCED = "advanced"
    ULTRA = "ultra"
    CUSTOM = "custom"


class MemoryFormat(enum.Enum):
    """As headrace.set_memory_format() has them."""

    CONTIGUOUS = "contiguous"
    CHANNELS_LAST = "channels_last"
    CHANNELS_LAST_3D = "channels_last_3d"
    PRESERVE = "preserve"


_OF_ADVANCED = dict.fromkeys(("enable_amp", "enable_compile", "enable_gradient_checkpointing", "enable_memory_format_optimization"), True)
_BY_LEVEL: dict[OptimizationLevel, dict[str, Any]] = {
    OptimizationLevel.BASIC: {},
    OptimizationLevel.ADVANCED: _OF_ADVANCED,
    OptimizationLevel.ULTRA: {**_OF_ADVANCED, "enable_flash_attention": True, "num_workers": 8, "gradient_accumulation_steps": 8},
    OptimizationLevel.CUSTOM: {},
}
# Other names of settings.
_ALIASES = {"mixed_precision": "enable_amp", "enable_mixed_precision": "enable_amp",
            "enable_batch_optimization": "batch_size_optimization"}


@dataclass(init=False)
class PerformanceConfig:
    """A plain value. A level gives defaults, and what is said by keyword goes before it:

    | level | enable_amp, enable_compile, enable_gradient_checkpointing, enable_memory_format_optimization | besides |
    |---|---|---|
    | basic, custom | False | |
    | advanced, the default | True | |
    | ultra | True | enable_flash_attention, num_workers 8, gradient_accumulation_steps 8 |

    mixed_precision and enable_mixed_precision are other names of enable_amp, and enable_batch_optimization of batch_size_optimization, to
    be set and read. gradient_accumulation_steps may be "auto": by the batch size, as setup_gradient_accumulation() says. What of all this
    is applied, and why the rest is not, PerformanceOptimizer.get_optimization_status() tells.

    TypeError: a keyword is no setting. ValueError: the level or the memory format is none, or two names of one setting differ.
    """

    optimization_level: OptimizationLevel = OptimizationLevel.ADVANCED
    enable_amp: bool = False
    enable_compile: bool = False
    enable_gradient_checkpointing: bool = False
    enable_flash_attention: bool = False
    enable_memory_format_optimization: bool = False
    memory_format: MemoryFormat = MemoryFormat.CHANNELS_LAST
    num_workers: int = 4
    pin_memory: bool = True
    persistent_workers: bool = True
    prefetch_factor: int = 2
    enable_async_data_loading: bool = True
    gradient_accumulation: bool = True
    gradient_accumulation_steps: int | str = 4
    enable_profiling: bool = True
    enable_memory_profiling: bool = False
    enable_caching: bool = True
    enable_parallelization: bool = True
    enable_memory_optimization: bool = True
    enable_compression: bool = True
    cache_size: int = 1000
    max_workers: int = 0
    memory_threshold: float = 0.8
    batch_size_optimization: bool = True

    def __init__(self, optimization_level: OptimizationLevel | str = OptimizationLevel.ADVANCED, **settings: Any) -> None:
        self.optimization_level = optimization_level
        defaults = {field.name: field.default for field in fields(self)[1:]}
        defaults.update(_BY_LEVEL[self.optimization_level], max_workers=os.cpu_count() or 1)
        for name in settings.keys() - defaults.keys() - _ALIASES.keys():
            near = difflib.get_close_matches(name, [*defaults, *_ALIASES], n=1)
            raise TypeError(f"PerformanceConfig: no setting is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        for name, default in defaults.items():
            names = (name, *(other for other, of in _ALIASES.items() if of == name))
            setattr(self, name, _config.agreed(name, {other: settings.get(other) for other in names}, default))

    def __setattr__(self, name: str, value: Any) -> None:
        kind = {"optimization_level": OptimizationLevel, "memory_format": MemoryFormat}.get(name)
        if kind is not None and not isinstance(value, kind):
            value = _member(kind, name, value)
        super().__setattr__(_ALIASES.get(name, name), value)

    def __getattr__(self, name: str) -> Any:  # Of what is not found otherwise.
        if name not in _ALIASES:
            raise AttributeError(f"PerformanceConfig has no setting {name!r}")
        return getattr(self, _ALIASES[name])


def _member(kind: type[enum.Enum], name: str, value: Any) -> enum.Enum:
    try:
        return kind(value.lower() if isinstance(value, str) else value)
    except ValueError:
        choices = " | ".join(str(member.value) for member in kind)
        raise ValueError(f"{name}: wanted {choices}, found {value!r}") from None


def performance_config(config: Any) -> PerformanceConfig:
    """The same if it is one, and the defaults of None; of any mapping or object the settings of one that it has by name, and the level
    custom where it has none. Errors as PerformanceConfig has them."""
    if config is None or isinstance(config, PerformanceConfig):
        return config or PerformanceConfig()
    names = [*(field.name for field in fields(PerformanceConfig)), *_ALIASES]
    given = {name: value for name in names if (value := _config.setting(config, name)) is not None}
    return PerformanceConfig(given.pop("optimization_level", OptimizationLevel.CUSTOM), **given)


def bare_config() -> PerformanceConfig:
    """Of a loop in which nothing is switched on."""
    switches = ("gradient_accumulation", "enable_profiling", "enable_memory_optimization", "enable_caching", "enable_parallelization",
                "enable_compression", "batch_size_optimization", "enable_async_data_loading")
    return PerformanceConfig("custom", **dict.fromkeys(switches, False))


# What PerformanceOptimizer does not do, with who does it.
_ELSEWHERE = {
    "batch_size_optimization": "the size of a loader's batches is fixed, and a fixed one wins; "
                               "BatchOptimizer.optimize_batch_size() finds another",
}
_OF_LOADERS = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "enable_async_data_loading")
# What optimize_training_pipeline() tells together.
_COMPONENTS = {
    "data": (*_OF_LOADERS, "enable_caching", "cache_size", "enable_compression", "enable_parallelization", "max_workers"),
    "batch": ("batch_size_optimization",),
    "model": ("enable_memory_format_optimization", "enable_gradient_checkpointing", "enable_compile", "enable_flash_attention"),
    "training": ("enable_amp", "gradient_accumulation", "gradient_accumulation_steps"),
    "memory": ("enable_memory_optimization", "memory_threshold"),
    "profiling": ("enable_profiling", "enable_memory_profiling"),
}


class PerformanceOptimizer:
    """What this package has of a configuration: `model_optimizer` and `training_optimizer`, over headrace. It steps no parameters: it is no
    torch.optim.Optimizer.

    compile_modes: as ModelOptimizer's.
    """

    def __init__(self, config: PerformanceConfig | None = None, *,
                 compile_modes: list[str | Callable[..., Any]] | None = None) -> None:
        self.config = PerformanceConfig() if config is None else config
        self.model_optimizer = ModelOptimizer(self.config, compile_modes=compile_modes)
        self.training_optimizer = TrainingOptimizer(self.config)
        self._model: torch.nn.Module | None = None  # That optimize_model() set up last.
        self._training_loops: list[dict[str, Any]] = []

    def optimize_model(self, model: torch.nn.Module, example: Any = None) -> torch.nn.Module:
        """As ModelOptimizer.optimize_model()."""
        self._model = model
        return self.model_optimizer.optimize_model(model, example)

    def begin_loop(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor],
                   dataloader: Any) -> TrainingLoop:
        """As TrainingOptimizer.begin(), over a model that optimize_model() has set up; where it has not, it is now."""
        self._set_up(model, optimizer, criterion)
        return self.training_optimizer.begin(model, optimizer, criterion, dataloader)

    def optimize_training_loop(self, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
                               criterion: Callable[..., torch.Tensor], num_epochs: int = 10) -> dict[str, Any]:
        """Sets the model up and trains it. Returns what TrainingOptimizer.train() does, where features are those of
        get_optimization_status(). Errors as there."""
        _config.check_range("num_epochs", num_epochs, int)
        self._set_up(model, optimizer, criterion)
        results = self.training_optimizer.train(model, dataloader, optimizer, criterion, num_epochs)
        del results["features"]
        self._training_loops.append(results)
        return {**results, "features": self.get_optimization_status()["features"]}

    def optimize_training_pipeline(self, model: torch.nn.Module, dataloader: Any, optimizer: torch.optim.Optimizer,
                                   criterion: Callable[..., torch.Tensor]) -> dict[str, dict[str, dict[str, Any]]]:
        """Sets the model up, in place, and trains nothing; the other objects stay as they are. Returns, for JSON, by component (data,
        batch, model, training, memory, profiling) and setting {"requested", "status", "reason"}, as get_optimization_status() has them.

        TypeError: the optimizer is no torch.optim.Optimizer, as a PerformanceOptimizer, the criterion no function, or the dataloader gives
        no batches.
        """
        _config.check_optimizer(optimizer)
        _config.check_criterion(criterion)
        if not callable(dataloader) and not hasattr(dataloader, "__iter__"):
            raise TypeError(f"dataloader: wanted what gives batches, found {type(dataloader).__name__}")
        self.optimize_model(model)
        features = self.get_optimization_status()["features"]
        return {component: {name: features[name] for name in names} for component, names in _COMPONENTS.items()}

    def get_optimization_status(self) -> dict[str, Any]:
        """For JSON. config: optimization_level, mixed_precision and compile_enabled as they are in force, False for what is not; features:
        by setting {"requested", "status", "reason"}, where status is "applied", "not applied", or "" of what is not requested; and
        compilation: the attempts, as ModelOptimizer.report() has them."""
        told = self.model_optimizer.report()
        features = {name: entry for name, entry in told.items() if name != "compilation"}
        features.update(self.training_optimizer.report())
        for field in fields(self.config):
            if field.name in features or field.name in ("optimization_level", "memory_format"):
                continue
            requested = getattr(self.config, field.name)
            loaders = "PerformanceOptimizer makes no loader; headrace.Loader and DataLoader take it" if field.name in _OF_LOADERS else ""
            reason = _ELSEWHERE.get(field.name) or loaders or "PerformanceOptimizer has no such capability yet"
            features[field.name] = {"requested": requested, "status": "not applied" if requested else "",
                                    "reason": reason if requested else ""}
        return {"config": {"optimization_level": self.config.optimization_level.value,
                           "mixed_precision": self.training_optimizer.is_mixed_precision,
                           "compile_enabled": self.model_optimizer.compile_enabled},
                "features": features, "compilation": told["compilation"]}

    def get_performance_summary(self) -> dict[str, Any]:
        """For JSON: get_optimization_status(), and training_loops, what optimize_training_loop() returned of each without features."""
        return {**self.get_optimization_status(), "training_loops": list(self._training_loops)}

    def _set_up(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, criterion: Callable[..., torch.Tensor]) -> None:
        """Refuses what is no optimizer and no criterion before anything changes."""
        _config.check_optimizer(optimizer)
        _config.check_criterion(criterion)
        if self._model is not model:
            self.optimize_model(model)


def create_performance_optimizer(config: PerformanceConfig | None = None) -> PerformanceOptimizer:
    """A PerformanceOptimizer of it; None: of the level advanced."""
    return PerformanceOptimizer(config)
