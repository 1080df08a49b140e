"""What is looked at more closely in steps of numerical stability: activations, and steps that look wrong."""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_STEPS_KNOWN, _STEPS_LEAST = 50, 10  # Whose median a step is compared with.
_logger = logging.getLogger(__package__)


@dataclass
class DebugConfig:
    """What is False costs nothing.

    detect_anomaly: backward, and the forward of a training wrapper, name the operation that made a NaN, as torch.autograd.detect_anomaly
        does.
    gradient_statistics: a step's result has the norm of each parameter's gradient.
    activation_statistics: it has of each module without submodules, by name, of the outputs of its last call in that step: mean, std and
        abs_max of what is finite (None: nothing is), zeros, the share of zeros, and not_finite, how many are not. A training wrapper's
        step has them, and a step behind a forward within NumericalStabilityManager.debugged_forward().
    log_suspicious_steps: the logger "performance_optimization" gets a warning of each step that is skipped or has a loss or a norm of
        gradients that is not finite, or more than suspicious_factor times the median of the steps before it, 10 to 50 of them.

    ValueError: suspicious_factor is no number above 1.
    """

    detect_anomaly: bool = False
    gradient_statistics: bool = False
    activation_statistics: bool = False
    log_suspicious_steps: bool = False
    suspicious_factor: float = 10.0

    def __post_init__(self) -> None:
        factor = self.suspicious_factor
        if isinstance(factor, bool) or not isinstance(factor, Real) or not 1 < factor < math.inf:
            raise ValueError(f"DebugConfig.suspicious_factor: wanted a number above 1, and finite, found {factor!r}")


class ActivationStatistics:
    """Of the last forward. Reading them waits for the device at each module."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, float | int | None]] = {}

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        self._found = {}
        hooks = [module.register_forward_hook(self._noting(name)) for name, module in model.named_modules()
                 if next(module.children(), None) is None]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def take(self) -> dict[str, dict[str, float | int | None]]:
        """{} where there was no forward since the last call."""
        found, self._found = self._found, {}
        return found

    def _noting(self, name: str) -> Callable[[Any, Any, Any], None]:
        from headrace._state import tensors_in

        def note(module: Any, inputs: Any, outputs: Any) -> None:
            tensors = [tensor.detach().float().flatten() for tensor in tensors_in(outputs) if tensor.is_floating_point()]
            if sum(tensor.numel() for tensor in tensors) > 0:
                self._found[name] = _statistics(tensors)

        return note


def _statistics(tensors: list[torch.Tensor]) -> dict[str, float | int | None]:
    import torch

    values = torch.cat(tensors)
    finite = values[values.isfinite()]
    told: dict[str, float | int | None] = dict.fromkeys(("mean", "std", "abs_max"))
    if finite.numel() > 0:
        told.update(mean=finite.mean().item(), std=finite.std(correction=0).item(), abs_max=finite.abs().max().item())
    return {**told, "zeros": (values == 0).float().mean().item(), "not_finite": values.numel() - finite.numel()}


class SuspiciousSteps:
    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._known = {name: deque[float](maxlen=_STEPS_KNOWN) for name in ("loss", "gradient_norm")}

    def look(self, step: int, result: dict[str, Any]) -> None:
        """Logs what is wrong with a step's result."""
        reasons = [] if result["nan_detected"] is None else [result["nan_detected"]]
        reasons += filter(None, (self._compared(name, result[name]) for name in self._known if name in result))
        if result["skipped"]:
            reasons.append("its update was left out")
        if reasons:
            _logger.warning("step %d: %s", step, "; ".join(reasons))

    def _compared(self, name: str, value: float) -> str:
        """Empty: it is as usual, or nobody knows yet."""
        if not math.isfinite(value):
            return f"{name} is {value}"
        known = self._known[name]
        median = statistics.median(known) if len(known) >= _STEPS_LEAST else 0.0
        count = len(known)
        known.append(value)
        if median <= 0 or value <= self._factor * median:
            return ""
        return f"{name} is {value:.4g}, {value / median:.1f} times the median of the {count} steps before"
