"""A loader by itself, with a sleep in the place of compute: what of a wait for data is the loader's own."""

from __future__ import annotations

import statistics
import time
from typing import Any

from torch.utils.data import DataLoader

from ._dataloader import epoch_of
from ._state import Generators
from .errors import InvalidArgumentError

COUNTED_MIN = 5
_END = object()


def idle_wait(loader: Any, compute_s: float, steps: int) -> float:
    """Mean seconds that a step of a new epoch waits for its batch while `compute_s` of sleep take the place of all else, behind the batches
    that are loaded ahead. InvalidArgumentError: the epoch is too short for that. The generators of torch, Python, NumPy and the loader are
    put back."""
    ahead = 1 + (loader.num_workers * (loader.prefetch_factor or 0) if isinstance(loader, DataLoader) else 0)
    kept = Generators(loader)
    try:
        waits = _waits(loader, compute_s, ahead + steps)
    finally:
        kept.restore()
    if len(waits) - ahead < COUNTED_MIN:
        raise InvalidArgumentError(f"watch: confirm: wanted an epoch of at least {ahead + COUNTED_MIN} batches, found {len(waits)}")
    return statistics.fmean(waits[ahead:])


def _waits(loader: Any, compute_s: float, steps: int) -> list[float]:
    waits: list[float] = []
    batches = epoch_of(loader)
    while len(waits) < steps:
        began = time.perf_counter()
        if next(batches, _END) is _END:
            break
        waits.append(time.perf_counter() - began)
        time.sleep(compute_s)
    return waits
