"""Where one update of a user's loop ends and the next begins, and which updates may be compared by their times."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from . import _core
from ._inert_hook import InertHook
from ._loader_epochs import LoaderEpochs
from ._seen_calls import SeenCalls
from .errors import InvalidArgumentError

_BEGUN, _UNIT, _FOLLOWED = 1, 2, 3  # What the end of a step led to (src/python/core/loop_units_object.h).


class Unit(NamedTuple):
    """From one update to the next (LiveUnit of include/headrace/live_loop.h). Units follow each other without a gap."""

    seconds: float  # From post hook to post hook: with all that before_update(), and on_unit() at its beginning, took.
    work: float  # Numbers in the inputs of the models' calls with gradients; 1.0 where there were none.
    wait_s: float  # Of the seconds, waiting for the loader; 0.0 where the loader cannot be watched.
    countable: bool
    why_not: str  # Where it is not: "evaluation", "an epoch began", "4 micro-batches, not 8".


class Boundary:
    """Finds the boundaries between updates of a user's loop, and tells what lies between two of them.

    models: modules; optimizers: torch's own, none that wraps another; loader: what the loop takes batches from, or None. An
    update ends in the step post hook of the optimizer that steps last in an iteration (src/insight/tune/update_cycle.h); the
    first one that is seen begins the first unit. Several optimizers are watched for at least 12 steps before the first unit.

    on_unit(unit) is called at the end of each update but that first one; `updates` counts it already. before_update() is called
    once an update, when its gradients are complete: in the step pre hook, or behind the first evaluation of the closure that
    step() was given. Either may call remove(). What they do with models and optimizers is not taken for the loop's. Their
    exceptions come out of the user's step().

    A unit counts if it is of the usual kind: as many epochs begun and ended, evaluations, checkpoints, micro-batches and steps
    as in most of the last 32. A model that nobody calls as a whole (`model.loss(batch)`) is seen by the calls of its parts.

    The thread of the first step is the loop's, and calls all of this. A step in another thread is told as `problem`, from when on
    no unit counts. Costs some tens of microseconds an update, and fewer while a tuner follows; nothing after remove(). Compiled
    code that calls a model or a step() stays whole, and nothing in it is seen. Calls are seen without a hook where that can be
    (SeenCalls).
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], loader: Any, *,
                 on_unit: Callable[[Unit], None], before_update: Callable[[], None],
                 on_followed: Callable[[Exception | None], None] | None = None, on_begin: Callable[[], None] | None = None,
                 clock: Callable[[], float] = time.perf_counter, epochs: LoaderEpochs | None = None, updates: int = 0) -> None:
        """on_followed: follow() needs it. on_begin: called where the first unit begins, if call_back() was called before. clock:
        monotonic seconds. epochs: the loader's, where it watches them already. updates: that the loop has made before."""
        self._models, self._optimizers = list(models), list(optimizers)
        self._on_unit, self._before_update, self._on_followed, self._on_begin = on_unit, before_update, on_followed, on_begin
        self.clock = clock
        self._epochs = epochs or LoaderEpochs(loader, clock)
        self._epochs.clock = clock
        self._updates_before = updates
        self.native = _core.LoopUnits(len(self._optimizers), self._epochs.counts, updates)
        self._is_installed = False
        self._handles: list[RemovableHandle] = []
        self._seen = SeenCalls(self.native, ())
        self.hooked: dict[str, str] = {}  # As SeenCalls has it, of all that were looked at.
        self._has_asked = False  # For the update at hand.

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
                    if isinstance(module, torch.jit.ScriptModule):
                        break  # It takes no hooks.
                    self._handles.append(module.register_state_dict_pre_hook(InertHook(self._see_checkpoint)))
            self._watch_calls_of(_outermost(self._models))
            self._epochs.watch()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Takes every hook away; the objects are as they were. What was found stays. May be called again, and from on_unit() and
        before_update(), but not from a step hook of another's: torch forbids removing others while it goes through them."""
        self._is_installed = False
        self.native.interrupt()
        self.follow(None)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._seen.remove()
        self._epochs.release()

    def follow(self, tuner: _core.LiveTuner | None, ended: dict[str, str] | None = None) -> None:
        """From the next unit on `tuner` is told of units without a call of on_unit(), which goes on where call_back() was
        called, where the dict `ended` has changed its size, and where there is a problem. on_followed(None) is called behind a
        unit that lets the tuner want a call kept, or be over, or that call_back() was called in; on_followed(error) where the
        tuner raised. None: on_unit() is called again."""
        self.native.follow(tuner, {} if ended is None else ended)

    def ask_before_updates(self, wanted: bool) -> None:
        """Whether before_update() is called. It is until this says otherwise."""
        self.native.set_asks(wanted)

    def leave_out(self, why: str) -> None:
        """The unit that begins now does not count."""
        self.native.leave_out(why)

    def call_back(self) -> None:
        """At the end of the unit at hand on_unit() or on_followed() is called, whatever it is; before the first one, on_begin() at
        its beginning as well."""
        self.native.call_back()

    @property
    def is_telling(self) -> bool:
        """One of the callbacks, or a tuner that follows, is at work."""
        return self.native.is_telling

    @property
    def thread(self) -> int | None:
        """threading.get_ident() of the first step; None: no step was seen."""
        return self.native.thread

    @property
    def updates(self) -> int:
        return self.native.updates

    @property
    def problem(self) -> str | None:
        """Why nothing can be measured; None: nothing stands against it so far."""
        return self.native.problem or None

    @property
    def loader_refusal(self) -> str:
        """Why epochs and waiting are not seen; empty: they are. Known once it is installed."""
        return self._epochs.refusal

    @property
    def batches_seen(self) -> int:
        return self._epochs.counts.batches

    @property
    def epochs(self) -> int:
        """That were begun."""
        return self._epochs.counts.begun

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
        return self.native.micro_batches

    def updates_left(self, steps: int | None, epochs: int | None) -> int | None:
        """Of a run of so many updates, or of so many epochs, those counted that it has made before. None: unknown. Before two
        updates were seen, each batch is taken for one."""
        if steps is None and epochs is not None:
            an_epoch = self.native.updates_an_epoch or self._expected_updates_an_epoch()
            steps = None if an_epoch is None else epochs * an_epoch
        return None if steps is None else max(0, steps - self.updates)

    def _expected_updates_an_epoch(self) -> int | None:
        batches, micro_batches = self.batches_an_epoch, self.micro_batches
        if micro_batches is None:
            return batches  # As if each were an update.
        if batches is None or micro_batches == 0:
            return None
        if not self._epochs.counts.serves_loop and len(self._models) + len(self._optimizers) > 2:
            return None  # Micro-batches are calls then, of which several models make some for each batch.
        return -(-batches // micro_batches)

    # Hooks.

    def _hook_optimizer(self, number: int, optimizer: torch.optim.Optimizer) -> None:
        before_step, after_step = _BeforeStep(self, number), _AfterStep(self, number)
        before = optimizer.register_step_pre_hook(before_step)
        after = optimizer.register_step_post_hook(after_step)
        before_step.attend(after)
        after_step.attend(before)
        self._handles += [before, after, optimizer.register_state_dict_pre_hook(InertHook(self._see_checkpoint))]
        if sum(isinstance(hook, InertHook) for hook in _hooks_of(after).values()) > 1:
            raise InvalidArgumentError("autotune: optimizer: wanted one that is not tuned yet, found "
                                       f"{type(optimizer).__name__}, which another autotune watches")

    def _watch_calls_of(self, modules: Iterable[nn.Module]) -> None:
        self._seen.remove()
        self._seen = SeenCalls(self.native, modules)
        self.hooked.update(self._seen.hooked)
        self.native.set_looks_for_calls(bool(self._seen.modules))

    def _see_checkpoint(self, *given: Any) -> None:
        self.native.see_checkpoint()

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Of a step with which an update's gradients are complete: what it is to be called with; None: as it was."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self._ask()
            return None

        def evaluate(*given: Any, **named: Any) -> Any:
            loss = closure(*given, **named)
            if not self._has_asked:
                self._ask()
            return loss

        self._has_asked = False
        if len(args) > 1:
            return (args[0], evaluate, *args[2:]), kwargs
        return args, {**kwargs, "closure": evaluate}

    def _ask(self) -> None:
        self._has_asked = True
        if self._is_installed:
            self.native.note_asked()
            self._tell(self._before_update)

    # Units.

    def see_end(self, end: int) -> None:
        native = self.native
        if self._seen.modules and not native.was_called and (native.updates - self._updates_before) % 2 == 0:
            if self._seen.are_hidden:
                native.set_looks_for_calls(False)
            else:
                self._watch_calls_of([part for module in self._seen.modules for part in module.children()])
        if end == _UNIT:
            self._tell(self._on_unit, Unit(*native.unit))
        elif end == _FOLLOWED:
            self._tell_followed(None)
        elif end == _BEGUN and self._on_begin is not None:
            self._tell(self._on_begin)

    def see_failure(self, error: Exception) -> None:
        """Of a tuner that follows."""
        self._tell_followed(error)

    def _tell_followed(self, error: Exception | None) -> None:
        assert self._on_followed is not None
        self._tell(self._on_followed, error)

    def _tell(self, callback: Callable[..., None], *given: Any) -> None:
        self.native.is_telling = True
        try:
            callback(*given)
        finally:
            self.native.is_telling = False


class _StepHook(InertHook):
    """Before or behind each step of an optimizer. Each sees to it that the other is behind hooks that were registered later:
    theirs is part of the update, and torch, which walks through the dictionary itself, lets only the last one be removed while it
    is called. The native call does so, in the loop's own thread, without a function of Python's in between."""

    def __init__(self, boundary: Boundary, number: int) -> None:
        self._boundary, self._number = boundary, number  # Which holds `native` for its functions' sake.
        _, self._begin_step, self._end_step = boundary.native.hooks

    def attend(self, other: RemovableHandle) -> None:
        self._put_other_last = functools.partial(_hooks_of(other).move_to_end, other.id)


class _BeforeStep(_StepHook):
    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...],
                 kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if is_dynamo_compiling():
            return None
        is_asked_for = self._begin_step(self._number, self._put_other_last)
        return self._boundary.ask(args, kwargs) if is_asked_for else None


class _AfterStep(_StepHook):
    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if is_dynamo_compiling():
            return
        now_s = self._boundary.clock()
        try:
            end = self._end_step(self._number, now_s, self._put_other_last)
        except Exception as error:  # noqa: BLE001 - of a tuner that follows: who lets it follow decides.
            self._boundary.see_failure(error)
        else:
            if end:
                self._boundary.see_end(end)


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


def _hooks_of(handle: RemovableHandle) -> Any:
    """The dictionary that a hook stands in, which its object holds."""
    hooks = handle.hooks_dict_ref()
    assert hooks is not None
    return hooks
