"""Functions by the names that published training examples use, over plain torch, which is imported when one needs it."""

from ._accumulation import effective_batch_size, setup_gradient_accumulation, training_step_with_accumulation
from ._optimizer import create_optimized_optimizer

__all__ = [
    "create_optimized_optimizer",
    "effective_batch_size",
    "setup_gradient_accumulation",
    "training_step_with_accumulation",
]
