"""What of performance optimization takes part in steps of numerical stability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _config
from ._performance_config import PerformanceConfig

if TYPE_CHECKING:
    from ._model_optimizer import ModelOptimizer

_LEVELS = ("basic", "advanced", "ultra")
_NOT_CALLED = "wanted optimize_model(model), which was not called"


@dataclass(init=False)
class PerformanceOptimizationConfig:
    """A plain value. report() says of each setting whether it is applied, and if not, why.

    enable_performance_optimization: False: as if there were no such configuration.
    optimization_level: "basic", "advanced" or "ultra".
    integrate_with_stability: the results of stability steps have performance_metrics.
    enable_mixed_precision: the forward of a training wrapper runs under autocast where there is CUDA. mixed_precision and enable_amp
        are other names of it, to be set and read.
    enable_memory_optimization: optimize_model gives the model's 2-d convolutions, and the inputs it is called with, channels-last order.
    enable_model_compilation: torch compiles the model that optimize_model is given, at its first call.
    """

    enable_performance_optimization: bool
    optimization_level: str
    integrate_with_stability: bool
    enable_mixed_precision: bool
    enable_model_compilation: bool
    enable_memory_optimization: bool

    def __init__(self, enable_performance_optimization: bool = True, optimization_level: Any = "advanced",
                 integrate_with_stability: bool = True, enable_mixed_precision: bool | None = None, enable_model_compilation: bool = True,
                 enable_memory_optimization: bool = True, *, mixed_precision: bool | None = None, enable_amp: bool | None = None) -> None:
        level = getattr(optimization_level, "value", optimization_level)
        if level not in _LEVELS:
            raise ValueError(f"optimization_level: wanted {' | '.join(_LEVELS)}, found {level!r}")
        self.enable_performance_optimization = enable_performance_optimization
        self.optimization_level = level
        self.integrate_with_stability = integrate_with_stability
        given = dict(zip(_config.MIXED_PRECISION, (enable_mixed_precision, mixed_precision, enable_amp)))
        self.enable_mixed_precision = _config.agreed("mixed precision", given, True)
        self.enable_model_compilation = enable_model_compilation
        self.enable_memory_optimization = enable_memory_optimization

    @property
    def mixed_precision(self) -> bool:
        return self.enable_mixed_precision

    @mixed_precision.setter
    def mixed_precision(self, value: bool) -> None:
        self.enable_mixed_precision = value

    @property
    def enable_amp(self) -> bool:
        return self.enable_mixed_precision

    @enable_amp.setter
    def enable_amp(self, value: bool) -> None:
        self.enable_mixed_precision = value

    def autocasts(self) -> bool:
        """Whether a training wrapper's forward runs in mixed precision."""
        import torch

        return self.enable_performance_optimization and self.enable_mixed_precision and torch.cuda.is_available()

    def performance_config(self) -> PerformanceConfig:
        """What it asks of a ModelOptimizer: nothing where enable_performance_optimization is False."""
        is_on = self.enable_performance_optimization
        return PerformanceConfig("custom", enable_compile=is_on and self.enable_model_compilation,
                                 enable_memory_format_optimization=is_on and self.enable_memory_optimization)

    def report(self, optimized: ModelOptimizer | None = None) -> dict[str, dict[str, Any]]:
        """By setting {"requested", "status", "reason"}; status is "applied" or "not applied", and "" of what is not requested. A
        compilation that is applied may have a reason for what is not compiled any more.
        optimized: what optimize_model set the model up with; None: it was not called."""
        is_on = self.enable_performance_optimization
        of_model = {"enable_model_compilation": "enable_compile", "enable_memory_optimization": "enable_memory_format_optimization"}
        reasons = {
            "optimization_level": "levels choose among capabilities that this package does not have yet",
            "integrate_with_stability": "",
            "enable_mixed_precision": "" if self.autocasts() else "wanted CUDA, found none",
            "enable_model_compilation": _NOT_CALLED,
            "enable_memory_optimization": _NOT_CALLED,
        }
        report = {}
        for name, reason in reasons.items():
            requested = getattr(self, name)
            why = reason if is_on else "enable_performance_optimization is False"
            status = "" if not requested else "not applied" if why else "applied"
            report[name] = {"requested": requested, "status": status, "reason": why if requested else ""}
            if requested and is_on and optimized is not None and name in of_model:
                report[name] = optimized.report()[of_model[name]]
        return report
