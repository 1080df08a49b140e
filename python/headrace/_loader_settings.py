"""Settings of a headrace.Loader that change no byte, switched while a run goes on. Its cache is none of them: it pays in the
epochs after it was filled, which pairs of a few steps do not show."""

from __future__ import annotations

import json
from typing import Any, Mapping

from ._loader import AUTOTUNE, Loader
from .errors import UnsupportedError

NUM_WORKERS = "data.num_workers"  # Of a DataLoader processes; of a headrace.Loader threads, or processes by worker_type.
PREFETCH = "data.prefetch_batches"


class LoaderSettings:
    """Workers and prefetch of a headrace.Loader, by the keys of their knobs."""

    def __init__(self, loader: Loader, caller: str) -> None:
        """caller: what its errors begin with."""
        self._loader, self._caller = loader, caller
        options = loader.options
        self.written: dict[str, Any] = {NUM_WORKERS: options["num_workers"], PREFETCH: options["prefetch_batches"]}

    def apply(self, settings: Mapping[str, str]) -> None:
        """TOML texts; what is not named is as it was when this was made. headrace.Error where one cannot be: what was applied
        until then stays, and the caller applies what held before."""
        wanted = {key: json.loads(settings[key]) if key in settings else value for key, value in self.written.items()}
        now = self._loader.options
        if wanted[NUM_WORKERS] != now["num_workers"]:
            self._loader.set_num_workers(wanted[NUM_WORKERS])
        if wanted[PREFETCH] != now["prefetch_batches"]:
            self._loader.set_prefetch_batches(wanted[PREFETCH])
        for key, requested, applied, reason in self._loader.applied:
            if key in settings and wanted.get(key, AUTOTUNE) != AUTOTUNE and applied != requested:
                raise UnsupportedError(f"{self._caller}: {key} stays {applied}: {reason}")
