# Types of the native half that needs no LibTorch; tests/python_stubs_test.py compares them with the module.
from collections.abc import Callable, Generator, Mapping, Sequence
from os import PathLike
from typing import Any, Self, TypeAlias, TypeVar, overload

import numpy
import torch

from ._fields import Field
from ._operation import Operation
from ._source import Source

Path: TypeAlias = str | PathLike[str]
Image = TypeVar("Image", bound=torch.Tensor | numpy.ndarray[Any, Any])

class LoaderEpoch:
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def request(self) -> LoaderRequest: ...

class LoaderRequest:
    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def result(self) -> Any: ...
    def __await__(self) -> Generator[Any, None, Any]: ...

class Loader:
    def __init__(
        self,
        source: Path | Source,
        *,
        worker_type: str = "thread",
        worker_timeout_s: float = 300.0,
        persistent_workers: bool = True,
        enable_async_data_loading: bool = True,
        split: str = "train",
        seed: int = 0,
        training: bool | None = None,
        val_fraction: float = 0.0,
        batch_size: int = 128,
        num_workers: int | str = 1,
        num_workers_max: int = 0,
        prefetch_batches: int | str = 2,
        prefetch_mib: int = 0,
        auto_tune: bool = True,
        last_batch: str = "keep",
        shuffle: bool = True,
        shuffle_window: int = 0,
        buckets: int = 0,
        bucket_by: str = "bytes",
        sampler: str = "each",
        weights: Sequence[float] = [],
        world_size: int = 1,
        rank: int = 0,
        in_order: bool = True,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        fields: Sequence[str] | Mapping[str, Field] | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        on_corrupt: str = "fail",
        cache: str = "none",
        cache_mib: int = 0,
        index: str = "use",
        scale_decode: bool = False,
        max_pixels: int = 178956970,
        max_sample_bytes: int = 268435456,
        transform: Mapping[str, Any] | None = None,
        transforms: Sequence[Operation | Mapping[str, Any]] = [],
        eval_transforms: Sequence[Operation | Mapping[str, Any]] = [],
    ) -> None: ...
    def __iter__(self) -> LoaderEpoch: ...
    def __len__(self) -> int: ...
    def state_dict(self) -> dict[str, int | str]: ...
    def load_state_dict(self, state_dict: Mapping[str, int | str]) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def start_at(self, epoch: int, batch: int = 0) -> None: ...
    def sample(self, index: int) -> tuple[str, int]: ...
    def statistics(self) -> dict[str, Any]: ...
    def explain(self) -> dict[str, Any]: ...
    def advice(self) -> dict[str, Any]: ...
    def decisions(self) -> list[dict[str, Any]]: ...
    def set_num_workers(self, num_workers: int | str) -> None: ...
    def set_prefetch_batches(self, batches: int | str) -> None: ...
    def set_cache(self, cache: str, keep: bool = False) -> None: ...
    @property
    def worker_deaths(self) -> list[str]: ...
    @property
    def worker_processes(self) -> list[int]: ...
    @property
    def applied(self) -> list[tuple[str, str, str, str]]: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def num_classes(self) -> int | None: ...

def pack(
    source: Source, path: Path, *, split: str = "train", fields: Sequence[str] | Mapping[str, Field] | None = None
) -> int: ...
class Transform:
    def __init__(
        self,
        transforms: Sequence[Any],
        *,
        height: int | None = None,
        width: int | None = None,
        channels: int = 3,
        layout: str = "nchw",
    ) -> None: ...
    @staticmethod
    def from_run(run: Path) -> Transform: ...
    @overload
    def apply(
        self,
        image: Any,
        out: None = None,
        *,
        seed: int | None = None,
        epoch: int | None = None,
        index: int | None = None,
    ) -> torch.Tensor: ...
    @overload
    def apply(
        self,
        image: Any,
        out: Image,
        *,
        seed: int | None = None,
        epoch: int | None = None,
        index: int | None = None,
    ) -> Image: ...
    def __call__(self, image: Any) -> torch.Tensor: ...
    def explain(self) -> list[dict[str, Any]]: ...

def operation_table(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]: ...
