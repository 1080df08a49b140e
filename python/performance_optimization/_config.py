"""Settings of a configuration by their path, as "model_config.learning_rate". Each part of it may be a mapping or any object."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any


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
