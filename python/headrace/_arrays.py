"""What holds the values of a batch in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def from_dlpack() -> Callable[[Any], Any] | None:
    """torch.from_dlpack; None: torch is not installed, and NumPy's arrays stand in the place of tensors."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":  # It is there, and something that it needs is not.
            raise
        return None
    return torch.from_dlpack
