"""Whether headrace can be had, and what of it."""

from __future__ import annotations

import functools


@functools.cache
def why_not() -> str:
    """Why headrace's native library cannot be loaded; empty: it is. Changes no setting, and imports no torch."""
    try:
        import headrace  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def performance_optimization_features() -> dict[str, dict[str, bool | str]]:
    """For JSON, by feature {"available", "reason"}: headrace, its native library, without which only the functions over plain torch work;
    torch; engine, which trains; cuda, a device. reason is why not, else empty. Imports torch, and initialises no CUDA."""
    reasons = {"headrace": why_not()}
    try:
        import torch
    except ImportError as error:
        reasons["torch"] = str(error)
        reasons["cuda"] = "wanted torch, found none"
    else:
        reasons["torch"] = ""
        reasons["cuda"] = "" if torch.cuda.is_available() else "wanted a CUDA device, found none"
    reasons["engine"] = reasons["headrace"] or _why_no_engine()
    return {name: {"available": not reason, "reason": reason} for name, reason in reasons.items()}


def _why_no_engine() -> str:
    from headrace import _engine_door

    return _engine_door.why_not() or ""
