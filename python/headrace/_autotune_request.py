"""What hr.autotune is asked for."""

from __future__ import annotations

import numbers
import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from .errors import InvalidArgumentError, IoError


@dataclass(frozen=True)
class Request:
    """What hr.autotune was asked for, checked."""

    allow: str
    steps: int | None
    epochs: int | None
    only: list[str]
    fixed: list[str]
    gain_min: float
    out: pathlib.Path | None
    auto_tune: bool
    seed: int
    title: str
    replay: pathlib.Path | None = None  # The ledger of a run that is to be repeated; None: this one is tuned.
    first_update: int = 1  # The number of the next update in the whole run.

    def shown(self) -> str:
        """Its arguments as a person would write them, but for the objects."""
        first = "" if self.first_update == 1 else f", first_update={self.first_update}"
        return (f'allow="{self.allow}", seed={self.seed}' if self.replay is None else f'replay="{self.replay}"') + first

    def with_rest(self, updates: int | None) -> Request:
        """Of a run with so many updates left, where nobody has said how long it is. None: unknown."""
        if updates is None or self.steps is not None or self.epochs is not None:
            return self
        return replace(self, steps=self.first_update - 1 + updates)


def requested(*, allow: str = "rounding", steps: int | None = None, epochs: int | None = None, only: Iterable[str] = (),
              fixed: Iterable[str] = (), gain_min: float = 0.02, out: str | pathlib.Path | None = None, auto_tune: bool = True,
              seed: int = 0, title: str = "training loop", replay: str | pathlib.Path | None = None,
              first_update: int = 1) -> Request:
    """What these keywords of hr.autotune ask for. Makes the folder `out`; IoError where that cannot be. InvalidArgumentError for
    what makes no sense; what `allow` may name, how small `gain_min` may be, the names in `only` and the ledger are looked at by
    AutoTune."""
    if isinstance(gain_min, bool) or not isinstance(gain_min, numbers.Real):
        raise InvalidArgumentError(f"autotune: gain_min: wanted a number, found {gain_min!r}")
    request = Request(_text("allow", allow), None if steps is None else _whole("steps", steps, 1),
                      None if epochs is None else _whole("epochs", epochs, 1), _names("only", only), _names("fixed", fixed),
                      float(gain_min), _path("out", out, "the path of a folder"), bool(auto_tune), _whole("seed", seed, 0),
                      _text("title", title), _path("replay", replay, "the path of a ledger.json"),
                      _whole("first_update", first_update, 1))
    if request.out is not None:
        try:
            request.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise IoError(f"autotune: out: {error}") from error
    return request


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"autotune: {name}: wanted a text, found {value!r}")
    return value


def _path(name: str, value: Any, wanted: str) -> pathlib.Path | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidArgumentError(f"autotune: {name}: wanted {wanted}, found {type(value).__name__}")
    return pathlib.Path(value)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidArgumentError(f"autotune: {name}: wanted a whole number of at least {least}, found {value!r}")
    return value


def _names(name: str, given: Any) -> list[str]:
    is_list = isinstance(given, Iterable) and not isinstance(given, str)
    names = list(given) if is_list else []
    if not is_list or not all(isinstance(item, str) for item in names):
        raise InvalidArgumentError(f"autotune: {name}: wanted a list of texts, found {given!r}")
    return names
