"""The rules that tell what slows batches down, over figures that somebody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

_THRESHOLDS = ("data_loading_ratio", "memory_bytes", "speed_ratio")
_BELOW = 2**63  # What 64 bits count.


def find_bottlenecks(data_loading_s: float, compute_s: float, memory_bytes: float | None, speeds: Sequence[float], *,
                     thresholds: Mapping[str, float] | None = None) -> list[dict[str, str]]:
    """Those that hold, each with code, sentence and advice; empty where the batches are healthy. A figure at its threshold is healthy.

    data_loading_s, compute_s: mean seconds a batch took to be loaded, and forward, backward and optimizer together.
    data_loading_slow: the first is above data_loading_ratio (0.3) times the second.
    memory_bytes: on average; None: unavailable. high_memory: above memory_bytes (8 x 10^9).
    speeds: samples a second, one a batch. speed_degraded: the mean of the last ten is below speed_ratio (0.8) times that of all.

    InvalidArgumentError, a ValueError: a threshold of another name, or a threshold or figure that is not finite or below 0.
    """
    from headrace import _core
    from headrace.errors import InvalidArgumentError

    settings = dict(thresholds or {})
    for name, value in settings.items():
        if name not in _THRESHOLDS:
            raise InvalidArgumentError(f"thresholds: wanted {', '.join(_THRESHOLDS)}, found {name!r}")
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < _BELOW:
            raise InvalidArgumentError(f"thresholds: {name}: wanted a number of at least 0 and below 2^63, found {value!r}")
    if "memory_bytes" in settings:
        settings["memory_bytes"] = int(settings["memory_bytes"])
    memory = None if memory_bytes is None else int(memory_bytes)
    return _core.identify_bottlenecks(1, data_loading_s, compute_s, memory, list(speeds), **settings)
