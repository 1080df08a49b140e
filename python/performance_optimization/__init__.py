"""Names that published training examples use: functions over plain torch, which is imported when one needs it, and what sets hardware and
models up, searches batch sizes, trains, profiles and monitors besides over headrace."""

from ._accumulation import effective_batch_size, setup_gradient_accumulation, training_step_with_accumulation
from ._available import performance_optimization_features
from ._available import why_not as _why_not
from ._batch_size import BatchOptimizer, optimize_batch_size_for_memory
from ._dataloader import create_cpu_optimized_dataloader
from ._gpu import get_gpu_optimization_config
from ._hardware import optimize_cpu_settings, optimize_cuda_settings, optimize_gpu
from ._integration import PerformanceOptimizationConfig
from ._mixed_precision import setup_mixed_precision_training, training_step_with_amp
from ._model_optimizer import ModelOptimizer
from ._optimized_trainer import OptimizedTrainer, TrainableModel
from ._optimizer import create_optimized_optimizer, parameter_groups
from ._performance import PerformanceOptimizer, create_performance_optimizer
from ._performance_config import PRESETS, MemoryFormat, OptimizationLevel, PerformanceConfig
from ._performance_monitor import PerformanceMonitor
from ._profile import Profile
from ._profile_operation import profile_operation
from ._profiler import PerformanceProfiler, profile_memory, profile_memory_usage, profile_performance
from ._rxvision import RxVisionTrainer
from ._stability import ClippingConfig, DebugConfig, NanConfig, NumericalStabilityManager, TrainingWrapper, create_training_wrapper
from ._training_loop import optimize_training_loop, optimize_training_pipeline, optimized_training_loop, training_step_standard
from ._training_optimizer import TrainingOptimizer

__all__ = [
    "BatchOptimizer",
    "ClippingConfig",
    "DebugConfig",
    "MemoryFormat",
    "ModelOptimizer",
    "NanConfig",
    "NumericalStabilityManager",
    "OptimizationLevel",
    "OptimizedTrainer",
    "PERFORMANCE_OPTIMIZATION_AVAILABLE",
    "PRESETS",
    "PerformanceConfig",
    "PerformanceMonitor",
    "PerformanceOptimizationConfig",
    "PerformanceOptimizer",
    "PerformanceProfiler",
    "Profile",
    "RxVisionTrainer",
    "TrainableModel",
    "TrainingOptimizer",
    "TrainingWrapper",
    "create_cpu_optimized_dataloader",
    "create_optimized_optimizer",
    "create_performance_optimizer",
    "create_training_wrapper",
    "effective_batch_size",
    "get_gpu_optimization_config",
    "optimize_batch_size_for_memory",
    "optimize_cpu_settings",
    "optimize_cuda_settings",
    "optimize_gpu",
    "optimize_training_loop",
    "optimize_training_pipeline",
    "optimized_training_loop",
    "parameter_groups",
    "performance_optimization_features",
    "profile_memory",
    "profile_memory_usage",
    "profile_operation",
    "profile_performance",
    "setup_gradient_accumulation",
    "setup_mixed_precision_training",
    "training_step_standard",
    "training_step_with_accumulation",
    "training_step_with_amp",
]

_NOT_BUILT = ("MemoryManager", "MemoryOptimizer", "ParallelProcessor", "PerformanceCache")

PERFORMANCE_OPTIMIZATION_AVAILABLE: bool  # Whether headrace's native library can be loaded: found out when it is first asked for.


def __getattr__(name: str) -> object:
    if name == "PERFORMANCE_OPTIMIZATION_AVAILABLE":
        return not _why_not()
    if name in _NOT_BUILT:
        raise AttributeError(f"{__name__}.{name}: unavailable: not built yet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
