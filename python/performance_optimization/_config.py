"""Settings of a configuration by their path, as "model_config.learning_rate". Any mapping and any object has them, also one in
the other."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any


def setting(config: Any, path: str) -> Any:
    """None: it has none."""
    value = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def number(config: Any, path: str, kind: type, low: float, default: float | None = None) -> Any:
    """Of this kind, int or float, and at least `low`; True and False are no numbers. Without a default it must be there."""
    value = setting(config, path)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real) or not value >= low:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"config.{path}: wanted {wanted} of at least {low}, found {'none' if value is None else repr(value)}")
    return kind(value)


# One setting, by the names that it has in several configurations.
MIXED_PRECISION = ("enable_mixed_precision", "mixed_precision", "enable_amp")


def agreed(name: str, values: Mapping[str, Any], default: Any) -> Any:
    """The value of one setting that may be given under several names; None is not given. ValueError: two of them differ."""
    given = {key: value for key, value in values.items() if value is not None}
    if any(value != next(iter(given.values())) for value in given.values()):
        found = ", ".join(f"{key}={value!r}" for key, value in given.items())
        raise ValueError(f"{name}: wanted one value, found {found}, which are names of the same setting")
    return next(iter(given.values()), default)
