"""Settings of a run that goes on: which there are, and how each is switched between two updates and taken back."""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Iterator, Mapping, Sequence

import torch
from torch import nn

from . import _core, _engine_door
from ._forward import CHANNELS_LAST, ForwardSwitch
from ._kept_call import code_of
from ._live_forward import LiveCalls, LiveForward, first_line
from ._live_layout import Layout
from ._live_loader import LiveLoader
from ._live_refusals import refusals
from ._live_saves import PlainSaves
from ._loader_settings import NUM_WORKERS, PREFETCH
from ._settings import COMPILE, FOREACH, FUSED, MEMORY_FORMAT, PRECISION, THREADS, ProcessSettings, UpdateSwitch
from ._strategy import Strategies, StrategyContext
from .errors import Error, InvalidArgumentError, OutOfMemoryError, UnsupportedError

_VALUES: dict[str, tuple[Any, ...]] = {
    PRECISION: ("fp32", "bf16"), MEMORY_FORMAT: ("contiguous", "channels_last"), FUSED: (False, True), FOREACH: (False, True),
    COMPILE: (False, True)}


class LiveKnobs:
    """Applies settings to models, optimizers and a loader between two updates of their run, and takes them back. Settings are
    keys of knobs to TOML texts, as {"optimizer.fused": "true"}; what is not named is as the user wrote it.

    models: those that the loop calls; optimizers: torch's own, none that wraps another; loader: what the loop takes batches from
    (LiveLoader), or None. Each model has a forward of ours on it while one of train.precision, model.memory_format and
    model.compile is in force. Of a loop that does not call a model's own forward (Lightning's training_step,
    `model.training_loss(x)`) the parts that it calls belong among the models; note_calls() finds out where they do not.

    While nothing is in force, nothing hangs on the objects, but for the loader's class from follow() on. Otherwise hooks of the
    models' and optimizers' state_dict() and a __getstate__ of the models see to it that what is saved or copied is as written
    (PlainSaves). A save while channels-last is in force puts the strides back, and the next call of a module in training lays out
    the weights again.

    Evaluation (a call of a model in eval mode without gradients) runs as written, but for the strides.

    apply() and undo() belong between two updates, in the thread that trains. A switch costs some microseconds; of channels-last a
    copy of the weights, their gradients and their state; of settings of the process and the loader what they cost. Values are
    never changed.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer], loader: Any, *,
                 live: LiveLoader | None = None) -> None:
        """Leaves the objects as they are. live: the loader's, where it follows it already."""
        self._models, self._given_loader, self._loader = list(models), loader, live or LiveLoader(loader)
        self._switches = {optimizer: UpdateSwitch(optimizer) for optimizer in optimizers}
        self._process = ProcessSettings("autotune")
        self._calls = LiveCalls()
        self._strategies = Strategies(StrategyContext(tuple(self._models), tuple(optimizers), loader, live=True))
        self._layout = Layout(self._models, list(optimizers), self._layout_failed)
        self._saves = PlainSaves(self._layout)
        make = functools.partial(LiveForward, calls=self._calls)
        self._forwards = {model: ForwardSwitch(model, make) for model in self._models
                          if next(model.parameters(), None) is not None}
        self._refused: dict[str, str] | None = None
        self._passed: set[tuple[Any, ...]] = set()  # What check() has passed, with what had ended by then.
        self._in_force: dict[str, str] = {}

    def offer(self, allow: str, fixed: Sequence[str], only: Sequence[str], steps: int | None) -> _core.Offer:
        """The knob table's candidates that can take turns on these objects, in the order to try them: what the process computes
        with, the data pipeline, the training loop, the model; and of every other knob why not. steps: updates that the run has;
        None: unknown. What `allow` forbids is among them, because the tuner times it; and what is fixed or not in `only`, because
        the tuner tells of it. Takes some tenths of a second, and what LiveLoader.context() takes where another number of worker
        processes is among them."""
        del allow
        self._refused = None  # The objects may have changed since.
        self._passed.clear()
        offered = self._offered(fixed, steps, self._loader.context(fixed=[NUM_WORKERS]))
        if all(candidate.key != NUM_WORKERS for candidate in offered.candidates):
            return offered
        return self._offered(fixed, steps, self._loader.context(fixed, only))

    def follow(self) -> None:
        """Belongs before the first apply() where settings of the loader are among what is tried, and before the loader's class is
        swapped by another (LiveLoader)."""
        self._loader.follow()

    def apply(self, settings: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
        """Makes exactly these settings hold. Returns key, requested, applied and reason of each. headrace.Error where one cannot
        be applied, or ended by itself while it was in force (`ended`); all is then as before."""
        self.check(settings)
        if dict(settings) != self._in_force:
            before = self._in_force
            try:
                self._switch(settings)
            except BaseException as error:
                self._switch(before)
                if isinstance(error, (RuntimeError, MemoryError)) and not isinstance(error, Error):  # torch's own.
                    raise _translated(error) from error
                raise
            self._in_force = dict(settings)
        return [(key, value, value, "") for key, value in sorted(settings.items())]

    def in_force(self) -> dict[str, str]:
        """As applied, without what ended by itself."""
        return {key: value for key, value in self._in_force.items() if key not in self.ended}

    def queue(self) -> int:
        """Batches that the loader holds ready at most, as far as its settings can change; else 0."""
        return self._loader.queue()

    @property
    def ended(self) -> dict[str, str]:
        """By key, why a setting ended by itself while it was in force (a model that recompiles, an autocast of the loop's own),
        or would do nothing (note_calls, note_epochs). The run goes on without it, and apply() refuses it from then on."""
        return {**self._calls.ended, **self._strategies.ended}

    @property
    def ended_between_switches(self) -> dict[str, str]:
        """The part of `ended` that grows at other times than in apply(): always the same object."""
        return self._calls.ended

    def note_calls(self, called: Sequence[nn.Module]) -> None:
        """The outermost modules that the loop was seen to call for an update. Where no model is among them, precision and
        compiling would do nothing: they have ended."""
        if called and self._forwards.keys().isdisjoint(called):
            part = called[0]
            whole = next((model for model in self._models if part in model.modules()), self._models[0])
            reason = (f"the loop does not call the {type(whole).__name__} itself, but the {type(part).__name__} within it; "
                      "wanted that among the models")
            self._calls.ended.update(dict.fromkeys((PRECISION, COMPILE), reason))

    def note_epochs(self, begun: int) -> None:
        """So many epochs of the loader have begun since follow(). Where the loop makes updates and none has, its batches come
        from where workers and prefetch would do nothing: they have ended."""
        if begun == 0 and self._loader.needs_epoch:
            reason = ("no epoch of the loader has begun since the tuning did: the loop's batches come from one that was under "
                      "way, or from elsewhere")
            self._calls.ended.update(dict.fromkeys((NUM_WORKERS, PREFETCH), reason))

    def baseline(self) -> dict[str, str]:
        """What the objects have, as written, of every key that a candidate touches."""
        written = {PRECISION: "fp32", MEMORY_FORMAT: "contiguous", FUSED: self._use(FUSED), FOREACH: self._use(FOREACH),
                   COMPILE: False, THREADS: self._process.threads, **self._loader.written()}
        return {**self._process.written, **self._strategies.written(),
                **{key: json.dumps(value) for key, value in written.items()}}

    def keep_only(self) -> None:
        """Lets go of what was prepared for settings that are not in force. Their hooks and forwards are gone already."""
        if COMPILE not in self._in_force:
            for forward in self._forwards.values():
                forward.forget_compiled()
        if MEMORY_FORMAT not in self._in_force:
            self._layout.forget()
        self._loader.keep_only()

    def undo(self) -> None:
        """Gives the objects back as they were, but for the values of their tensors. Strides, attributes, threads, allocator and
        autocast are as written."""
        self._in_force = {}
        try:
            self._switch({})
        finally:
            self._saves.cover((), {})
            self.keep_only()
            self._loader.undo()
            self._calls.ended.clear()

    # Switching.

    def _switch(self, settings: Mapping[str, str]) -> None:
        """The layout last, because it alone may lack memory; that undoes the others cheaply."""
        self._strategies.set(self._strategies.still_possible(settings))  # First: undone whatever comes of the rest.
        has = functools.partial(self._has, settings)
        channels_last, bf16, compiles = has(MEMORY_FORMAT, "channels_last"), has(PRECISION, "bf16"), has(COMPILE, True)
        implementation = next((key for key in (FUSED, FOREACH) if has(key, True) and not self._use(key)), None)
        self._process.apply(settings)
        self._loader.set(settings)
        for switch in self._switches.values():
            switch.set(implementation)
        for forward in self._forwards.values():
            forward.set(channels_last=channels_last, bf16=bf16, compile=compiles)
        hangs_on_models = channels_last or (bool(self._forwards) and (bf16 or compiles))
        self._saves.cover([*(self._models if hangs_on_models else ()), *(self._holders() if channels_last else ())],
                          self._switches if channels_last or implementation is not None else {})
        self._layout.set(channels_last)

    def _use(self, implementation: str) -> bool:
        """All optimizers, as written."""
        return all(uses for switch in self._switches.values() for uses in switch.uses(implementation))

    def _has(self, settings: Mapping[str, str], key: str, value: Any) -> bool:
        return key in settings and key not in self._calls.ended and json.loads(settings[key]) == value

    def _holders(self) -> Iterator[nn.Module]:
        """Modules that may be saved on their own and have a parameter whose strides change."""
        for model in self._models:
            for module in model.modules():
                if any(parameter.dim() in CHANNELS_LAST for parameter in module.parameters(recurse=False)):
                    yield module

    def _layout_failed(self, error: Exception) -> None:
        self._calls.ended[MEMORY_FORMAT] = f"after a save the layout could not be put back: {first_line(error)}"

    # What is asked for.

    def check(self, settings: Mapping[str, str]) -> None:
        """headrace.Error where apply() would refuse these settings; changes nothing. Settings that have passed since offer() are
        looked at again only where something has ended meanwhile: a search switches between the same few many times a second."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise UnsupportedError("autotune: a CUDA graph is being captured; wanted a moment between two updates")
        ended = self.ended
        if dict(settings) == self._in_force and not ended:
            return
        asked = frozenset(settings.items()), frozenset(ended)
        if asked in self._passed:
            return
        baseline, refused, out_of_reach = self.baseline(), self._refusals(), _engine_door.refusals()
        for key, value in settings.items():
            if key in out_of_reach:
                raise UnsupportedError(f"autotune: {key}: not applicable: {out_of_reach[key]}")
            if key not in baseline:
                raise InvalidArgumentError(
                    f"autotune: {key} does not switch between two updates; wanted one of {', '.join(sorted(baseline))}")
            self._check_value(key, value)
            reason = ended.get(key) or refused.get(key)
            if reason is not None and value != baseline[key]:
                raise UnsupportedError(f"autotune: {key}: {reason}")
        if settings.get(FUSED) == settings.get(FOREACH) == "true":
            raise InvalidArgumentError(f"autotune: {FUSED} and {FOREACH} are both true; wanted one of them")
        self._passed.add(asked)

    def _check_value(self, key: str, value: str) -> None:
        self._loader.check(key, value)
        if key not in _VALUES and key != THREADS:
            return  # Loader and process know their own.
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if key == THREADS and (type(found) is not int or found < 1):
            raise InvalidArgumentError(f"autotune: {key}: wanted a whole number of at least 1, found {value}")
        if key in _VALUES and not any(found is one or (found == one and isinstance(one, str)) for one in _VALUES[key]):
            raise InvalidArgumentError(f"autotune: {key}: wanted {' or '.join(map(json.dumps, _VALUES[key]))}, found {value}")

    def _offered(self, fixed: Sequence[str], steps: int | None, of_loader: Mapping[str, Any]) -> _core.Offer:
        cores = len(os.sched_getaffinity(0))
        offered = _core.offer({
            "live": True, "process": self._process.written, "cores": cores, "refused": self._refusals(),
            "refused_values": self._loader.refused_values(cores), "run_steps": steps, "budget_s": 0.0, "fixed": list(fixed),
            "intra_op_threads": self._process.threads, "fused": False, "drops_out": False, **of_loader,
        }, "")
        self._strategies.add_to(offered, "")
        return offered

    def _refusals(self) -> dict[str, str]:
        if self._refused is None:
            self._refused = refusals(self._models, self._switches, self._given_loader, self._process.written)
        if self._given_loader is None:
            return {**self._refused, **dict.fromkeys((NUM_WORKERS, PREFETCH), "no loader was given")}
        return {**self._refused, **self._loader.refusals()}  # The loader tells more once it was looked at.


def _translated(error: BaseException) -> Error:
    kind = OutOfMemoryError if code_of(error) == OutOfMemoryError.code else UnsupportedError
    return kind(f"autotune: a setting cannot be applied: {first_line(error)}")
