"""Settings of a configuration by their path, as "model_config.learning_rate", each part of which may be a mapping or any object; and
what a step is handed, looked at before it begins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def setting(config: Any, path: str) -> Any:
    """None: the configuration does not have it."""
    value = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def number(config: Any, path: str, kind: type, low: float, default: float | None = None) -> Any:
    """The setting as `kind`, int or float, and at least `low`; True and False are no numbers. ValueError: it is something else, or
    missing without a default."""
    value = setting(config, path)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real) or not value >= low:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"config.{path}: wanted {wanted} of at least {low}, found {'none' if value is None else repr(value)}")
    return kind(value)


def check_range(name: str, value: Any, kind: type, high: float = math.inf) -> None:
    """ValueError: the value is no `kind`, int or float, above 0 and below `high`."""
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real) or not 0 < value < high:
        wanted = "a whole number" if kind is int else "a number"
        below = "" if kind is int else ", and finite" if high == math.inf else f" and below {high:g}"
        raise ValueError(f"{name}: wanted {wanted} above 0{below}, found {value!r}")


def check_optimizer(optimizer: Any) -> None:
    """TypeError: it is no torch.optim.Optimizer."""
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError("optimizer: wanted a torch.optim.Optimizer over the model's parameters, found "
                        f"{type(optimizer).__name__}; a performance optimizer sets a model up and takes no steps")


def check_criterion(criterion: Any) -> None:
    """TypeError: it cannot be called."""
    if not callable(criterion):
        raise TypeError(f"criterion: wanted a function of outputs and targets, found {type(criterion).__name__}")


def check_loader(dataloader: Any) -> None:
    """TypeError: it gives no batches."""
    if not callable(dataloader) and not hasattr(dataloader, "__iter__"):
        raise TypeError(f"dataloader: wanted what gives batches, found {type(dataloader).__name__}")


def device_type(model: torch.nn.Module) -> str:
    """Of the first parameter, as "cpu". ValueError: the model has none."""
    parameter = next(iter(model.parameters()), None)
    if parameter is None:
        raise ValueError(f"model: wanted one with parameters, found none in {type(model).__name__}")
    return parameter.device.type


def is_on(scaler: Any) -> bool:
    """Whether it scales: GradScaler(enabled=False) does not, and what cannot tell does."""
    return scaler is not None and getattr(scaler, "is_enabled", lambda: True)()


# One setting, by the names that it has in several configurations.
MIXED_PRECISION = ("enable_mixed_precision", "mixed_precision", "enable_amp")


def agreed(name: str, values: Mapping[str, Any], default: Any) -> Any:
    """The value of one setting that may be given under several names; None is not given. ValueError: two of them differ."""
    given = {key: value for key, value in values.items() if value is not None}
    first = next(iter(given.values()), default)
    if any(value is not first and value != first for value in given.values()):
        found = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(f"{name}: wanted one value, found {found}, which are names of the same setting")
    return first
