"""headrace.Loader with the keywords of torch.utils.data.DataLoader, and for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from . import _native
from .errors import InvalidArgumentError

AUTOTUNE = "auto"  # A number that the Loader finds by itself while it runs. It takes -1 for it, too.


class Loader(_native.Loader):
    __doc__ = f"""{_native.Loader.__doc__}

    threads and prefetch_batches may be AUTOTUNE: the Loader finds them while it runs, from what its stages and the loop take
    (decisions() lists what it changed and why).

    Of DataLoader's keywords it takes num_workers (threads), drop_last (last_batch), prefetch_factor (batches a worker) and
    those that change nothing here, which not_applied lists with the reason: pin_memory and persistent_workers=False.
    worker_init_fn is refused. Unlike a DataLoader it shuffles in training unless shuffle=False.

    "async for batch in loader" iterates under asyncio; iter(loader).request() asks for a batch without waiting."""

    def __init__(
        self,
        source: Any,
        *,
        num_workers: int | str | None = None,
        prefetch_factor: int | str | None = None,
        drop_last: bool | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = True,
        worker_init_fn: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> None:
        if worker_init_fn is not None:
            raise InvalidArgumentError(
                "worker_init_fn: the workers are native threads that run no Python; what they draw depends on seed, epoch "
                "and sample alone")
        if num_workers is not None:
            _set(options, "num_workers", "threads", num_workers)
        if prefetch_factor is not None:
            _set(options, "prefetch_factor", "prefetch_batches", _prefetch_batches(prefetch_factor, options.get("threads", 1)))
        if drop_last is not None:
            _set(options, "drop_last", "last_batch", "drop" if drop_last else "keep")
        self._not_applied = {}
        if pin_memory:
            self._not_applied["pin_memory"] = "batches lie in ordinary memory: headrace runs on CPUs only so far"
        if not persistent_workers:
            self._not_applied["persistent_workers"] = "threads wait from epoch to epoch and cost nothing meanwhile"
        super().__init__(source, **options)

    @property
    def not_applied(self) -> dict[str, str]:
        """Keywords that were given and change nothing here, each with the reason."""
        return dict(self._not_applied)

    async def __aiter__(self) -> AsyncIterator[Any]:
        batches = iter(self)
        while (batch := await batches.request()) is not None:
            yield batch


def _prefetch_batches(factor: int | str, threads: int | str) -> int | str:
    if factor in (AUTOTUNE, -1):
        return AUTOTUNE
    if threads in (AUTOTUNE, -1):
        raise InvalidArgumentError(
            f"prefetch_factor is {factor} batches a worker, and num_workers is AUTOTUNE; wanted AUTOTUNE for it, too, or "
            "prefetch_batches, which counts them all")
    if isinstance(factor, str) or isinstance(threads, str):
        raise InvalidArgumentError(f"prefetch_factor is {factor!r} and num_workers {threads!r}; wanted numbers or AUTOTUNE")
    return factor * max(1, threads)


def _set(options: dict[str, Any], given: str, name: str, value: Any) -> None:
    if name in options:
        raise InvalidArgumentError(f"{given} and {name} are the same; wanted one of them")
    options[name] = value
