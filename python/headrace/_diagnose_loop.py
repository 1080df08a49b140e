"""hr.diagnose_loop: which resource a loop runs out of first, found by differential runs on the user's own objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from . import _core
from ._diagnosis import Diagnosis
from ._garbage import watch_garbage
from ._loading_stages import Loading, LoadingStages, read_seconds
from ._pipeline import OptimizedLoader
from ._step_work import ModelFlops, matrix_product, seconds_between_operators, update_work
from ._subject import Subject
from .errors import InvalidArgumentError

_STEPS_MIN = 5
_SAMPLES_READ = 16


class DiagnosedLoop(Subject):
    """A Subject that can also tell what loading, a step and the machine take and can do: what python_job.h asks it for."""

    def __init__(self, model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, forward: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__(model, loader, optimizer, forward, run_steps=None, budget_s=0.0)
        self.multiply = matrix_product()
        self._stages = LoadingStages()
        self._garbage_s = 0.0
        self._undo: list[Callable[[], Any]] = []

    def __enter__(self) -> DiagnosedLoop:
        self._undo.append(self._stages.hook())
        self._undo.append(watch_garbage(self._add_garbage))
        return self

    def __exit__(self, *raised: Any) -> None:
        while self._undo:
            self._undo.pop()()
        self._stages.forget()
        self.give_back()

    def new_epoch(self) -> Iterator[Any]:
        with self._stages.begins(self._epoch_loader):
            return super().new_epoch()

    def loading_totals(self) -> Loading | None:
        return self._stages.found()

    def garbage_s(self) -> float:
        return self._garbage_s

    def read_times(self) -> tuple[float, float] | None:
        """Seconds that reading some of the last samples takes the first time, and again; they are those that few steps rarely reach. None:
        there are no such samples, or nothing is read."""
        loader = self.loader
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.worker_init_fn is not None:
            return None
        count = len(loader.dataset) if hasattr(loader.dataset, "__len__") else 0
        indices = range(count - 1, max(-1, count - 1 - _SAMPLES_READ), -1)
        try:
            first = read_seconds(loader.dataset, indices)
            again = read_seconds(loader.dataset, indices)
        finally:
            self.restore()
        return (first, again) if first and again is not None else None

    def step_work(self, batch: Any) -> tuple[float | None, str, int | None, int, float | None]:
        """Of forwards and backwards on this batch, after which all is as it was."""
        flops = ModelFlops()
        update_bytes, tensors = update_work([self.optimizer])  # Here the optimizer has its state.
        flops.call_begins(self.model)
        try:
            self.gradients(batch)
            flops.call_ends()
            between_s = seconds_between_operators(lambda: self.gradients(batch))
        finally:
            flops.call_ends()
            self.restore()
        return flops.per_step(1), flops.why_not, update_bytes, tensors, between_s

    def _add_garbage(self, seconds: float) -> None:
        self._garbage_s += seconds


def diagnose_loop(model: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, forward: Callable[[nn.Module, Any], Any], *,
                  steps: int = 40, budget_s: float = 30.0) -> Diagnosis:
    """Which resource a training loop runs out of first (storage, decode, augment, collate, transfer, compute, optimizer, python,
    synchronisation, memory, cores, imbalance), how sure that is, what it costs, and what the loop would gain without it. The loop is
    zero_grad, forward, backward and step on these objects.

    model, loader, optimizer, forward: as for hr.tune. Traces `steps` steps; then differential runs show what a step takes with one
    cached batch in the place of the data, and with a sleep in the place of compute, in some `budget_s` seconds: fewer steps are taken
    where they would take longer. The machine's peaks are measured once and kept in the user's cache folder.

    Afterwards parameters, buffers, gradients, optimizer state, modes and generators are bit for bit what they were, also when this
    raises. "resources" of the result is the verdict, as hr.watch.verdict describes it. Everything must be on the CPU: UnsupportedError
    names what is not.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < _STEPS_MIN:
        raise InvalidArgumentError(f"diagnose_loop: steps: wanted a whole number of at least {_STEPS_MIN}, found {steps!r}")
    if isinstance(budget_s, bool) or not isinstance(budget_s, (int, float)) or not budget_s > 0:
        raise InvalidArgumentError(f"diagnose_loop: budget_s: wanted a number above 0, found {budget_s!r}")
    if isinstance(loader, OptimizedLoader):
        loader = loader.loader
    with DiagnosedLoop(model, loader, optimizer, forward) as loop:
        found: Mapping[str, Any] = json.loads(_core.diagnose_objects(loop, steps, float(budget_s)))
    return Diagnosis(found["diagnosis"], found["time_split"])
