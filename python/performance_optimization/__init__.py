"""Functions by the names that published training examples use, over plain torch, which is imported when one needs it; BatchOptimizer and
ModelOptimizer besides over headrace."""

from ._accumulation import effective_batch_size, setup_gradient_accumulation, training_step_with_accumulation
from ._batch_size import BatchOptimizer, optimize_batch_size_for_memory
from ._gpu import get_gpu_optimization_config
from ._integration import PerformanceOptimizationConfig
from ._mixed_precision import setup_mixed_precision_training, training_step_with_amp
from ._model_optimizer import ModelOptimizer
from ._optimizer import create_optimized_optimizer
from ._performance import MemoryFormat, OptimizationLevel, PerformanceConfig, PerformanceOptimizer, create_performance_optimizer
from ._rxvision import RxVisionTrainer
from ._stability import ClippingConfig, DebugConfig, NanConfig, NumericalStabilityManager, TrainingWrapper, create_training_wrapper

__all__ = [
    "BatchOptimizer",
    "ClippingConfig",
    "DebugConfig",
    "MemoryFormat",
    "ModelOptimizer",
    "NanConfig",
    "NumericalStabilityManager",
    "OptimizationLevel",
    "PerformanceConfig",
    "PerformanceOptimizationConfig",
    "PerformanceOptimizer",
    "RxVisionTrainer",
    "TrainingWrapper",
    "create_optimized_optimizer",
    "create_performance_optimizer",
    "create_training_wrapper",
    "effective_batch_size",
    "get_gpu_optimization_config",
    "optimize_batch_size_for_memory",
    "setup_gradient_accumulation",
    "setup_mixed_precision_training",
    "training_step_with_accumulation",
    "training_step_with_amp",
]
