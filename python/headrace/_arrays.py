"""What holds the values of a batch in Python."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

from .errors import UnsupportedError


def from_dlpack() -> Callable[[Any], Any] | None:
    """torch.from_dlpack; None: torch is not installed, and NumPy's arrays stand in the place of tensors. UnsupportedError where
    neither is."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":  # It is there, and something that it needs is not.
            raise
        if importlib.util.find_spec("numpy") is None:
            raise UnsupportedError("wanted torch, of whose tensors batches are made, or NumPy for arrays in their place; found "
                                   "neither") from None
        return None
    return torch.from_dlpack
