"""Headrace: a native performance engine for PyTorch training."""

import torch  # First: its libraries must be in the process before ours.

_TORCH_VERSION = "2.11.0"  # The one whose C++ interface the native half was compiled against.
if torch.__version__.split("+")[0] != _TORCH_VERSION:
    raise ImportError(f"headrace needs torch=={_TORCH_VERSION}, found torch {torch.__version__} in {torch.__path__[0]}")

from . import _native, errors  # noqa: E402, F401
from .errors import Error  # noqa: E402

__all__ = ["Error", "errors"]
