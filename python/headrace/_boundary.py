"""Where one update of a user's loop ends and the next begins, and which updates may be compared by their times."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ._inert_hook import InertHook
from ._loader_epochs import LoaderEpochs
from ._state import tensors_in
from ._update_cycle import UpdateCycle
from ._update_kind import UpdateKind, UsualKind
from .errors import InvalidArgumentError

_EPOCHS_WITHOUT_UPDATE = 3  # That many, and the loop is none that updates.


@dataclass(frozen=True)
class Unit:
    """From one update to the next (LiveUnit of include/headrace/live_loop.h). Units follow each other without a gap."""

    seconds: float  # From post hook to post hook: with all that before_update(), and on_unit() at its beginning, took.
    work: float  # Numbers in the inputs of the models' calls with gradients; 1.0 where there were none.
    wait_s: float  # Of the seconds, waiting for the loader; 0.0 where the loader cannot be watched.
    countable: bool
    why_not: str  # Where it is not: "evaluation", "an epoch began", "4 micro-batches, not 8".


class Boundary:
    """Finds the boundaries between updates of a user's loop, and tells what lies between two of them.

    models: modules; optimizers: torch's own, none that wraps another; loader: what the loop takes batches from, or None. An
    update ends in the step post hook of the optimizer that steps last in an iteration (UpdateCycle); the first one that is
    seen begins the first unit. Several optimizers are watched for at least 12 steps before the first unit.

    on_unit(unit) is called at the end of each update but that first one; `updates` counts it already. before_update() is called
    once an update, when its gradients are complete: in the step pre hook, or behind the first evaluation of the closure that
    step() was given. Either may call remove(). What they do with models and optimizers is not taken for the loop's. Their
    exceptions come out of the user's step().

    A unit counts if it is of the usual kind: as many epochs begun and ended, evaluations, checkpoints, micro-batches and steps
    as in most of the last 32. A model that nobody calls as a whole (`model.loss(batch)`) is seen by the calls of its parts.

    The thread of the first step is the loop's, and calls all of this. A step in another thread is told as `problem`, from when on
    no unit counts. Costs some microseconds an update and a call of a model, nothing after remove(). Compiled code that calls a
    model or a step() stays whole, and nothing in it is seen.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], loader: Any, *,
                 on_unit: Callable[[Unit], None], before_update: Callable[[], None],
                 clock: Callable[[], float] = time.perf_counter, epochs: LoaderEpochs | None = None) -> None:
        """clock: monotonic seconds. epochs: the loader's, where it watches them already."""
        self._models, self._optimizers = list(models), list(optimizers)
        self._on_unit, self._before_update, self._clock = on_unit, before_update, clock
        self._epochs = epochs or LoaderEpochs(loader, clock)
        self._epochs.clock = clock
        self._cycle = UpdateCycle(len(self._optimizers))
        self._usual = UsualKind()
        self.thread: int | None = None  # threading.get_ident() of the first step; None: no step was seen.
        self.updates = 0
        self._problem: str | None = None
        self._updates_before_epoch = 0
        self._updates_an_epoch: int | None = None  # As the last epoch had them.
        self._is_installed = False
        self._handles: list[RemovableHandle] = []
        self._step_handles: list[tuple[RemovableHandle, RemovableHandle]] = []  # Of each optimizer, pre and post.
        self._called: list[nn.Module] = []  # Modules whose calls are seen.
        self._call_handles: list[RemovableHandle] = []
        self._was_called = False  # One of them was.
        self._is_stepping = self._is_telling = False
        self._since: float | None = None  # End of the update before; None: none was seen since install().
        self._begin_unit()

    def install(self) -> None:
        """Hangs hooks on the objects. InvalidArgumentError where another Boundary hangs on the same optimizer or loader, and then
        nothing is left behind. Nothing is done where it is installed already."""
        if self._is_installed:
            return
        self._is_installed = True
        try:
            for number, optimizer in enumerate(self._optimizers):
                self._hook_optimizer(number, optimizer)
            for model in self._models:
                for module in _with_only_children(model):  # Those who save what a wrapper holds ask that alone.
                    self._handles.append(module.register_state_dict_pre_hook(InertHook(self._see_checkpoint)))
            self._watch_calls_of(_outermost(self._models))
            self._epochs.watch()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Takes every hook away; the objects are as they were. What was found stays. May be called again, and from on_unit() and
        before_update(), but not from a step hook of another's: torch forbids removing others while it goes through them."""
        self._is_installed = self._is_stepping = False
        self._since = None
        for handle in (*self._handles, *self._call_handles, *(handle for pair in self._step_handles for handle in pair)):
            handle.remove()
        self._handles, self._call_handles, self._step_handles, self._called = [], [], [], []
        self._epochs.release()

    @property
    def problem(self) -> str | None:
        """Why nothing can be measured; None: nothing stands against it so far."""
        if self.thread is None:
            epochs = max(self._epochs.ended, self._epochs.begun - 1)
            return f"no update in {_EPOCHS_WITHOUT_UPDATE} epochs" if epochs >= _EPOCHS_WITHOUT_UPDATE else None
        return self._problem or self._cycle.problem or self._epochs.problem

    @property
    def loader_refusal(self) -> str:
        """Why epochs and waiting are not seen; empty: they are. Known once it is installed."""
        return self._epochs.refusal

    @property
    def batches_seen(self) -> int:
        return self._epochs.batches

    @property
    def epochs(self) -> int:
        """That were begun."""
        return self._epochs.begun

    @property
    def batches_an_epoch(self) -> int | None:
        """As the last whole epoch had them, or as the loader says; None: unknown."""
        return self._epochs.length

    @property
    def queue(self) -> int:
        """Batches that the loader holds ready at most, where it is a DataLoader; 0 of others."""
        return self._epochs.queue

    @property
    def micro_batches(self) -> int | None:
        """In an update, usually; None: not known yet."""
        return None if self._usual.kind is None else self._usual.kind.micro_batches

    def updates_left(self, steps: int | None, epochs: int | None) -> int | None:
        """Of a run of so many updates, or of so many epochs, all counted from install() on. None: unknown. Before
        two updates were seen, each batch is taken for one."""
        if steps is None and epochs is not None:
            an_epoch = self._updates_an_epoch or self._expected_updates_an_epoch()
            steps = None if an_epoch is None else epochs * an_epoch
        return None if steps is None else max(0, steps - self.updates)

    def _begin_unit(self) -> None:
        self._steps = self._calls = self._evaluations = self._checkpoints = self._failures = self._work = 0
        self._has_called_in_step = self._has_asked = False

    def _expected_updates_an_epoch(self) -> int | None:
        batches, micro_batches = self.batches_an_epoch, self.micro_batches
        if micro_batches is None:
            return batches  # As if each were an update.
        if batches is None or micro_batches == 0:
            return None
        if not self._epochs.serves_loop and len(self._models) + len(self._optimizers) > 2:
            return None  # Micro-batches are calls then, of which several models make some for each batch.
        return -(-batches // micro_batches)

    # Hooks.

    def _hook_optimizer(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        before = optimizer.register_step_pre_hook(InertHook(partial(self._before_step, number)))
        after = optimizer.register_step_post_hook(InertHook(partial(self._after_step, number)))
        self._step_handles.append((before, after))
        self._handles.append(optimizer.register_state_dict_pre_hook(InertHook(self._see_checkpoint)))
        if sum(isinstance(hook, InertHook) for hook in _hooks_of(after).values()) > 1:
            raise InvalidArgumentError("autotune: optimizer: wanted one that is not tuned yet, found "
                                       f"{type(optimizer).__name__}, which another autotune watches")

    def _watch_calls_of(self, modules: Iterable[nn.Module]) -> None:
        self._called = list(modules)
        self._call_handles = [module.register_forward_pre_hook(InertHook(self._see_call), with_kwargs=True)
                              for module in self._called]

    def _see_call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._was_called = True
        if torch.compiler.is_compiling() or self._is_telling:  # In this order: a trace of this hook is empty, and reads nothing.
            return
        has_gradients = torch.is_grad_enabled()
        if has_gradients:
            self._work += _numbers_in(args, kwargs)
        if not has_gradients or not module.training:
            self._evaluations += 1
        elif self._is_stepping:
            self._has_called_in_step = True
        else:
            self._calls += 1

    def _see_checkpoint(self, *given: Any) -> None:
        if not self._is_telling:
            self._checkpoints += 1

    def _before_step(self, number: int, optimizer: torch.optim.Optimizer, args: tuple[Any, ...],
                     kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch.compiler.is_compiling() or self._is_telling or not self._is_loops_thread():
            return None
        if self._is_stepping:  # The step before raised; or this is one of torch's that a step of the user's own calls.
            self._failures += 1
        self._is_stepping = True
        _make_last(self._step_handles[number][1])
        if self._has_asked or not self._cycle.ends_with(number):
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._ask()
            return None

        def evaluate(*given: Any, **named: Any) -> Any:
            loss = closure(*given, **named)
            self._ask()
            return loss

        if len(args) > 1:
            return (args[0], evaluate, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate}

    def _after_step(self, number: int, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or self._is_telling or not self._is_stepping or threading.get_ident() != self.thread:
            return
        now = self._clock()
        self._is_stepping = False
        self._steps += 1
        _make_last(self._step_handles[number][0])
        ended = self._cycle.step(number, self._epochs.own_batches)
        self.updates += ended
        if self._cycle.has_ended:
            self._end_unit(now, ended)

    def _is_loops_thread(self) -> bool:
        here = threading.get_ident()
        if self.thread is None:
            self.thread = self._epochs.thread = here
        elif here != self.thread:
            self._problem = "the optimizer steps in two threads"
        return here == self.thread

    # Units.

    def _ask(self) -> None:
        if self._is_installed and not self._has_asked:
            self._has_asked = True
            self._tell(self._before_update)

    def _end_unit(self, now: float, ended: int) -> None:
        taken = self._epochs.take()
        if taken.begun:
            self._note_epoch(self.updates - ended)
        micro_batches = taken.batches or self._calls + self._has_called_in_step
        kind = UpdateKind(taken.begun, taken.ended, self._evaluations, self._checkpoints, self._failures + taken.failed,
                          micro_batches, self._steps)
        since, self._since = self._since, now
        work = float(self._work or 1)
        self._begin_unit()
        if not self._was_called and self._called and self.updates % 2 == 0:
            self._look_into_parts()
        if since is None:
            return
        unlike = self._usual.unlike(kind)
        why_not = self.problem or unlike
        self._tell(self._on_unit, Unit(now - since, work, taken.wait_s, not why_not, why_not))

    def _note_epoch(self, updates: int) -> None:
        """An epoch has begun after so many updates. One without updates, as for an evaluation, is none of the training's."""
        if updates > self._updates_before_epoch:
            self._updates_an_epoch = updates - self._updates_before_epoch
            self._updates_before_epoch = updates

    def _look_into_parts(self) -> None:
        parts = [part for module in self._called for part in module.children()]
        for handle in self._call_handles:
            handle.remove()
        self._watch_calls_of(parts)

    def _tell(self, callback: Callable[..., None], *given: Any) -> None:
        self._is_telling = True
        try:
            callback(*given)
        finally:
            self._is_telling = False


def _outermost(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Without those that are part of another one, each once."""
    parts = {part for model in models for part in model.modules() if part is not model}
    return [model for model in dict.fromkeys(models) if model not in parts]


def _with_only_children(model: nn.Module) -> Iterator[nn.Module]:
    """A model, and what a wrapper as DistributedDataParallel or a compiled module holds."""
    inside = [model]
    while len(inside) == 1:
        yield inside[0]
        inside = list(inside[0].children())


def _numbers_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    if len(args) == 1 and not kwargs and isinstance(args[0], torch.Tensor):
        return args[0].numel()
    return sum(tensor.numel() for tensor in tensors_in([args, kwargs]))


def _hooks_of(handle: RemovableHandle) -> Any:
    """The dictionary that a hook stands in, which its object holds."""
    hooks = handle.hooks_dict_ref()
    assert hooks is not None
    return hooks


def _make_last(handle: RemovableHandle) -> None:
    """Behind hooks that were registered later: theirs is part of the update, and torch, which walks through the dictionary
    itself, lets only the last one be removed while it is called."""
    hooks = _hooks_of(handle)
    if next(reversed(hooks)) != handle.id:
        hooks.move_to_end(handle.id)
