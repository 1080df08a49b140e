"""What a DataLoader's data set does in processes of other numbers, found on a few samples in worker processes of copies of it."""

from __future__ import annotations

import copy
import copyreg
import itertools
import logging
import pickle
import random
import sys
import time
import types
from typing import Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler, DataLoader, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler)
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ._dataloader import change
from ._state import same_values

_BATCHES, _WIDTH = 4, 4
_ASKED_S = 2.5  # After which no further batch of a question is waited for: the run waits meanwhile.
_PATIENCE_S = 3  # For one batch: 10 s may be lost of a run in all, and this is asked twice.
_OBJECTS_MAX = 256  # Within a data set that are looked at,
_ITEMS_MAX = 16  # and of each container.
# What other processes have as this one has it.
_PASSED_ON = (torch.Tensor, str, bytes, int, float, complex, type(None), list, tuple, set, dict, type, types.FunctionType,
              types.BuiltinFunctionType, types.MethodType, types.ModuleType, logging.Logger)
_PLAIN_SAMPLERS = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class Look(NamedTuple):
    draws: bool  # Samples are drawn from generators of the processes that load them, or nobody can tell.
    bound: str = ""  # Why loading cannot move from this process to workers or back; empty: it can.


def look_at(loader: DataLoader) -> Look:
    """Asks for up to 16 samples of the data set twice, in processes that are forked for it: by two workers, and by one that takes
    itself for the main process; where samples take long, for a batch of 4 at least. The loader, its sampler, the data set and all
    generators of this process stay as they are, and no exception of the data set comes out. Takes two starts of worker processes
    and what they load, some seconds at most unless the data set hangs."""
    if loader.num_workers == 0 and (held := _unshareable(loader.dataset)):
        return Look(True, f"the data set holds a {held}, which processes cannot share")
    indices = _indices(loader)
    if not indices:
        return Look(True, f"the indices that a {type(loader._index_sampler).__name__} gives cannot be tried beforehand")
    needs_init = loader.worker_init_fn is not None and loader.num_workers > 0
    apart = _ask(loader, indices, 2, as_main=False)
    alone = _ask(loader, indices, 1, as_main=not needs_init)
    for found, where in ((apart, "in a worker process"), (alone, "outside of a worker process")):
        if isinstance(found, str):
            return Look(True, f"{where} its data set gives no batch: {found}")
    both = min(len(apart), len(alone))
    draws = (not _is_plain(loader) or any(answer.drew for answer in (*apart, *alone))
             or not same_values([answer.batch for answer in apart[:both]], [answer.batch for answer in alone[:both]]))
    held = next((answer.holds for answer in (*apart, *alone) if answer.holds), "")
    if needs_init:
        return Look(draws, "its worker_init_fn prepares each worker process, and there would be none")
    return Look(draws, f"the data set holds a {held}, which processes cannot share" if held else "")


class _Answer(NamedTuple):
    batch: Any
    drew: bool  # A generator of the process went on.
    holds: str  # What the data set holds now that cannot be shared.


class _Question:
    """What a worker process calls in place of the loader's own functions."""

    def __init__(self, loader: DataLoader, as_main: bool) -> None:
        self._dataset, self._collate, self._as_main = loader.dataset, loader.collate_fn, as_main
        self._init = None if as_main else loader.worker_init_fn

    def begin(self, worker: int) -> None:
        if self._as_main:
            torch_worker._worker_info = None  # As get_worker_info() tells it there.
        elif self._init is not None:
            self._init(worker)
        self._generators = _generators()

    def answer(self, samples: Any) -> _Answer:
        batch = self._collate(samples)
        pickle.dumps(batch)  # What cannot be sent would be lost on the way, and waited for.
        return _Answer(batch, _generators() != self._generators, _unshareable(self._dataset))


def _ask(loader: DataLoader, indices: list[Any], workers: int, *, as_main: bool) -> list[_Answer] | str:
    """The answers, as many as there was time for, or what went wrong."""
    question, asked = _Question(loader, as_main), copy.copy(loader)
    change(asked, num_workers=workers, prefetch_factor=1, persistent_workers=False, pin_memory=False,
           timeout=min(loader.timeout or _PATIENCE_S, _PATIENCE_S), generator=torch.Generator().manual_seed(0),
           worker_init_fn=question.begin, collate_fn=question.answer)
    change(asked, **{"batch_sampler" if loader._auto_collation else "sampler": indices})
    batches, began = None, time.monotonic()
    answers: list[_Answer] = []
    try:
        batches = _MultiProcessingDataLoaderIter(asked)
        for answer in batches:
            answers.append(answer)
            if time.monotonic() - began > _ASKED_S:
                break
        return answers
    except Exception as error:  # noqa: BLE001 - the user's own code; what it raises is the reason that is told.
        name, last = type(error).__name__, (str(error).strip().splitlines() or ["no message"])[-1]
        return last if last.startswith(f"{name}: ") else f"{name}: {last}"
    finally:
        if batches is not None:
            batches._shutdown_workers()


def _is_plain(loader: DataLoader) -> bool:
    """Whether its indices are those of the data set, and drawn from no generator but at the epoch's start."""
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", None)
    return type(batches) in (BatchSampler, type(None)) and type(sampler) in _PLAIN_SAMPLERS


def _indices(loader: DataLoader) -> list[Any]:
    """Of the first samples, in the form in which the loader's sampler gives them; empty: nobody knows them."""
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", None)
    width = max(1, min(loader.batch_size or _WIDTH, _WIDTH))
    try:
        known = sampler.indices if type(sampler) is SubsetRandomSampler else range(len(loader.dataset))
        numbers = [known[i % len(known)] for i in range(_BATCHES * width)] if len(known) > 0 else []
    except (TypeError, NotImplementedError):  # It has no length.
        return []
    if batches is None:
        return numbers[:_BATCHES]
    return [numbers[i:i + width] for i in range(0, len(numbers), width)]


def _generators() -> tuple[Any, ...]:
    """The states of this process's own."""
    states = [torch.get_rng_state().tolist(), random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append([part.tolist() if hasattr(part, "tolist") else part for part in numpy.random.get_state()])
    return tuple(states)


def _unshareable(dataset: Any) -> str:
    """The kind of something that the data set or an object within it holds and that processes cannot share: an open file, a
    connection, a lock. Empty: nothing of the kind was found."""
    waiting, seen = [dataset], {id(dataset)}
    while waiting and len(seen) <= _OBJECTS_MAX:
        for name, value in list(getattr(waiting.pop(0), "__dict__", {}).items()):
            for one in (value, *_first_items(value)):
                if id(one) in seen or isinstance(one, _PASSED_ON) or hasattr(one, "__array_interface__"):
                    continue
                seen.add(id(one))
                waiting.append(one)
                if type(one) in copyreg.dispatch_table:
                    continue
                try:
                    one.__reduce_ex__(2)
                except Exception:  # noqa: BLE001 - whatever it raises, it does not let itself be passed on; the caller tells.
                    return f"{type(one).__name__} (attribute {name})"
    return ""


def _first_items(value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple, set, dict)):
        return []
    return list(itertools.islice(value.values() if isinstance(value, dict) else value, _ITEMS_MAX))
