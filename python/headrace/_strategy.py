"""Changes of a user's own, which hr.tune and hr.autotune try as they try headrace's. How they are applied and undone is in
src/app/knobs/strategy_switch.cpp."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import _core
from .errors import InvalidArgumentError, NotFoundError

CUSTOM = "custom."  # What keys of strategies begin with.


@dataclass(frozen=True)
class StrategyContext:
    """What is tuned, for a Strategy to look at and to work on: the user's own objects."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[torch.optim.Optimizer, ...]
    loader: Any  # As it was given; None: none was.
    live: bool  # hr.autotune: the run goes on. Else hr.tune, whose trials begin from one state.

    def __repr__(self) -> str:
        objects = ", ".join(type(one).__name__ for one in (*self.models, *self.optimizers, self.loader))
        return f"<headrace.StrategyContext of {objects}; {'live' if self.live else 'in trials'}>"


class Strategy:
    """One change, on or off, that is tried as headrace's own are: listed with them, checked for its numerics, measured in pairs,
    and undone unless it pays. Derive from it, give it a name and a sentence, write apply() and undo(), and register_strategy() an
    instance.

        class NoCollector(hr.Strategy):
            name = "no-collector"
            sentence = "Python's garbage collector is off."
            numerics = "bit_equal"

            def apply(self, context):
                gc.disable()

            def undo(self, context):
                gc.enable()

    Its methods are called in the thread that tunes, between two updates of a run under way, around the replay of a kept call, or
    between two blocks of hr.tune's trials, always with the same context in one tuning. What apply() and undo() take is measured
    with the change. They leave the values of parameters, buffers, gradients and generators as they are.

    An exception of any of its methods is the outcome of this change alone: it is reported as failed with the exception's class
    and message, undone, and the tuning goes on. What is no Exception (KeyboardInterrupt) passes.
    """

    name: str = ""  # In tables, the ledger and `only`. 1 to 40 of a to z, 0 to 9, _ and -, a letter first.
    sentence: str = ""  # What it changes, for a person.
    # What it may do to the numbers: "bit_equal", "rounding" or "reduced_precision". The tuner checks that it does no more, and
    # keeps nothing that is looser than `allow`.
    numerics: str = "rounding"

    @property
    def key(self) -> str:
        """The setting that it is, "true" while it holds: in reports, ledger.json and `fixed`."""
        return CUSTOM + self.name

    def why_not(self, context: StrategyContext) -> str | None:
        """Why it does not apply to these objects, for a person, without a full stop; None: it does. Changes nothing. May be asked
        more than once."""
        del context
        return None

    def apply(self, context: StrategyContext) -> None:
        """Makes it hold. Often called many times in a tuning, each time followed by undo() unless the change is kept."""
        raise NotImplementedError(f"{type(self).__name__} has no apply()")

    def undo(self, context: StrategyContext) -> None:
        """Makes everything as it was before apply(). Called once for each apply(), one that raised among them. Where it raises,
        the strategy is not applied again, and a RuntimeWarning says that what it changed may still hold."""
        raise NotImplementedError(f"{type(self).__name__} has no undo()")

    def verify(self, context: StrategyContext) -> str | None:
        """Called behind the first apply() of a tuning: what is wrong, for a person; None: all is right. Where something is, the
        change has failed."""
        del context
        return None


_registered: dict[str, Strategy] = {}


def register_strategy(strategy: Strategy) -> None:
    """hr.tune and hr.autotune that begin from now on try it, behind headrace's own changes and those registered before. It is
    held until unregister_strategy(), and by each tuning to its end.

    InvalidArgumentError: no instance of Strategy, no sentence, another class of numerics, or a name of another form, of a
    strategy that is registered or of a change of headrace's own."""
    if not isinstance(strategy, Strategy):
        found = f"the class {strategy.__name__} itself" if isinstance(strategy, type) else type(strategy).__name__
        raise InvalidArgumentError(f"strategy: wanted an instance of headrace.Strategy, found {found}")
    for field in ("name", "sentence", "numerics"):
        if not isinstance(getattr(strategy, field), str):
            raise InvalidArgumentError(f"strategy: {type(strategy).__name__}: {field}: wanted a text, found "
                                       f"{type(getattr(strategy, field)).__name__}")
    _core.check_strategy(strategy.name, strategy.sentence, strategy.numerics, list(_registered))
    _registered[strategy.name] = strategy


def unregister_strategy(name: str) -> None:
    """Tunings that begin from now on do not try it; one under way goes on with it. NotFoundError: no strategy of Python's is
    registered under this name."""
    if name not in _registered:
        raise NotFoundError(f'strategy: wanted one of {", ".join(_registered) or "none"}, which are registered, found "{name}"')
    del _registered[name]


def strategies() -> dict[str, str]:
    """What is registered, a sentence by name: strategies of C++, then Python's in the order in which they are tried."""
    return {**_core.native_strategies(), **{name: strategy.sentence for name, strategy in _registered.items()}}


class Strategies:
    """Those registered when it is made, on the objects of one tuning."""

    def __init__(self, context: StrategyContext) -> None:
        self._context, self._own = context, dict(_registered)
        self._switch = _core.StrategySwitch([(name, one.sentence, one.numerics) for name, one in self._own.items()])

    def add_to(self, offered: _core.Offer, bound: str) -> None:
        """Asks each why not, and adds it behind what is offered already."""
        self._switch.add_to(offered, bound, self._own, self._context)

    def written(self) -> dict[str, str]:
        """By key, what the objects have of it without the tuning."""
        return {key: "false" for key in self._switch.keys}

    @property
    def ended(self) -> dict[str, str]:
        """By key, why one is not applied again: it could not be undone."""
        return self._switch.ended

    def still_possible(self, settings: Mapping[str, str]) -> dict[str, str]:
        """The settings without those of strategies that have ended."""
        ended = self.ended
        return {key: value for key, value in settings.items() if key not in ended}

    def set(self, settings: Mapping[str, str]) -> None:
        """Makes exactly those hold that are on in `settings`. headrace.Error: one cannot be applied, or was found wrong by its
        verify(); those hold then that held before. Of one that cannot be undone a RuntimeWarning tells, once."""
        before = self.ended
        try:
            self._switch.set(settings, self._own, self._context)
        finally:
            for key, reason in self.ended.items():
                if key not in before:
                    with warnings.catch_warnings():  # Raised, as under -W error, it would hide why the switch failed.
                        warnings.simplefilter("always", RuntimeWarning)
                        warnings.warn(f"headrace: {key}: {reason}", RuntimeWarning, stacklevel=2)
