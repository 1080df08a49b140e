"""hr.watch: where the time of a foreign training loop goes."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import signal
import threading
import types
from types import TracebackType
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import _core
from ._device import batch_not_on_cpu, module_not_on_cpu, not_on_cpu
from ._loader import Loader
from ._loader_class import InPlaceOf
from ._pipeline import OptimizedLoader
from ._trace_choice import checked_choice
from ._watch_figures import WatchFigures
from ._watched import Watched
from .errors import Error, InvalidArgumentError


class watch(Watched):
    """Watches a training loop that stands inside it, without any other change to it:

        with hr.watch(model, optimizer, loader) as seen:
            for batch in loader:
                ...
        print(seen.summary())

    What is left out is found: any module's outermost call, any optimizer's step, any DataLoader or headrace.Loader. A step is
    divided into data_wait (what next() of the loader takes), forward (from the model's call to backward, the loss included),
    backward, optimizer (step()) and other. Forward without gradients is evaluation and belongs to no step. wall_split divides
    the whole block, steps or not. A loader of another
    kind cannot be hooked, nor batches that another thread loads, as for request(): a step then begins with its forward, and the
    wait for data lies in other, or in no step at all.

    Everything that is hooked is as before at the end of the block, also after an exception. One watch at a time, for
    the thread that entered it. After the block: verdict, split, wall_split, waits, diagnosis, findings, memory, memory_by_class,
    summary(), write_report().

    For the verdict, what a DataLoader's data set and collate_fn take is timed, in its forked workers, too; in every sixteenth batch of
    each, Python's profiling hook finds out what of it is reading, decoding and transforming, unless somebody else has that hook. The
    machine's peaks are measured the first time that a result is asked for (half a second), and kept in the user's cache folder.

    flights: a folder, into which the spans of the last minute (of 64 MiB at most) are written as a Chrome trace,
    flight-NN-REASON.json: at a step that takes 3 times the median, once a minute; when an exception leaves the block; on SIGUSR2,
    where the main thread watches; by dump(). The loop does not wait for the first and the third. 16 files at most.

    names, every_steps, from_s, length_s: as hr.Trace has them, for all that is recorded beside the parts above, which are always there:
    spans of hr.span(), of headrace's loaders, of others. A step's number is the watch's count of steps, from 0. Where something is left
    out, waits are unavailable.

    Where a model, an optimizer's parameters or a batch lie on another device than the CPU, nothing waits for that device: the
    times are the host's, above which the reports say so (host_time), and there is no diagnosis.
    """

    _EVENTS = 1 << 16  # The newest of each thread.

    def __init__(self, model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None,
                 loader: Any = None, *, title: str = "training loop", flights: str | pathlib.Path | None = None,
                 names: Sequence[str] = (), every_steps: int = 1, from_s: float = 0.0, length_s: float = 0.0) -> None:
        if model is not None and not isinstance(model, nn.Module):
            raise InvalidArgumentError(f"watch: model: wanted a torch.nn.Module, found {type(model).__name__}")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"watch: optimizer: wanted a torch.optim.Optimizer, found {type(optimizer).__name__}")
        if flights is not None and not isinstance(flights, (str, os.PathLike)):
            raise InvalidArgumentError(f"watch: flights: wanted the path of a folder, found {type(flights).__name__}")
        self._model, self._optimizer, self._loader, self._title = model, optimizer, loader, title
        self._flights = flights
        self._choice = checked_choice("watch", names, every_steps, from_s, length_s)
        self._undo: list[Callable[[], Any]] = []
        self._watch: _core.LoopWatch | None = None
        self._depth = 0
        self._figures: WatchFigures | None = None
        self._on_host_alone = False
        self._command = ""  # Of whoever runs a whole script.
        self._known: set[int] = set()  # Ids of modules and optimizers, all of them held by the native half.
        self._looks_at_batch = True  # Whether the next batch's device is looked at: the first of each epoch.
        self._found: tuple[dict[str, Any], str, str] | None = None

    def __enter__(self) -> watch:
        if self._watch is not None:
            raise InvalidArgumentError("watch: wanted a new watch, found one that has been used")
        self._watch = _core.LoopWatch(self._EVENTS, **self._choice)
        self._figures = WatchFigures(self._watch)
        try:
            if self._flights is not None:
                by_main = threading.current_thread() is threading.main_thread()
                self._watch.record_flights(os.fspath(self._flights), int(signal.SIGUSR2) if by_main else 0)
            if self._optimizer is not None:
                self._meet_optimizer(self._optimizer)
            self._hook_model()
            self._hook_backward()
            self._hook_optimizer()
            self._undo += self._figures.hook()
            self._hook_loader()
        except BaseException:
            self._unhook()
            self._watch.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._unhook()
        assert self._watch is not None
        if kind is not None and self._flights is not None:
            with contextlib.suppress(Error):  # The exception under way is what matters.
                self._watch.dump(f"exception {kind.__name__}")
        self._watch.stop()
        self._figures.tell()

    def _is_new(self, known: Any) -> bool:
        if id(known) in self._known:
            return False
        self._known.add(id(known))
        return True

    def _meet_model(self, module: nn.Module) -> None:
        """At its first call: by then it lies where it is trained."""
        if self._is_new(module):
            self._watch.add_model(module)
            self._look_at_device(module_not_on_cpu(module))

    def _meet_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._is_new(optimizer):
            self._watch.add_optimizer(optimizer)
            self._figures.add_optimizer(optimizer)
            self._look_at_device(not_on_cpu(
                ("a parameter", parameter) for group in optimizer.param_groups for parameter in group["params"]))

    def _look_at_device(self, found: str | None) -> None:
        if found is not None:
            self._on_host_alone = True
            self._watch.time_host_alone()

    def _unhook(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _hook_model(self) -> None:
        seen = self._watch

        def before(module: nn.Module, args: Any) -> None:
            self._depth += 1
            if self._depth == 1:
                if torch.is_grad_enabled():
                    self._meet_model(module)
                    self._figures.call_begins(module)
                seen.forward_begins(torch.is_grad_enabled())

        def after(module: nn.Module, args: Any, result: Any) -> None:
            self._depth -= 1
            if self._depth == 0:
                self._figures.call_ends()
                seen.forward_ends(torch.is_grad_enabled())

        if self._model is not None:
            hooks = [self._model.register_forward_pre_hook(before, prepend=True),
                     self._model.register_forward_hook(after, always_call=True)]
        else:
            hooks = [nn.modules.module.register_module_forward_pre_hook(before),
                     nn.modules.module.register_module_forward_hook(after, always_call=True)]
        self._undo += [hook.remove for hook in hooks]

    def _hook_backward(self) -> None:
        seen, plain = self._watch, torch.autograd.backward

        @functools.wraps(plain)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._depth = 0  # A forward that was interrupted has not counted down.
            seen.backward_begins()
            try:
                return plain(*args, **kwargs)
            finally:
                seen.backward_ends()

        torch.autograd.backward = backward
        self._undo.append(lambda: setattr(torch.autograd, "backward", plain))

    def _hook_optimizer(self) -> None:
        if self._optimizer is not None:
            self._wrap_step(self._optimizer)
            return
        # Torch's hooks run inside its own bookkeeping of a step, a tenth of a small step. They only find the optimizer.
        seen, begun = self._watch, set()

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if not hasattr(optimizer.step, "_headrace_watched"):
                begun.add(id(optimizer))
                seen.optimizer_begins()

        def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) in begun:
                begun.discard(id(optimizer))
                self._meet_optimizer(optimizer)
                seen.optimizer_ends()
                self._wrap_step(optimizer)

        hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        self._undo += [hook.remove for hook in hooks]

    def _wrap_step(self, optimizer: torch.optim.Optimizer) -> None:
        seen = self._watch
        own = optimizer.__dict__.get("step")  # A learning rate scheduler leaves one.
        plain = optimizer.step
        on = True

        # A method, because a scheduler that is built inside the block asks for its function.
        @functools.wraps(getattr(plain, "__func__", plain))
        def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not on:  # Held by such a scheduler after the block.
                return plain(*args, **kwargs)
            seen.optimizer_begins()
            try:
                return plain(*args, **kwargs)
            finally:
                seen.optimizer_ends()

        step._headrace_watched = True  # type: ignore[attr-defined]
        ours = types.MethodType(step, optimizer)
        optimizer.step = ours

        def undo() -> None:
            nonlocal on
            on = False
            if optimizer.__dict__.get("step") is not ours:
                return
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own

        self._undo.append(undo)

    def _hook_loader(self) -> None:
        only = self._loader.loader if isinstance(self._loader, OptimizedLoader) else self._loader

        def marked(begun: Any) -> Any:
            begun._headrace_watched = True
            return begun

        self._hook_epochs(DataLoader, only, marked)
        self._hook_epochs(Loader, only, functools.partial(_SeenEpoch, self))
        plain_next = _BaseDataLoaderIter.__next__

        @functools.wraps(plain_next)
        def next_batch(begun: _BaseDataLoaderIter) -> Any:
            if only is not None and not getattr(begun, "_headrace_watched", False):
                return plain_next(begun)
            return self._next_batch(lambda: plain_next(begun))

        _BaseDataLoaderIter.__next__ = next_batch
        self._undo.append(lambda: setattr(_BaseDataLoaderIter, "__next__", plain_next))

    def _hook_epochs(self, kind: type, only: Any, seen: Callable[[Any], Any]) -> None:
        """Of loaders of this kind, or of the one alone: `seen` makes of an epoch's iterator one whose batches are seen."""
        plain_iter = kind.__iter__
        own = vars(kind).get("__iter__")

        @functools.wraps(plain_iter)
        def begin(loader: Any) -> Any:
            if only is not None and loader is not only:
                return plain_iter(loader)
            self._watch.epoch_begins()
            self._looks_at_batch = True
            with self._figures.begins(loader):
                return seen(plain_iter(loader))

        kind.__iter__ = begin
        self._undo.append(lambda: delattr(kind, "__iter__") if own is None else setattr(kind, "__iter__", own))

    def _next_batch(self, take: Callable[[], Any]) -> Any:
        self._watch.data_begins()
        batch = None
        try:
            batch = take()
            return batch
        finally:
            self._watch.data_ends(batch)
            if self._looks_at_batch and batch is not None:
                self._looks_at_batch = False
                self._look_at_device(batch_not_on_cpu(batch))


class _SeenEpoch(InPlaceOf):
    """An epoch of a headrace.Loader, whose iterator's class is native and takes no hook."""

    def __init__(self, watching: watch, batches: Any) -> None:
        super().__init__(batches)
        self._watching = watching

    def __next__(self) -> Any:
        if not self._watching._undo:  # The block has ended, the epoch has not.
            return next(self._batches)
        return self._watching._next_batch(self._batches.__next__)
