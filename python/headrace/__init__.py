"""Headrace: a native performance engine for PyTorch training."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from . import _core_door

_core_door.load_core()

from . import errors, transforms  # noqa: E402
from ._core import Trace, Transform, __version__, pack, span, write_report  # noqa: E402
from ._fields import Field  # noqa: E402
from .batch import Batch, RaggedTensor  # noqa: E402
from .errors import Error  # noqa: E402

if TYPE_CHECKING:
    from ._activation_checkpointing import (
        ActivationCheckpointing, CheckpointingReport, gradient_checkpointing_disable, gradient_checkpointing_enable)
    from ._attention import MultiheadAttention, ScaledDotProductAttention
    from ._autotune import AutoTune, autotune
    from ._batch_plan import BatchPlan, BatchProbe, plan_batch_size
    from ._compare import Comparison, compare
    from ._compare_functions import FunctionComparison, compare_functions
    from ._compiled import CompileAttempt, Compiled, compiled
    from ._diagnose_loop import diagnose_loop
    from ._diagnosis import Diagnosis, diagnose
    from ._doctor import doctor
    from ._engine import Trainer
    from ._fixed_shapes import FixedShapes, bucket_shapes, pad_last_batch
    from ._hardware_change import HardwareSetting
    from ._hardware_settings import HardwareSettings, hardware_settings
    from ._kernels import register_kernel
    from ._ledger import Ledger
    from ._loader import AUTOTUNE, Loader
    from ._memory_format import set_memory_format
    from ._memory_roles import MemoryByRole, memory_by_role
    from ._metrics import ConfusionMatrix, accuracy
    from ._monitor import Alert, monitor, standard_alerts
    from ._operator_profile import profile, schedule, write_traces
    from ._operator_table import KeyAverages
    from ._pipeline import DataPipelineOptimizer, LoaderChange, OptimizedLoader, PipelineReport
    from ._profile import profile_operation
    from ._strategy import Strategy, StrategyContext, register_strategy, strategies, unregister_strategy
    from ._tensor_memory import set_tensor_memory_limit
    from ._trial import Trial
    from ._tune import Tuned, tune
    from ._watch import watch

__all__ = [
    "AUTOTUNE",
    "ActivationCheckpointing",
    "Alert",
    "AutoTune",
    "Batch",
    "BatchPlan",
    "BatchProbe",
    "CheckpointingReport",
    "Comparison",
    "CompileAttempt",
    "Compiled",
    "ConfusionMatrix",
    "DataPipelineOptimizer",
    "Diagnosis",
    "Error",
    "Field",
    "FixedShapes",
    "FunctionComparison",
    "HardwareSetting",
    "HardwareSettings",
    "KeyAverages",
    "Ledger",
    "Loader",
    "LoaderChange",
    "MemoryByRole",
    "MultiheadAttention",
    "OptimizedLoader",
    "PipelineReport",
    "RaggedTensor",
    "ScaledDotProductAttention",
    "Strategy",
    "StrategyContext",
    "Trace",
    "Trainer",
    "Transform",
    "Trial",
    "Tuned",
    "accuracy",
    "autotune",
    "bucket_shapes",
    "compare",
    "compare_functions",
    "compiled",
    "diagnose",
    "diagnose_loop",
    "doctor",
    "errors",
    "gradient_checkpointing_disable",
    "gradient_checkpointing_enable",
    "hardware_settings",
    "memory_by_role",
    "monitor",
    "pack",
    "pad_last_batch",
    "plan_batch_size",
    "profile",
    "profile_operation",
    "register_kernel",
    "register_strategy",
    "schedule",
    "set_memory_format",
    "set_tensor_memory_limit",
    "span",
    "standard_alerts",
    "strategies",
    "transforms",
    "tune",
    "unregister_strategy",
    "watch",
    "write_report",
    "write_traces",
]

# What is imported when it is first asked for, by name with the module that has it: `import headrace` is quick and imports no torch.
_LATER = {"AUTOTUNE": "_loader", "Loader": "_loader", "profile_operation": "_profile", "Diagnosis": "_diagnosis",
          "diagnose": "_diagnosis", "doctor": "_doctor", "HardwareSetting": "_hardware_change", "Ledger": "_ledger",
          "Trial": "_trial", "set_tensor_memory_limit": "_tensor_memory", "KeyAverages": "_operator_table",
          **dict.fromkeys(("Comparison", "compare"), "_compare"),
          **dict.fromkeys(("FunctionComparison", "compare_functions"), "_compare_functions"),
          **dict.fromkeys(("Alert", "monitor", "standard_alerts"), "_monitor")}
_LATER_WITH_TORCH = {
    **dict.fromkeys(("ActivationCheckpointing", "CheckpointingReport", "gradient_checkpointing_disable", "gradient_checkpointing_enable"),
                    "_activation_checkpointing"),
    **dict.fromkeys(("MultiheadAttention", "ScaledDotProductAttention"), "_attention"),
    **dict.fromkeys(("AutoTune", "autotune"), "_autotune"),
    **dict.fromkeys(("BatchPlan", "BatchProbe", "plan_batch_size"), "_batch_plan"),
    **dict.fromkeys(("CompileAttempt", "Compiled", "compiled"), "_compiled"),
    **dict.fromkeys(("DataPipelineOptimizer", "LoaderChange", "OptimizedLoader", "PipelineReport"), "_pipeline"),
    **dict.fromkeys(("FixedShapes", "bucket_shapes", "pad_last_batch"), "_fixed_shapes"),
    **dict.fromkeys(("HardwareSettings", "hardware_settings"), "_hardware_settings"),
    **dict.fromkeys(("MemoryByRole", "memory_by_role"), "_memory_roles"),
    **dict.fromkeys(("profile", "schedule", "write_traces"), "_operator_profile"),
    **dict.fromkeys(("Strategy", "StrategyContext", "register_strategy", "strategies", "unregister_strategy"), "_strategy"),
    **dict.fromkeys(("Tuned", "tune"), "_tune"),
    **dict.fromkeys(("ConfusionMatrix", "accuracy"), "_metrics"),
    "diagnose_loop": "_diagnose_loop",
    "register_kernel": "_kernels",
    "set_memory_format": "_memory_format",
    "watch": "_watch",
}

try:
    _has_torch = importlib.util.find_spec("torch") is not None
except ValueError:  # Of one in sys.modules that no file was found for.
    _has_torch = True
if not _has_torch:  # So that import *, help() and dir() go through.
    __all__ = [name for name in __all__ if name not in _LATER_WITH_TORCH]


def __getattr__(name: str) -> Any:
    if name == "Trainer":
        value = importlib.import_module("._trainer", __name__).trainer_class()
    elif (module := _LATER.get(name) or _LATER_WITH_TORCH.get(name)) is not None:
        try:
            value = getattr(importlib.import_module(f".{module}", __name__), name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "torch":
                raise
            # No AttributeError: of that `from headrace import tune` would make an ImportError without the reason.
            raise errors.UnsupportedError(f"headrace.{name}: wanted torch, found none") from error
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
