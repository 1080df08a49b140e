"""Headrace: a native performance engine for PyTorch training."""

import importlib.util
import sys

import torch  # First: its libraries must be in the process before ours.

_TORCH_VERSION = "2.11.0"  # The one whose C++ interface the native half was compiled against.
if torch.__version__.split("+")[0] != _TORCH_VERSION:
    raise ImportError(f"headrace needs torch=={_TORCH_VERSION}, found torch {torch.__version__} in {torch.__path__[0]}")

for _half in ("_native", "_core"):
    if importlib.util.find_spec(f".{_half}", __name__) is None:
        raise ImportError(
            f"headrace's Python module is not built: no {_half} for {sys.implementation.cache_tag} in {', '.join(__path__)}. In a "
            "checkout, run make build and put build/release/python on PYTHONPATH; or run pip install . there",
            name=f"{__name__}.{_half}")

from . import errors, transforms  # noqa: E402
from ._autotune import AutoTune, autotune  # noqa: E402
from ._core import Trace, Transform, diagnose, doctor, pack, span, write_report  # noqa: E402
from ._fields import Field  # noqa: E402
from ._loader import AUTOTUNE, Loader  # noqa: E402
from ._native import Trainer  # noqa: E402
from ._pipeline import DataPipelineOptimizer, LoaderChange, OptimizedLoader, PipelineReport  # noqa: E402
from ._profile import profile_operation  # noqa: E402
from ._strategy import Strategy, StrategyContext, register_strategy, strategies, unregister_strategy  # noqa: E402
from ._tune import Trial, Tuned, tune  # noqa: E402
from ._watch import watch  # noqa: E402
from .batch import Batch, RaggedTensor  # noqa: E402
from .errors import Error  # noqa: E402

__all__ = [
    "AUTOTUNE",
    "AutoTune",
    "Batch",
    "DataPipelineOptimizer",
    "Error",
    "Field",
    "Loader",
    "LoaderChange",
    "OptimizedLoader",
    "PipelineReport",
    "RaggedTensor",
    "Strategy",
    "StrategyContext",
    "Trace",
    "Trainer",
    "Transform",
    "Trial",
    "Tuned",
    "autotune",
    "diagnose",
    "doctor",
    "errors",
    "pack",
    "profile_operation",
    "register_strategy",
    "span",
    "strategies",
    "transforms",
    "tune",
    "unregister_strategy",
    "watch",
    "write_report",
]
