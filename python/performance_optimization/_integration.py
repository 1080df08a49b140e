"""What of performance optimization takes part in steps of numerical stability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _config
from ._performance_config import PRESETS, PerformanceConfig

if TYPE_CHECKING:
    from ._model_optimizer import ModelOptimizer

_LEVELS = ("basic", "advanced", "ultra")
_NOT_CALLED = "wanted optimize_model(model), which was not called"
# By the names that a PerformanceConfig has for them.
_OF_MODEL = {"enable_model_compilation": "enable_compile", "enable_memory_optimization": "enable_memory_format_optimization"}
_OF_LEVEL = ("enable_gradient_checkpointing", "enable_flash_attention")  # What a level chooses where nobody has set it.


@dataclass(init=False)
class PerformanceOptimizationConfig:
    """A plain value. report() says of each setting whether it is applied, and if not, why.

    enable_performance_optimization: False: as if there were no such configuration.
    optimization_level: "basic", "advanced" or "ultra": what enable_gradient_checkpointing and enable_flash_attention are where they are
        None. advanced and ultra have the first, ultra has the second.
    integrate_with_stability: the results of stability steps have performance_metrics.
    enable_mixed_precision: the forward of a training wrapper runs under autocast where there is CUDA. mixed_precision and enable_amp
        are other names of it, to be set and read.
    enable_memory_optimization: optimize_model gives the model's 2-d convolutions, and the inputs it is called with, channels-last order.
    enable_model_compilation: torch compiles the model that optimize_model is given, at its first call.
    enable_gradient_checkpointing: optimize_model has activations recomputed in the backward, which takes less memory and more time.
        Compiled code chooses by itself what it recomputes.
    enable_flash_attention: optimize_model asks headrace's attention modules for the flash kernel.
    """

    enable_performance_optimization: bool
    optimization_level: str
    integrate_with_stability: bool
    enable_mixed_precision: bool
    enable_model_compilation: bool
    enable_memory_optimization: bool
    enable_gradient_checkpointing: bool | None
    enable_flash_attention: bool | None

    def __init__(self, enable_performance_optimization: bool = True, optimization_level: Any = "advanced",
                 integrate_with_stability: bool = True, enable_mixed_precision: bool | None = None, enable_model_compilation: bool = True,
                 enable_memory_optimization: bool = True, *, mixed_precision: bool | None = None, enable_amp: bool | None = None,
                 enable_gradient_checkpointing: bool | None = None, enable_flash_attention: bool | None = None) -> None:
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
        self.enable_gradient_checkpointing = enable_gradient_checkpointing
        self.enable_flash_attention = enable_flash_attention

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
        if not self.enable_performance_optimization:
            return PerformanceConfig("custom")
        of_level = {name: PRESETS[self.optimization_level].get(name, False) for name in _OF_LEVEL}
        return PerformanceConfig("custom", enable_compile=self.enable_model_compilation,
                                 enable_memory_format_optimization=self.enable_memory_optimization, **{**of_level, **self._said()})

    def _said(self) -> dict[str, bool]:
        """Of what a level chooses, what somebody has set."""
        return {name: value for name in _OF_LEVEL if (value := getattr(self, name)) is not None}

    def report(self, optimized: ModelOptimizer | None = None) -> dict[str, dict[str, Any]]:
        """By setting {"requested", "status", "reason"}; status is "applied" or "not applied", and "" of what is not requested. A
        compilation that is applied may have a reason for what is not compiled any more. What is left to the level has no row of its own.
        optimized: what optimize_model set the model up with; None: it was not called."""
        is_on = self.enable_performance_optimization
        reasons = {
            "optimization_level": _NOT_CALLED,
            "integrate_with_stability": "",
            "enable_mixed_precision": "" if self.autocasts() else "wanted CUDA, found none",
            "enable_model_compilation": _NOT_CALLED,
            "enable_memory_optimization": _NOT_CALLED,
            **dict.fromkeys(self._said(), _NOT_CALLED),
        }
        report = {}
        for name, reason in reasons.items():
            requested = getattr(self, name)
            why = reason if is_on else "enable_performance_optimization is False"
            status = "" if not requested else "not applied" if why else "applied"
            report[name] = {"requested": requested, "status": status, "reason": why if requested else ""}
            if requested and is_on and optimized is not None and name in (*_OF_MODEL, *_OF_LEVEL):
                report[name] = optimized.report()[_OF_MODEL.get(name, name)]
        if is_on and optimized is not None:
            of_level = [name for name in _OF_LEVEL if name not in self._said()]
            report["optimization_level"] = _level_report(self.optimization_level, of_level, optimized.report())
        return report


def _level_report(level: str, names: list[str], of_model: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Applied where one of the level's own choices among `names` is, or where it has none."""
    chosen = {name: of_model[name] for name in names if of_model[name]["requested"]}
    is_applied = not chosen or any(entry["status"] == "applied" for entry in chosen.values())
    reasons = [f"{name}: {entry['reason']}" for name, entry in chosen.items() if entry["reason"]]
    return {"requested": level, "status": "applied" if is_applied else "not applied", "reason": "; ".join(reasons)}
