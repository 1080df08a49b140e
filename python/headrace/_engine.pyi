# Types of the half that needs LibTorch; tests/python_stubs_test.py compares them with the module.
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, TypeAlias

import torch

AnyLoader: TypeAlias = Iterable[Any] | Callable[[], Iterable[Any]]
Path: TypeAlias = str | PathLike[str]
Named: TypeAlias = dict[str, torch.Tensor]
Forward: TypeAlias = Callable[[Any, Any], torch.Tensor | tuple[torch.Tensor, Named] | tuple[torch.Tensor, Named, float | torch.Tensor]]

class AveragesBlock:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Trainer:
    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        forward: Forward,
        *,
        epochs: int = 4,
        precision: str = "fp32",
        gradient_accumulation_steps: int = 1,
        max_grad_norm: float | None = None,
        grad_norm_type: str = "l2",
        grad_norm_per: str = "model",
        clip_grad_value: float | None = None,
        clip_grad_ratio: float | None = None,
        loss_scale: float = 0.0,
        ema_decay: float = 0.0,
        ema_warmup: bool = True,
        cuda_graph: bool = False,
        deterministic: bool = False,
        on_out_of_memory: str = "raise",
        memory_limit_mib: int = 0,
        step_guard: Mapping[str, Any] | None = None,
        lr_scheduler: str | Mapping[str, Any] | torch.optim.lr_scheduler.LRScheduler = "none",
        steps: int | None = None,
    ) -> None: ...
    def step(self, batch: Any, last_of_window: bool = False) -> torch.Tensor: ...
    def set_memory_limit_mib(self, mib: float) -> dict[str, str]: ...
    def finish_window(self) -> None: ...
    def fit(
        self,
        loader: AnyLoader,
        epochs: int | None = None,
        *,
        evaluate: AnyLoader | None = None,
        on_step: Callable[[torch.Tensor], Any] | None = None,
        on_epoch: Callable[[dict[str, Any]], Any] | None = None,
        checkpoints: Path | None = None,
        checkpoint_every_s: float = 300.0,
        keep_checkpoints: int = 2,
        async_checkpoints: bool = True,
        monitor: str = "loss",
        early_stopping_patience: int = 0,
        swa_start: int = 0,
    ) -> list[dict[str, Any]]: ...
    def evaluate(self, loader: AnyLoader, *, averages: bool = True) -> dict[str, float]: ...
    def save(self, path: Path) -> None: ...
    def load(self, path: Path) -> dict[str, Any]: ...
    @property
    def averages(self) -> dict[str, torch.Tensor]: ...
    @property
    def swa_averages(self) -> dict[str, torch.Tensor]: ...
    def with_averages(self, kind: str = "ema") -> AveragesBlock: ...
    def explain(self) -> dict[str, dict[str, Any]]: ...
    @property
    def progress(self) -> dict[str, Any]: ...
    def live(self) -> dict[str, Any]: ...
    @property
    def clip_report(self) -> dict[str, float]: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def loss_scale(self) -> float: ...
    @property
    def options(self) -> dict[str, Any]: ...

def allocator() -> str: ...
def set_allocator(value: str) -> tuple[str, str, str]: ...
def set_tensor_memory_limit(bytes: int) -> tuple[str, str, str]: ...
def watch_tensor_memory() -> tuple[str, str, str]: ...
def tensor_memory() -> tuple[int | None, int | None, int]: ...
def reset_peak_tensor_memory() -> None: ...
