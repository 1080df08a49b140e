"""How many samples a batch should have: by a table of GPU memory, or by measuring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from . import _config
from ._engine_trainer import engine_trainer

if TYPE_CHECKING:
    import torch
    from headrace import BatchPlan

# Bytes of a GPU, at least, and the batch size.
_BY_MEMORY = ((24e9, 64), (16e9, 32), (12e9, 24), (8e9, 16), (6e9, 12))
_SMALLEST_GPU, _WITHOUT_CUDA, _LEAST_HALF = 8, 16, 4
_LARGE_IMAGE = 640
_DEFAULT_MEMORY_GB = (8, 24, 80, 141)
# The letter of a variant, as in "yolov8x.pt", "yolo11l-seg.pt", "yolov5x6.pt" and "rtdetr-l.pt".
_VARIANT = re.compile(r"(?:(?<=\d)|(?<=[-_.])|^)([a-z])\d*(?=[-_.]|$)")


def optimize_batch_size_for_memory(config: Any, gpu_config: Mapping[str, Any] | None = None, *, literal: bool = False) -> int:
    """The batch size by the memory of the first CUDA device, at most `config.batch_size`.

    | memory, 10^9 bytes, at least | 24 | 16 | 12 | 8 | 6 | less | no CUDA |
    |---|---|---|---|---|---|---|---|
    | batch size | 64 | 32 | 24 | 16 | 12 | 8 | 16 |

    With CUDA it is halved, to no less than 4, where `config.image_size` is above 640, and once more where `config.weights` names a
    variant x or l: the letter of "yolov8x.pt", "yolo11l-seg.pt" or "yolov5_l.pt".

    gpu_config: what get_gpu_optimization_config() returned; its batch_size_multiplier is applied to the result, which is rounded down,
        to no less than 1. None or {}: as it is.
    literal: any "x" or "l" in the weights' name counts as such a variant, and so does that of "yolo".

    The config is any mapping or object. ValueError: its batch_size is missing, or not a whole number of at least 1; so is image_size
    if it is there.
    """
    import torch

    batch_size = _config.number(config, "batch_size", int, 1)
    image_size = _config.number(config, "image_size", int, 1, default=_LARGE_IMAGE)
    if torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        fitting = next((size for least, size in _BY_MEMORY if memory >= least), _SMALLEST_GPU)
        if image_size > _LARGE_IMAGE:
            fitting = max(_LEAST_HALF, fitting // 2)
        if _is_large(str(_config.setting(config, "weights") or ""), literal):
            fitting = max(_LEAST_HALF, fitting // 2)
    else:
        fitting = _WITHOUT_CUDA
    multiplier = Fraction(str((gpu_config or {}).get("batch_size_multiplier", 1)))  # Of the decimal number, which 1.2 in binary is not.
    return max(1, int(min(fitting, batch_size) * multiplier))


def _is_large(weights: str, literal: bool) -> bool:
    name = re.split(r"[/\\]", weights.lower())[-1]
    return any(letter in "xl" for letter in (weights.lower() if literal else _VARIANT.findall(name)))


class BatchOptimizer:
    """Finds the batch size of a model by a few steps, by headrace's engine, whose plan_batch_size() says how; those are undone.

    initial_batch_size: tried first. max_batch_size: none above it is tried.
    memory_limit_mib: what tensors on the CPU may hold; None: the limit in force, else what the machine has left.
    batch_size_optimization: False: nothing is tried, and the loader's batch size stays.
    """

    def __init__(self, initial_batch_size: int = 32, max_batch_size: int = 512, *, memory_limit_mib: float | None = None,
                 batch_size_optimization: bool = True) -> None:
        self.initial_batch_size = initial_batch_size
        self.max_batch_size = max_batch_size
        self.memory_limit_mib = memory_limit_mib
        self.batch_size_optimization = batch_size_optimization
        self._plan: BatchPlan | None = None
        self.clear()

    def clear(self) -> None:
        """Forgets the last search; the settings stay."""
        self._plan = None
        self._not_applied = "wanted optimize_batch_size(model, dataloader), which was not called"

    def optimize_batch_size(self, model: torch.nn.Module, dataloader: Any, target_throughput: float | None = None, *,
                            optimizer: torch.optim.Optimizer | None = None,
                            criterion: Callable[..., torch.Tensor] | None = None) -> int:
        """The size with the best throughput among those that fit, or the smallest that reaches target_throughput, in samples per second.

        dataloader: its first batch is taken, inputs, targets and whatever else follows, and its samples repeated.
        optimizer: None: AdamW over the parameters that require gradients, whose state counts as memory and is given up again.
        criterion: the loss is criterion(model(inputs), targets); None: cross entropy.

        Model, optimizer, generators and loader are as before afterwards, bit for bit. headrace.errors.UnsupportedError: headrace's engine
        cannot be had, as beside another torch.
        """
        self._plan = None
        if not self.batch_size_optimization:
            self._not_applied = "batch_size_optimization is False"
            return _batch_size_of(dataloader)
        self._not_applied = "the search did not end"
        self._plan = self._search(model, dataloader, target_throughput, optimizer, criterion)
        return self._plan.batch_size

    def recommend_batch_sizes(self, memory_gb: Sequence[float] = _DEFAULT_MEMORY_GB) -> list[dict[str, Any]]:
        """By the memory of a device in 10^9 bytes, the largest size that fits it, with the reason: computed from what the last
        optimize_batch_size measured on this machine, so a device whose kernels take other memory has another. Without max_batch_size's
        bound. None: unavailable. ValueError: nothing was measured yet."""
        if self._plan is None:
            raise ValueError(f"recommend_batch_sizes: {self._not_applied}")
        return [self._recommendation(self._plan, gb) for gb in memory_gb]

    @staticmethod
    def _recommendation(plan: BatchPlan, gb: float) -> dict[str, Any]:
        size = plan.largest_for(gb * 1e9)
        whatever_the_size = (plan.fixed_bytes + plan.activation_bytes) / 1e6
        reason = ("the probes do not tell what a sample takes" if size is None else
                  f"{whatever_the_size:.1f} MB whatever the size, {plan.bytes_per_sample / 1e6:.3f} MB a sample")
        return {"memory_gb": gb, "batch_size": size, "reason": reason}

    def get_performance_summary(self, run_samples: int | None = None) -> dict[str, Any]:
        """{"batch_optimization": ...}, for JSON: requested, status ("applied" or "not applied") and reason; and of a search the sizes
        tried in their order with their time and memory, the batch_size chosen, its samples_per_second and memory_fraction, and search_s.
        run_samples: how many samples the run goes over, repeats included; search_share is then the search's part of its time.
        What nobody could measure is None."""
        requested = self.batch_size_optimization
        status = "applied" if self._plan is not None else "not applied" if requested else ""
        told: dict[str, Any] = {"requested": requested, "status": status,
                                "reason": self._not_applied if self._plan is None else self._plan.reason, "probes": []}
        if self._plan is not None:
            told.update(self._plan.as_dict(), run_samples=run_samples,
                        search_share=None if run_samples is None else self._plan.search_share(run_samples))
        return {"batch_optimization": told}

    def _search(self, model: torch.nn.Module, dataloader: Any, target_throughput: float | None,
                optimizer: torch.optim.Optimizer | None, criterion: Callable[..., torch.Tensor] | None) -> BatchPlan:
        import headrace
        import torch

        if optimizer is None:
            optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
        trainer = engine_trainer(model, optimizer, torch.nn.functional.cross_entropy if criterion is None else criterion)
        return headrace.plan_batch_size(trainer, dataloader, initial_batch_size=self.initial_batch_size,
                                        max_batch_size=self.max_batch_size, memory_limit_mib=self.memory_limit_mib,
                                        target_throughput=target_throughput)


def _batch_size_of(dataloader: Any) -> int:
    """ValueError: it has none, as a DataLoader with a batch sampler of one's own."""
    found = getattr(dataloader, "batch_size", None)
    if found is None:
        raise ValueError(f"dataloader.batch_size: wanted the size that stays, found none in {type(dataloader).__name__}")
    return int(found)
